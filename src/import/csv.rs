//! `action,addr,size,stream`, one line for each event, in order. Sizes of `alloc` are requested bytes. It
//! has no times.

use vramtrace_format::StackId;

use super::error::ImportProblem;
use super::history::{Action, Form, History, HistoryDevice, HistoryEntry, is_place};

pub(super) const HEADER: &str = "action,addr,size,stream";

/// A row of a CSV without quotes, with its line.
pub(super) struct CsvRow<'t, const N: usize> {
    line: usize,
    text: &'t str,
    pub fields: [&'t str; N],
}

impl<const N: usize> CsvRow<'_, N> {
    pub(super) fn wrong(&self, what: impl Into<String>) -> ImportProblem {
        ImportProblem::Row { line: self.line, what: what.into(), text: self.text.into() }
    }
}

/// The rows below the first line. Empty lines are left out.
pub(super) fn rows<const N: usize>(
    text: &str,
) -> impl Iterator<Item = Result<CsvRow<'_, N>, ImportProblem>> {
    let lines = (1..).zip(text.lines().map(str::trim)).skip(1).filter(|(_, text)| !text.is_empty());
    lines.map(|(line, text)| {
        let fields: Vec<&str> = text.split(',').map(str::trim).collect();
        let wrong = |_| ImportProblem::Row {
            line,
            what: format!("{N} fields are needed"),
            text: text.into(),
        };
        Ok(CsvRow { line, text, fields: fields.try_into().map_err(wrong)? })
    })
}

pub(super) fn read(text: &str) -> Result<History, ImportProblem> {
    let mut device = HistoryDevice::default();
    for row in rows(text) {
        let row = row?;
        let [name, address, size, stream] = row.fields;
        let wrong = |what: &str| row.wrong(what);
        let number = |text: &str, name: &str| {
            text.parse::<u64>().map_err(|_| row.wrong(format!("{name} is not a whole number")))
        };
        let Some(action) = Action::from_name(name) else {
            const NONE: &str =
                "the action is none of alloc, free_requested, free_completed, segment_*, oom";
            if name == "snapshot" { continue } else { return Err(wrong(NONE)) }
        };
        let (address, size) = (number(address, "addr")?, number(size, "size")?);
        if !matches!(action, Action::OutOfMemory { .. }) && !is_place(address, size) {
            return Err(wrong("it ends behind all memory"));
        }
        device.entries.push(HistoryEntry {
            action,
            address,
            size,
            stream: number(stream, "stream")?,
            pool: 0,
            time_ns: device.entries.len() as u64 * 1_000,
            stack: StackId(0),
        });
    }
    let has = |wanted: &[Action]| device.entries.iter().any(|of| wanted.contains(&of.action));
    if !has(&[Action::Alloc]) {
        return Err(ImportProblem::Empty);
    }
    let mut history = History::new(Form::Csv);
    history.has_times = false;
    if !has(&[Action::SegmentAlloc, Action::SegmentMap]) {
        history.caveats.push(
            "the file has no segments: what the program reserved is unknown, only the replay shows reserved bytes".into(),
        );
    }
    history.devices.push(device);
    Ok(history)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_entries_in_order() {
        let text = "action,addr,size,stream\nsegment_alloc,4096,2097152,9\nalloc,4096,100,9\n\nsnapshot,0,1,0\nfree_requested,4096,100,9\nfree_completed,4096,100,9\n";
        let history = read(text).unwrap();
        let entries = &history.devices[0].entries;
        let actions: Vec<Action> = entries.iter().map(|entry| entry.action).collect();
        assert_eq!(
            actions,
            [Action::SegmentAlloc, Action::Alloc, Action::FreeRequested, Action::FreeCompleted]
        );
        assert_eq!((entries[1].size, entries[1].stream, entries[1].time_ns), (100, 9, 1_000));
        assert!(!history.has_times && history.caveats.is_empty());
        let bare = read("action,addr,size,stream\nalloc,4096,100,9\n").unwrap();
        assert!(bare.caveats[0].contains("no segments"));
    }

    #[test]
    fn errors_name_the_line() {
        for (line, part) in [
            ("alloc,1,2", "line 2: 4 fields"),
            ("alloc,x,2,0", "line 2: addr is not"),
            ("alloc,18446744073709551615,2,0", "line 2: it ends behind"),
            ("malloc,1,2,0", "line 2: the action"),
            ("", "holds no allocation"),
            ("\n  \nalloc,1,2", "line 4: 4 fields"),
        ] {
            let error = read(&format!("{HEADER}\n{line}\n")).unwrap_err().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
