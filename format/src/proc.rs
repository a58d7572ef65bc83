//! Reads `/proc/PID/stat`, and determines whether a process is alive.

use std::fs;

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
    /// Start time in clock ticks since boot. Pids are reused; pid and start time together identify a process.
    pub start_ticks: u64,
    /// Start address of the main stack; 0 = hidden by the kernel.
    pub stack_start: u64,
}

impl Stat {
    /// The process with this pid. `None`: there is none, or /proc cannot be read.
    pub fn of(pid: u32) -> Option<Stat> {
        Stat::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The calling process. `None`: /proc cannot be read.
    pub fn of_this_process() -> Option<Stat> {
        Stat::parse(&fs::read("/proc/self/stat").ok()?)
    }

    /// Parses the line that proc_pid_stat(5) describes. The name is in brackets and may hold brackets, so it ends at
    /// the last closing bracket. `None`: not such a line.
    pub fn parse(line: &[u8]) -> Option<Stat> {
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
            stack_start: field(28).unwrap_or(0),
        })
    }

    /// Whether at least one thread has not exited. A process whose main thread has exited before the others has the
    /// state of a zombie, but still holds its memory.
    pub fn is_alive(&self) -> bool {
        !matches!(self.state, b'Z' | b'X') || self.threads > 1
    }
}

/// Whether the process with this pid and start time (clock ticks since boot) is alive.
pub fn is_alive(pid: u32, start_ticks: u64) -> bool {
    Stat::of(pid).is_some_and(|stat| stat.start_ticks == start_ticks && stat.is_alive())
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
}
