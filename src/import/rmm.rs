//! The log of RMM's logging resource adaptor: `Thread,Time,Action,Pointer,Size,Stream`, one line
//! for each call. It has the requests to RMM, and not what RMM allocated from the driver.

use std::path::Path;

use super::csv::rows;
use super::error::ImportProblem;
use super::history::{Action, Form, History, HistoryDevice, is_place};

pub(super) const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream";

const DAY_NS: u64 = 86_400_000_000_000;

pub(super) fn read(text: &str) -> Result<History, ImportProblem> {
    let mut device = HistoryDevice::default();
    let (mut start, mut last, mut days) = (None, 0u64, 0u64);
    for row in rows(text) {
        let row = row?;
        let wrong = |what: &str| row.wrong(what);
        let [_thread, time, action, pointer, size, stream] = row.fields;
        let clock = nanoseconds(time);
        let clock = clock.ok_or_else(|| wrong("the time is not HH:MM:SS.micros or seconds"))?;
        // A time of day. More than half a day back means midnight; a little back is another thread.
        if last.saturating_sub(clock) > DAY_NS / 2 {
            days += 1;
        }
        last = clock;
        let at = days.checked_mul(DAY_NS).and_then(|days| clock.checked_add(days));
        let at = at.ok_or_else(|| wrong("the time is behind the year 2554"))?;
        let start = *start.get_or_insert(at);
        let action = match action {
            "allocate" => Action::Alloc,
            "free" => Action::FreeCompleted,
            "allocate failure" => Action::OutOfMemory { free: None },
            _ => return Err(wrong("the action is none of allocate, free, allocate failure")),
        };
        let address = pointer_of(pointer).ok_or_else(|| wrong("the pointer is no address"))?;
        let size = size.parse::<u64>().map_err(|_| wrong("the size is not a whole number"))?;
        let failed = matches!(action, Action::OutOfMemory { .. });
        if !failed && !is_place(address, size) {
            return Err(wrong("it ends behind all memory"));
        }
        if !failed && (address == 0 || size == 0) {
            // A request of 0 bytes allocates nothing.
            continue;
        }
        let stream = pointer_of(stream).ok_or_else(|| wrong("the stream is no handle"))?;
        device.push(action, address, size, at.saturating_sub(start), stream);
    }
    if !device.entries.iter().any(|entry| entry.action == Action::Alloc) {
        return Err(ImportProblem::Empty);
    }
    let mut history = History::new(Form::Rmm);
    history.caveats.push(
        "the log has what was asked of RMM, not what RMM took from the driver, nor its limit"
            .into(),
    );
    history.devices.push(device);
    Ok(history)
}

/// The device that the name of a log may have: RMM's Python writes device 1 to `rmm.dev1.csv`.
pub(super) fn ordinal(path: &Path) -> u8 {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut parts = name.split('.').filter_map(|part| part.strip_prefix("dev")?.parse().ok());
    parts.next().filter(|ordinal| *ordinal < u8::MAX).unwrap_or(0)
}

/// `0x7f00`, `(nil)`; streams are also `0`, `1` and `2` or hexadecimal without a prefix.
fn pointer_of(text: &str) -> Option<u64> {
    match text {
        "(nil)" | "nullptr" => Some(0),
        _ => u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok(),
    }
}

/// `15:47:02.841961`, `15:47:02:841961`, or seconds like `1634567890.123456`.
fn nanoseconds(text: &str) -> Option<u64> {
    let parts: Vec<&str> = text.split([':', '.']).collect();
    let number = |text: &str| text.parse::<u64>().ok();
    let fraction = |text: &str| {
        let digits: String = text.chars().chain("000000000".chars()).take(9).collect();
        number(&digits)
    };
    match parts[..] {
        [hours, minutes, seconds, rest] => {
            let (hours, minutes, seconds) = (number(hours)?, number(minutes)?, number(seconds)?);
            // 60 is a leap second.
            let whole = hours < 24 && minutes < 60 && seconds <= 60;
            let all = (hours * 60 + minutes) * 60 + seconds;
            whole.then(|| fraction(rest).map(|rest| all * 1_000_000_000 + rest))?
        }
        [seconds, rest] if !text.contains(':') => {
            number(seconds)?.checked_mul(1_000_000_000)?.checked_add(fraction(rest)?)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_with_a_failure_over_midnight() {
        let text = "Thread,Time,Action,Pointer,Size,Stream\n\
            77,23:59:59.900000,allocate,0x7f0000000000,1048576,0x1\n\
            78,00:00:00.100000,allocate failure,(nil),4294967296,0\n\
            77,00:00:01.000001,free,0x7f0000000000,1048576,0x1\n\
            77,00:00:01.000002,allocate,(nil),0,0x1\n";
        let history = read(text).unwrap();
        let device = &history.devices[0];
        assert_eq!(ordinal(Path::new("/x/log.dev3.csv")), 3);
        let entries: Vec<(Action, u64)> =
            device.entries.iter().map(|entry| (entry.action, entry.time_ns)).collect();
        assert_eq!(
            entries,
            [
                (Action::Alloc, 0),
                (Action::OutOfMemory { free: None }, 200_000_000),
                (Action::FreeRequested, 1_100_001_000),
                (Action::FreeCompleted, 1_100_001_000),
            ]
        );
        assert_eq!((device.entries[0].stream, device.entries[1].size), (1, 4 << 30));
    }

    #[test]
    fn errors_name_the_line() {
        for (line, part) in [
            ("1,2,3", "line 2: 6 fields"),
            ("1,noon,allocate,0x1,1,0", "line 2: the time"),
            ("1,25:00:00.0,allocate,0x1,1,0", "line 2: the time"),
            (
                "1,18446744073.709551615,free,0x1,1,0\n1,0.0,free,0x1,1,0\n1,18446744073.7,free,0x1,1,0",
                "line 4: the time is",
            ),
            ("1,10:00:00.0,steal,0x1,1,0", "line 2: the action"),
            ("1,10:00:00.0,allocate,here,1,0", "line 2: the pointer"),
            ("1,10:00:00.0,allocate,0x1,-1,0", "line 2: the size"),
            ("1,10:00:00.0,allocate,0x1,1,main", "line 2: the stream"),
            ("", "holds no allocation"),
        ] {
            let error = read(&format!("{HEADER}\n{line}\n")).unwrap_err().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn times_as_versions_write_them() {
        assert_eq!(nanoseconds("01:00:00.5"), Some(3_600_500_000_000));
        assert_eq!(nanoseconds("01:00:00:000001"), Some(3_600_000_001_000));
        assert_eq!(nanoseconds("1634567890.123456"), Some(1_634_567_890_123_456_000));
        assert_eq!(nanoseconds("10"), None);
    }
}
