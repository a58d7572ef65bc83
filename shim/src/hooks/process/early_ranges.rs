//! Ranges that the program opens before it uses a GPU, in a small table. Those still open at the first use are recorded
//! then.

use crate::hooks::process::texts::mark_id;
use crate::model::names::Names;
use crate::runtime::fallible::TryPush;
use crate::runtime::lock::Lock;
use crate::runtime::log;
use crate::runtime::thread_slot::tid;
use crate::trace_writer::TraceWriter;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use vramtrace_format::Mark;

/// Ranges that were opened before the process had a state.
const EARLY: usize = 64;

/// A range that is open.
pub struct Early {
    thread: i32,
    name: String,
    /// Ranges that this thread opened inside, and that the table had no room for.
    inside: u32,
    /// Set for a range that any thread may end.
    number: Option<u64>,
}

static EARLY_COUNT: AtomicUsize = AtomicUsize::new(0);
static EARLY_SAID: AtomicBool = AtomicBool::new(false);
static EARLY_OPEN: Lock<Vec<Early>> = Lock::new(Vec::new());
/// Early ranges that any thread may end, and their names in the trace.
static EARLY_NAMES: Lock<Vec<(u64, u32)>> = Lock::new(Vec::new());

/// In a forked child the lock may be held by a thread that does not exist there, so it is never waited
/// for.
impl Early {
    pub fn push(name: String, number: Option<u64>) {
        let Some(mut open) = EARLY_OPEN.try_lock() else { return };
        if open.len() < EARLY {
            let _ = open.try_push(Early { thread: tid(), name, inside: 0, number });
            EARLY_COUNT.store(open.len(), Ordering::Relaxed);
            return;
        }
        // Its pop must not end the range around it.
        if number.is_none()
            && let Some(around) = Early::innermost(&mut open)
        {
            around.inside += 1;
        }
        drop(open);
        if !EARLY_SAID.swap(true, Ordering::Relaxed) {
            log::line(format_args!(
                "more than {EARLY} ranges are open before the process uses a GPU: further ones are not \
                 recorded"
            ));
        }
    }

    fn innermost(open: &mut [Early]) -> Option<&mut Early> {
        let thread = tid();
        open.iter_mut().rfind(|early| early.number.is_none() && early.thread == thread)
    }

    pub fn pop() {
        if let Some(mut open) = EARLY_OPEN.try_lock()
            && let Some(early) = Early::innermost(&mut open)
            && early.inside > 0
        {
            early.inside -= 1;
            return;
        }
        Early::remove(|early| early.number.is_none() && early.thread == tid());
    }

    pub fn end(number: u64) {
        Early::remove(|early| early.number == Some(number));
    }

    fn remove(which: impl Fn(&Early) -> bool) {
        let Some(mut open) = EARLY_OPEN.try_lock() else { return };
        if let Some(at) = open.iter().rposition(which) {
            open.remove(at);
            EARLY_COUNT.store(open.len(), Ordering::Relaxed);
        }
    }
}

/// The id of the name of an early range that any thread may end; 0 if it was not recorded.
pub fn name_of(range: u64) -> u32 {
    let named =
        |names: &Vec<(u64, u32)>| names.iter().find(|(number, _)| *number == range).map(|n| n.1);
    EARLY_NAMES.try_lock().and_then(|names| named(&names)).unwrap_or(0)
}

/// Records this thread's ranges, and those that belong to no thread. Each other thread records its own.
#[inline]
pub fn record(names: &Names, writer: &TraceWriter, mark: impl Fn(u32, Mark)) {
    if EARLY_COUNT.load(Ordering::Relaxed) > 0 {
        record_open(names, writer, mark);
    }
}

#[cold]
fn record_open(names: &Names, writer: &TraceWriter, mark: impl Fn(u32, Mark)) {
    let Some(mut open) = EARLY_OPEN.try_lock() else { return };
    let thread = tid();
    let mut mine = Vec::new();
    let mut index = 0;
    while index < open.len() {
        match open[index].number.is_some() || open[index].thread == thread {
            true => drop(mine.try_push(open.remove(index))),
            false => index += 1,
        }
    }
    EARLY_COUNT.store(open.len(), Ordering::Relaxed);
    drop(open);
    for early in mine {
        let id = mark_id(names, writer, &early.name);
        match early.number {
            None => mark(id, Mark::Push),
            Some(number) => {
                mark(id, Mark::Start);
                if let Some(mut names) = EARLY_NAMES.try_lock() {
                    let _ = names.try_push((number, id));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_are_not_kept_end_no_others() {
        let kept = || {
            let open = EARLY_OPEN.lock();
            open.iter().rfind(|early| early.thread == tid()).map(|early| early.name.clone())
        };
        for depth in 0..EARLY + 6 {
            Early::push(format!("depth {depth}"), None);
        }
        let deepest = format!("depth {}", EARLY - 1);
        for _ in 0..6 {
            assert_eq!(kept().as_deref(), Some(&*deepest));
            Early::pop();
        }
        assert_eq!(kept(), Some(deepest));
        Early::pop();
        assert_eq!(kept(), Some(format!("depth {}", EARLY - 2)));
        for _ in 1..EARLY {
            Early::pop();
        }
        assert_eq!(kept(), None);
    }
}
