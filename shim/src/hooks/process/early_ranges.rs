//! Ranges that the program opens before it uses a GPU, in a small table. Those still open at the first use are recorded
//! then.

use crate::hooks::process::state::Process;
use crate::hooks::process::texts::mark_id;
use crate::runtime::fallible::TryPush;
use crate::runtime::lock::Lock;
use crate::runtime::log::{self, Once};
use crate::runtime::thread_slot::tid;
use std::sync::atomic::{AtomicUsize, Ordering};
use vramtrace_format::Mark;

/// Ranges that were opened before the process had a state.
const MOST: usize = 64;

/// A range that is open.
struct Early {
    thread: i32,
    name: String,
    /// Set for a range that any thread may end.
    number: Option<u64>,
}

struct Table {
    open: Vec<Early>,
    /// Ranges that any thread may end and that were recorded, and their names in the trace.
    names: Vec<(u64, u32)>,
    /// The number of the last of these.
    last: u64,
}

static COUNT: AtomicUsize = AtomicUsize::new(0);
static TABLE: Lock<Table> = Lock::new(Table { open: Vec::new(), names: Vec::new(), last: 0 });

/// In a forked child the lock may be held by a thread that does not exist there, so it is never waited
/// for.
fn with<R>(work: impl FnOnce(&mut Table) -> R) -> Option<R> {
    let mut table = TABLE.try_lock()?;
    let result = work(&mut table);
    COUNT.store(table.open.len(), Ordering::Relaxed);
    Some(result)
}

pub fn push(name: String) {
    with(|table| table.add(name, None));
}

/// A range that any thread may end. Returns its number, which has 32 bits at most; 0: it is not known.
pub fn start(name: String) -> u64 {
    let number = with(|table| {
        table.last = (table.last + 1) & u64::from(u32::MAX);
        table.add(name, Some(table.last));
        table.last
    });
    number.unwrap_or(0)
}

impl Table {
    /// If there are too many, all are forgotten: the end of one that is not in the table ends no other.
    fn add(&mut self, name: String, number: Option<u64>) {
        if self.open.len() < MOST {
            return drop(self.open.try_push(Early { thread: tid(), name, number }));
        }
        self.open.clear();
        if Once::EarlyRanges.begins() {
            log::line(format_args!(
                "more than {MOST} ranges are open before the process uses a GPU: they are not recorded"
            ));
        }
    }
}

pub fn pop() {
    remove(|early| early.number.is_none() && early.thread == tid());
}

pub fn end(number: u64) {
    remove(|early| early.number == Some(number));
}

fn remove(which: impl Fn(&Early) -> bool) {
    with(|table| table.open.iter().rposition(which).map(|at| table.open.remove(at)));
}

/// The id of the name of an early range that any thread may end; 0 if it was not recorded.
pub fn name_of(range: u64) -> u32 {
    let named =
        with(|table| table.names.iter().find(|(number, _)| *number == range).map(|it| it.1));
    named.flatten().unwrap_or(0)
}

/// Records this thread's ranges, and those that belong to no thread. Each other thread records its own.
#[inline]
pub fn record(p: &Process) {
    if COUNT.load(Ordering::Relaxed) > 0 {
        record_open(p);
    }
}

#[cold]
fn record_open(p: &Process) {
    let thread = tid();
    let is_mine = |early: &Early| early.number.is_some() || early.thread == thread;
    // One at a time: the lock is not held while it is recorded.
    let next = || {
        let taken = with(|table| {
            let at = table.open.iter().position(is_mine)?;
            Some(table.open.remove(at))
        });
        taken.flatten()
    };
    while let Some(Early { name, number, .. }) = next() {
        let id = mark_id(&p.names, &p.trace_writer, &name);
        match number {
            None => p.mark(id, Mark::Push),
            Some(number) => {
                p.mark(id, Mark::Start);
                with(|table| drop(table.names.try_push((number, id))));
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
            let table = TABLE.lock();
            table.open.iter().rfind(|early| early.thread == tid()).map(|early| early.name.clone())
        };
        for depth in 0..MOST {
            push(format!("depth {depth}"));
        }
        pop();
        assert_eq!(kept(), Some(format!("depth {}", MOST - 2)));
        // Of the last one and all around it only the ends come.
        for depth in 0..2 {
            push(format!("deeper {depth}"));
        }
        assert_eq!(kept(), None);
        push("one more".into());
        assert_eq!(kept().as_deref(), Some("one more"));
        for _ in 0..MOST {
            pop();
        }
        assert_eq!(kept(), None);
    }
}
