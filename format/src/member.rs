//! A process by what names it once and for all: its pid and its start; and the program in it.

use std::fs;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub pid: u32,
    /// Clock ticks since boot.
    pub start_ticks: u64,
    /// Where its first stack begins: another program after an exec. 0 = not known.
    pub image: u64,
}

impl Member {
    pub fn of_this_process() -> Option<Member> {
        Some(read(&fs::read("/proc/self/stat").ok()?)?.member)
    }

    /// The process that runs under this pid now, zombies left out.
    pub fn running(pid: u32) -> Option<Member> {
        let stat = read(&fs::read(format!("/proc/{pid}/stat")).ok()?)?;
        (!stat.ended).then_some(stat.member)
    }

    /// It runs, and it is still the program that it was.
    pub fn is_alive(&self) -> bool {
        Member::running(self.pid).is_some_and(|now| {
            let same_program = now.image == 0 || self.image == 0 || now.image == self.image;
            now.start_ticks == self.start_ticks && same_program
        })
    }

    /// Pid and start in 63 bits: 22 for the pid, as many as Linux gives.
    pub fn to_word(&self) -> u64 {
        u64::from(self.pid & PID_MOST) << START_BITS | self.start_ticks & START_MOST
    }

    pub fn from_words(word: u64, image: u64) -> Member {
        let pid = (word >> START_BITS) as u32 & PID_MOST;
        Member { pid, start_ticks: word & START_MOST, image }
    }

    /// The pid namespace of this process: pids mean something only there. 0 = not known.
    pub fn namespace() -> u64 {
        use std::os::unix::fs::MetadataExt;
        fs::metadata("/proc/self/ns/pid").map_or(0, |about| about.ino())
    }
}

const START_BITS: u32 = 41;
const START_MOST: u64 = (1 << START_BITS) - 1;
const PID_MOST: u32 = (1 << 22) - 1;

struct Stat {
    member: Member,
    /// It is a zombie: its memory is gone.
    ended: bool,
}

fn read(stat: &[u8]) -> Option<Stat> {
    // The name in field 2 may hold spaces and brackets: count from the last one.
    let text = String::from_utf8_lossy(stat);
    let (before, after) = text.rsplit_once(')')?;
    let pid = before.split_once(' ')?.0.parse().ok()?;
    let fields: Vec<&str> = after.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    // A main thread that ended before the others is shown as a zombie too.
    let ended = matches!(*fields.first()?, "Z" | "X") && field(20)? <= 1;
    let member = Member { pid, start_ticks: field(22)?, image: field(28).unwrap_or(0) };
    Some(Stat { member, ended })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_lives_and_others_of_its_pid_do_not() {
        let me = Member::of_this_process().unwrap();
        assert_eq!(me.pid, std::process::id());
        assert!(me.is_alive() && me.image != 0);
        assert!(Member { image: 0, ..me }.is_alive());
        assert!(!Member { start_ticks: me.start_ticks + 1, ..me }.is_alive(), "the pid is reused");
        assert!(!Member { image: me.image ^ 16, ..me }.is_alive(), "it was replaced by an exec");
        assert!(!Member { pid: PID_MOST, ..me }.is_alive());
        let word = me.to_word();
        assert_eq!((word >> 63, Member::from_words(word, me.image)), (0, me));
        assert!(Member::namespace() > 0);
    }

    #[test]
    fn zombies_are_dead_and_half_ended_processes_are_not() {
        let line = |state: &str, threads: u32| {
            let fields = format!("0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 {threads} 0 77 0 0 0 0 0 99");
            read(format!("7 (a) b (c) {state} {fields}\n").as_bytes()).unwrap()
        };
        let running = line("S", 1);
        assert_eq!(running.member, Member { pid: 7, start_ticks: 77, image: 99 });
        assert!(!running.ended && line("Z", 1).ended && !line("Z", 2).ended);
    }
}
