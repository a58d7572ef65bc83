//! Reads `/proc/PID/stat`, and determines whether another process lives.
//!
//! A process counts as dead only if that is proven. What cannot be read proves nothing: /proc may not be mounted, may
//! hide processes, or be out of reach (`chroot`, Landlock, the limit of open files).

use std::{fs, io};

/// What is known of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Alive,
    /// It has ended, or runs another program by now.
    Dead,
    /// It cannot be told from here.
    Unknown,
}

impl Life {
    /// The rule for a process that keeps a segment of shared memory attached, which the kernel detaches when the
    /// process ends or calls exec, however it does. `attached`: `None` = it cannot be told. `exists`: whether a process
    /// has this pid.
    pub fn of_holder(pid: u32, attached: Option<bool>, exists: impl FnOnce() -> bool) -> Life {
        match attached {
            Some(true) => Life::Alive,
            None => Life::Unknown,
            Some(false) if !exists() => Life::Dead,
            // The kernel closes its files after that, and the driver frees memory with them.
            Some(false) => match Stat::raw(pid) {
                Some(stat) if stat.is_ending() => Life::Alive,
                Some(_) => Life::Dead,
                None => Life::Unknown,
            },
        }
    }

    /// The rule for a process of which only pid and start time are known.
    pub fn of_started(pid: u32, start_ticks: u64, exists: impl FnOnce() -> bool) -> Life {
        match Stat::of(pid) {
            Some(stat) if !stat.is_alive() => Life::Dead,
            Some(stat) => match is_same_start(stat.start_ticks, start_ticks) {
                Some(true) => Life::Alive,
                Some(false) => Life::Dead,
                None => Life::Unknown,
            },
            None if !exists() => Life::Dead,
            None => Life::Unknown,
        }
    }
}

/// Whether two start times are those of one process. A time namespace may shift them by a part of a tick. `None`: one
/// of them is not known.
pub fn is_same_start(one: u64, other: u64) -> Option<bool> {
    (one != 0 && other != 0).then(|| one.abs_diff(other) <= 1)
}

/// Fields of `/proc/PID/stat`, as read at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    pub pid: u32,
    /// The first 15 bytes of the process name. It may hold any bytes, spaces and brackets included.
    pub name: Vec<u8>,
    /// State of the main thread: `R`, `S`, ...
    pub state: u8,
    /// Pid of the parent.
    pub parent: u32,
    /// Number of threads. A main thread that has exited before the others is included.
    pub threads: u64,
    /// Start time in clock ticks since boot, whatever the time namespace of the reader; 0 = not known. Pids are reused;
    /// pid and start time together identify a process.
    pub start_ticks: u64,
    /// Flags of the main thread.
    flags: u64,
    /// Start address of the main stack; 0 = hidden by the kernel.
    pub stack_start: u64,
}

impl Stat {
    /// The process with this pid. `None`: there is none, or /proc cannot be read.
    pub fn of(pid: u32) -> Option<Stat> {
        Stat::raw(pid).map(Stat::since_boot)
    }

