//! Which threads could not do a piece of work on files, and when it is tried again.
//!
//! A task has the rights of the thread that makes it, and a thread may give up some of its own: its user (`setfsuid`), its
//! root directory, files (Landlock), system calls (a filter), tasks (SCHED_DEADLINE). So a failure that may be due to the
//! thread ends nothing ([`Failure::may_pass`]): every other thread tries once, at its next call, and all of them at
//! growing intervals.

use super::failure::Failure;
use crate::runtime::clock;
use crate::runtime::fallible::TryPush;
use crate::runtime::lock::Lock;
use crate::runtime::thread_slot::tid;

const FIRST_NS: u64 = 100_000_000;
const MOST_NS: u64 = 60_000_000_000;
/// Threads that are remembered. With more, only the time counts.
const THREADS: usize = 64;

#[derive(Default)]
pub struct Attempts(Lock<Failed>);

/// The attempts since the last one that did not fail.
#[derive(Default)]
struct Failed {
    last: Option<Failure>,
    threads: Vec<i32>,
    pause_ns: u64,
    due_ns: u64,
}

impl Attempts {
    /// Runs `work`, unless this thread has failed a moment ago: then the last failure.
    pub fn run<R>(&self, work: impl FnOnce() -> Result<R, Failure>) -> Result<R, Failure> {
        let mut failed = self.0.lock();
        if let Some(last) = failed.last
            && clock::mono_ns() < failed.due_ns
            && (failed.threads.len() == THREADS || failed.threads.contains(&tid()))
        {
            return Err(last);
        }
        drop(failed);
        let done = work();
        failed = self.0.lock();
        match done {
            Err(failure) if failure.may_pass() => {
                failed.last = Some(failure);
                failed.pause_ns = (2 * failed.pause_ns).clamp(FIRST_NS, MOST_NS);
                failed.due_ns = clock::mono_ns() + failed.pause_ns;
                let _ = failed.threads.try_push(tid());
            }
            _ if failed.last.is_some() => *failed = Failed::default(),
            _ => {}
        }
        done
    }

    /// The next one tries, whoever it is.
    pub fn forget(&self) {
        *self.0.lock() = Failed::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vramtrace_format::StopReason;

    #[test]
    fn every_other_thread_tries_once_and_a_success_ends_that() {
        let attempts = Attempts::default();
        let failure = Failure { reason: StopReason::WriteFailed, errno: libc::EACCES };
        let tried = |outcome: Result<(), Failure>| {
            let mut tried = false;
            let result = attempts.run(|| {
                tried = true;
                outcome
            });
            (tried, result.is_ok())
        };
        let elsewhere =
            |outcome| std::thread::scope(|scope| scope.spawn(|| tried(outcome)).join().unwrap());
        assert_eq!(tried(Err(failure)), (true, false));
        assert_eq!(elsewhere(Err(failure)), (true, false));
        // So long that the time between two attempts is not over.
        attempts.0.lock().due_ns = u64::MAX;
        assert_eq!(tried(Ok(())), (false, false));
        attempts.0.lock().due_ns = 0;
        assert_eq!(tried(Err(failure)), (true, false), "the time is over");
        attempts.0.lock().due_ns = u64::MAX;
        assert_eq!(elsewhere(Ok(())), (true, true));
        assert_eq!(tried(Ok(())), (true, true));
        let full = Failure { reason: StopReason::DiskFull, errno: libc::ENOSPC };
        assert_eq!(tried(Err(full)), (true, false));
        assert_eq!(tried(Ok(())), (true, true), "no fault of a thread's");
    }
}
