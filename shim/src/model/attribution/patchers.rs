//! The libraries that replaced the beginning of exported functions of this library: calls of these functions go through
//! them. They hand on the requests of others, so memory belongs to what called them.

use crate::runtime::fallible::TryPush;
use crate::runtime::lock::Lock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Most libraries that are kept. A further one is noted in the trace only.
const MOST: usize = 16;

pub struct Patchers {
    /// Paths, as the loader has them.
    libraries: Lock<Vec<String>>,
    /// A bit for each function.
    noted: [AtomicU64; Patchers::FUNCTIONS / 64],
    /// Time of the last look before a refusal; 0: none.
    looked_ns: AtomicU64,
    /// Functions without a note that the last look found.
    found: AtomicUsize,
}

/// Least time between two looks before refusals: a program may be refused in each step.
const LOOK_EVERY_NS: u64 = 100_000_000;

impl Default for Patchers {
    fn default() -> Patchers {
        let noted = [const { AtomicU64::new(0) }; Patchers::FUNCTIONS / 64];
        Patchers {
            libraries: Lock::new(Vec::new()),
            noted,
            looked_ns: AtomicU64::new(0),
            found: AtomicUsize::new(0),
        }
    }
}

impl Patchers {
    /// Functions that are told apart.
    pub const FUNCTIONS: usize = 1024;

    /// Whether functions are looked at before this refusal.
    #[inline]
    pub fn is_due(&self, now_ns: u64) -> bool {
        let last = self.looked_ns.load(Relaxed);
        let is_due = last == 0 || now_ns >= last.saturating_add(LOOK_EVERY_NS);
        if is_due {
            self.looked_ns.store(now_ns.max(1), Relaxed);
        }
        is_due
    }

    /// Whether a look finds as many functions without a note as the last one.
    pub fn is_settled(&self, found: usize) -> bool {
        self.found.swap(found, Relaxed) == found
    }

    /// Whether the function with this number was noted before.
    #[inline]
    pub fn is_noted(&self, function: usize) -> bool {
        let bit = 1 << (function % 64);
        self.noted.get(function / 64).is_none_or(|word| word.load(Relaxed) & bit != 0)
    }

    /// Notes that the function with this number was replaced. True for one thread.
    pub fn note(&self, function: usize) -> bool {
        let bit = 1 << (function % 64);
        self.noted.get(function / 64).is_some_and(|word| word.fetch_or(bit, Relaxed) & bit == 0)
    }

    /// Adds the library at this path. False: it is known, or there is no room.
    pub fn add(&self, path: &str) -> bool {
        let mut libraries = self.libraries.lock();
        let is_new = libraries.len() < MOST && !libraries.iter().any(|known| known == path);
        is_new && libraries.try_push(path.to_string()).is_ok()
    }

    /// The paths of the libraries.
    pub fn libraries(&self) -> Vec<String> {
        self.libraries.lock().clone()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_function_and_library_is_new_once() {
        let patchers = Patchers::default();
        assert!(!patchers.is_noted(70) && patchers.note(70) && !patchers.note(70));
        assert!(patchers.is_noted(70) && !patchers.is_noted(6) && !patchers.is_noted(71));
        assert!(
            !patchers.note(Patchers::FUNCTIONS) && patchers.is_noted(Patchers::FUNCTIONS),
            "no such function"
        );
        assert!(patchers.add("/x/a.so") && !patchers.add("/x/a.so") && patchers.add("/x/b.so"));
        assert_eq!(patchers.libraries(), ["/x/a.so", "/x/b.so"]);
        for n in 0..MOST {
            patchers.add(&format!("/x/{n}.so"));
        }
        assert_eq!(patchers.libraries().len(), MOST);
    }

    #[test]
    fn what_is_found_is_settled_once_no_more_is_found() {
        let patchers = Patchers::default();
        let settled = [1, 3, 4, 4].map(|found| patchers.is_settled(found));
        assert_eq!(settled, [false, false, false, true]);
    }
}