    /// As the kernel shows it in this time namespace.
    fn raw(pid: u32) -> Option<Stat> {
        Stat::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The calling process, from the text of its file.
    pub fn of_text(line: &[u8]) -> Option<Stat> {
        Stat::parse(line).map(Stat::since_boot)
    }

    fn since_boot(self) -> Stat {
        let start_ticks = shift_ns().map_or(0, |shift| {
            let ns = i128::from(self.start_ticks) * NS_PER_TICK - shift;
            u64::try_from(ns.div_euclid(NS_PER_TICK)).unwrap_or(0)
        });
        Stat { start_ticks, ..self }
    }

    /// The calling process. `None`: /proc cannot be read.
    pub fn of_this_process() -> Option<Stat> {
        Stat::of_text(&fs::read("/proc/self/stat").ok()?)
    }

    /// Parses the line that proc_pid_stat(5) describes. The name is in brackets and may hold brackets, so it ends at
    /// the last closing bracket. The start is that of this time namespace. `None`: not such a line.
    fn parse(line: &[u8]) -> Option<Stat> {
        let open = line.iter().position(|byte| *byte == b'(')?;
        let close = line.iter().rposition(|byte| *byte == b')')?;
        let name = line.get(open + 1..close)?.to_vec();
        let pid = std::str::from_utf8(&line[..open]).ok()?.trim().parse().ok()?;
        let rest = std::str::from_utf8(&line[close + 1..]).ok()?;
        // The first field after the name has number 3.
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse().ok();
        Some(Stat {
            pid,
            name,
            state: *fields.first()?.as_bytes().first()?,
            parent: u32::try_from(field(4)?).ok()?,
            threads: field(20)?,
            start_ticks: field(22)?,
            flags: field(9)?,
            stack_start: field(28).unwrap_or(0),
        })
    }

    /// Whether at least one thread has not exited. A process whose main thread has exited before the others has the
    /// state of a zombie, but still holds its memory.
    pub fn is_alive(&self) -> bool {
        !matches!(self.state, b'Z' | b'X') || self.threads > 1
    }

    /// Whether its last thread is on its way out: the kernel is still taking back what it has.
    fn is_ending(&self) -> bool {
        const PF_EXITING: u64 = 4;
        self.is_alive() && self.flags & PF_EXITING != 0
    }
}

/// The pids in /proc.
pub fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The id of a namespace of this thread.
pub(crate) fn namespace(kind: &str) -> io::Result<u64> {
    let found = fs::metadata(format!("/proc/thread-self/ns/{kind}"))?;
    #[cfg(unix)]
    return Ok(std::os::unix::fs::MetadataExt::ino(&found));
    #[cfg(not(unix))]
    return Err(io::Error::other(format!("{found:?} has no id")));
}

const NS_PER_TICK: i128 = 10_000_000;

/// By how much /proc shifts start times for this process. `None`: not known.
fn shift_ns() -> Option<i128> {
    /// The first time namespace, whose times are not shifted.
    const INITIAL: u64 = 0xEFFF_FFFA;
    let own = match namespace("time") {
        Ok(INITIAL) => return Some(0),
        Ok(own) => own,
        // A kernel without time namespaces has the others.
        Err(_) => return namespace("pid").ok().map(|_| 0),
    };
    // The file gives the times of children, which may be of another namespace.
    if namespace("time_for_children").ok()? != own {
        return None;
    }
    let offsets = fs::read_to_string("/proc/self/timens_offsets").ok()?;
    let line = offsets.lines().find_map(|line| line.strip_prefix("boottime"))?;
    let mut numbers = line.split_whitespace().map(|number| number.parse::<i64>());
    let (seconds, ns) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(i128::from(seconds) * 1_000_000_000 + i128::from(ns))
}

/// Whether the process with this pid and start time (clock ticks since boot) is known to live.
pub fn is_alive(pid: u32, start_ticks: u64) -> bool {
    Life::of_started(pid, start_ticks, || true) == Life::Alive
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn line(name: &[u8], state: &str, threads: u32) -> Vec<u8> {
        let fields = format!("{state} 3 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 {threads} 0 77 0 0 0 0 0 99");
        [b"7 (", name, b") ", fields.as_bytes(), b"\n"].concat()
    }

    #[test]
    fn a_name_may_hold_any_bytes() {
        for name in [&b"sh"[..], b"", b"a) b (c", b") Z 1", b"\xFF\xFE) ", "größe".as_bytes()] {
            let stat = Stat::parse(&line(name, "S", 2)).unwrap();
            let expected = Stat {
                pid: 7,
                name: name.to_vec(),
                state: b'S',
                parent: 3,
                threads: 2,
                start_ticks: 77,
                flags: 0,
                stack_start: 99,
            };
            assert_eq!(stat, expected);
        }
    }

    #[test]
    fn what_is_no_such_line_is_none() {
        for text in [&b""[..], b"7", b"7 (a", b"7 )(", b"7 (a) S 3 0", b"x (a) S"] {
            assert_eq!(Stat::parse(text), None, "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn a_zombie_with_threads_is_alive() {
        let alive = |state, threads| Stat::parse(&line(b"a", state, threads)).unwrap().is_alive();
        assert!(alive("S", 1) && alive("Z", 2));
        assert!(!alive("Z", 1) && !alive("X", 0));
    }

    #[test]
    fn a_start_may_differ_by_the_part_of_a_tick_that_a_namespace_shifts_it() {
        assert_eq!((is_same_start(7, 8), is_same_start(9, 7)), (Some(true), Some(false)));
        assert_eq!((is_same_start(0, 7), is_same_start(7, 0)), (None, None));
    }

    #[test]
    fn only_what_is_proven_is_dead() {
        let (me, none) = (std::process::id(), (1 << 22) + 1);
        let start = Stat::of_this_process().unwrap().start_ticks;
        for (life, expected) in [
            (Life::of_started(me, start, || true), Life::Alive),
            (Life::of_started(me, start + 2, || true), Life::Dead),
            (Life::of_started(me, 0, || true), Life::Unknown),
            (Life::of_started(none, 7, || true), Life::Unknown),
            (Life::of_started(none, 7, || false), Life::Dead),
            (Life::of_holder(none, Some(true), || false), Life::Alive),
            (Life::of_holder(none, None, || false), Life::Unknown),
            (Life::of_holder(none, Some(false), || false), Life::Dead),
            (Life::of_holder(none, Some(false), || true), Life::Unknown),
            // It runs, and has the segment no more: another program.
            (Life::of_holder(me, Some(false), || true), Life::Dead),
        ] {
            assert_eq!(life, expected);
        }
    }
}
