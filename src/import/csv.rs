//! `action,addr,size,stream`, one line for each event, in order. Sizes of `alloc` are requested bytes. It
//! has no times.

use super::error::ImportProblem;
use super::history::{Action, Form, History, HistoryDevice, HistoryEntry, StackIndex, is_place};

pub(super) const HEADER: &str = "action,addr,size,stream";

pub(super) fn read(text: &str) -> Result<History, ImportProblem> {
    let mut lines = (1..).zip(text.lines().map(str::trim));
    if lines.next().is_none_or(|(_, first)| first != HEADER) {
        return Err(ImportProblem::Unknown);
    }
    let mut device = HistoryDevice::default();
    for (line, text) in lines.filter(|(_, text)| !text.is_empty()) {
        let wrong = |what: String| ImportProblem::Row { line, what, text: text.into() };
        let fields: Vec<&str> = text.split(',').map(str::trim).collect();
        let [name, address, size, stream] = fields[..] else {
            return Err(wrong("four fields are needed".into()));
        };
        let number = |text: &str, name: &str| {
            text.parse::<u64>().map_err(|_| wrong(format!("{name} is not a whole number")))
        };
        let action = match (Action::from_name(name), name) {
            (Some(action), _) => action,
            (None, "snapshot") => continue,
            (None, _) => {
                return Err(wrong(
                    "the action is none of alloc, free_requested, free_completed, segment_*, oom"
                        .into(),
                ));
            }
        };
        let (address, size) = (number(address, "addr")?, number(size, "size")?);
        if !matches!(action, Action::OutOfMemory { .. }) && !is_place(address, size) {
            return Err(wrong("it ends behind all memory".into()));
        }
        device.entries.push(HistoryEntry {
            action,
            address,
            size,
            stream: number(stream, "stream")?,
            pool: 0,
            time_ns: device.entries.len() as u64 * 1_000,
            stack: StackIndex(0),
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
            ("alloc,1,2", "line 2: four fields"),
            ("alloc,x,2,0", "line 2: addr is not"),
            ("alloc,18446744073709551615,2,0", "line 2: it ends behind"),
            ("malloc,1,2,0", "line 2: the action"),
            ("", "holds no allocation"),
            ("\n  \nalloc,1,2", "line 4: four fields"),
        ] {
            let error = read(&format!("{HEADER}\n{line}\n")).unwrap_err().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
