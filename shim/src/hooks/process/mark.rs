//! Phases that the program marks. They are recorded as they come. Ranges that are opened before the
//! process uses a GPU are kept in a small table; those still open at the first use are recorded then.

use crate::hooks::process::state::Process;
use crate::hooks::process::texts::mark_id;
use crate::runtime::fallible::TryPush;
use crate::runtime::lock::Lock;
use crate::runtime::log;
use crate::runtime::reserve;
use crate::runtime::thread_slot::tid;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use vramtrace_format::{Event, Mark};

/// Bytes of a name that are kept.
pub const LONGEST: usize = 200;
/// Registered strings and domains.
const REGISTERED: usize = 1 << 12;
/// Ranges that were opened before the process had a state.
const EARLY: usize = 64;

/// `domain/name`, cut to [`LONGEST`] bytes.
fn whole(domain: usize, name: &str) -> String {
    let mut whole = match registered(domain) {
        "" => name.to_string(),
        domain if name.is_empty() => domain.to_string(),
        domain => format!("{domain}/{name}"),
    };
    let mut end = whole.len().min(LONGEST);
    while !whole.is_char_boundary(end) {
        end -= 1;
    }
    whole.truncate(end);
    whole
}

fn write(process: &Process, name: u32, mark: Mark) {
    process.trace_writer.record(&Event::Mark { name, mark });
}

pub fn moment(process: Option<&'static Process>, domain: usize, name: &str) {
    if let Some(process) = known(process) {
        write(process, mark_id(process, &whole(domain, name)), Mark::Moment);
    }
}

/// Returns 0 for the range's depth: NVTX's callers do not use it.
pub fn push(process: Option<&'static Process>, domain: usize, name: &str) -> i32 {
    let name = whole(domain, name);
    match known(process) {
        Some(process) => write(process, mark_id(process, &name), Mark::Push),
        None => Early::push(name, None),
    }
    0
}

pub fn pop(process: Option<&'static Process>, _domain: usize) -> i32 {
    match known(process) {
        Some(process) => write(process, 0, Mark::Pop),
        None => Early::pop(),
    }
    0
}

/// Returns the range's number: the id of its name, if the process has a state.
pub fn start(process: Option<&'static Process>, domain: usize, name: &str) -> u64 {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    let name = whole(domain, name);
    match known(process) {
        Some(process) => {
            let id = mark_id(process, &name);
            write(process, id, Mark::Start);
            u64::from(id) << 32
        }
        None => {
            let number = NEXT.fetch_add(1, Ordering::Relaxed) as u64 & u64::from(u32::MAX);
            Early::push(name, Some(number));
            number
        }
    }
}

pub fn end(process: Option<&'static Process>, range: u64) {
    let Some(process) = known(process) else { return Early::end(range) };
    let name = match range >> 32 {
        // It began before the process had a state.
        0 => EARLY_NAMES
            .try_lock()
            .and_then(|names| names.iter().find(|(number, _)| *number == range).map(|n| n.1))
            .unwrap_or(0),
        name => name as u32,
    };
    write(process, name, Mark::End);
}

/// Records the ranges that were opened early, as soon as the process has a state.
fn known(process: Option<&'static Process>) -> Option<&'static Process> {
    if let Some(process) = process
        && EARLY_COUNT.load(Ordering::Relaxed) > 0
    {
        record_early_ranges(process);
    }
    process
}

struct Early {
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
    fn push(name: String, number: Option<u64>) {
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

    fn pop() {
        if let Some(mut open) = EARLY_OPEN.try_lock()
            && let Some(early) = Early::innermost(&mut open)
            && early.inside > 0
        {
            early.inside -= 1;
            return;
        }
        Early::remove(|early| early.number.is_none() && early.thread == tid());
    }

    fn end(number: u64) {
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

/// Records this thread's ranges, and those that belong to no thread. Each other thread records its own.
pub fn record_early_ranges(process: &'static Process) {
    if EARLY_COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
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
        let id = mark_id(process, &early.name);
        match early.number {
            None => write(process, id, Mark::Push),
            Some(number) => {
                write(process, id, Mark::Start);
                if let Some(mut names) = EARLY_NAMES.try_lock() {
                    let _ = names.try_push((number, id));
                }
            }
        }
    }
}

/// Strings that the program registered, by handle from 1. They outlive forks, and are never freed.
static STRINGS: [AtomicPtr<String>; REGISTERED] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; REGISTERED];
static STRING_COUNT: AtomicUsize = AtomicUsize::new(0);

/// The handle of a string or domain; never 0.
pub fn register(name: &str) -> usize {
    let at = STRING_COUNT.load(Ordering::Relaxed);
    // Without memory it has no name.
    if at >= REGISTERED || reserve::is_used() {
        static SAID: AtomicBool = AtomicBool::new(false);
        if at >= REGISTERED && !SAID.swap(true, Ordering::Relaxed) {
            log::line(format_args!(
                "more than {REGISTERED} registered NVTX strings and domains: further ones have no name"
            ));
        }
        return REGISTERED + 1;
    }
    let at = STRING_COUNT.fetch_add(1, Ordering::Relaxed);
    if let Some(slot) = STRINGS.get(at) {
        slot.store(Box::into_raw(Box::new(name.to_string())), Ordering::Release);
    }
    at + 1
}

/// Empty for what is no handle.
pub fn registered(handle: usize) -> &'static str {
    let slot = handle.checked_sub(1).and_then(|at| STRINGS.get(at));
    let string = slot.map_or(std::ptr::null_mut(), |slot| slot.load(Ordering::Acquire));
    // SAFETY: null, or leaked.
    unsafe { string.as_ref() }.map_or("", String::as_str)
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
            push(None, 0, &format!("depth {depth}"));
        }
        let deepest = format!("depth {}", EARLY - 1);
        for _ in 0..6 {
            assert_eq!(kept().as_deref(), Some(&*deepest));
            pop(None, 0);
        }
        assert_eq!(kept(), Some(deepest));
        pop(None, 0);
        assert_eq!(kept(), Some(format!("depth {}", EARLY - 2)));
        for _ in 1..EARLY {
            pop(None, 0);
        }
        assert_eq!(kept(), None);
    }

    #[test]
    fn strings_without_a_handle_have_no_name() {
        let handles: Vec<usize> =
            (0..REGISTERED + 10).map(|number| register(&format!("domain {number}"))).collect();
        assert_eq!(registered(handles[7]), "domain 7");
        assert_eq!(registered(handles[REGISTERED + 9]), "");
        assert_eq!(whole(handles[REGISTERED + 9], "name"), "name");
    }
}
