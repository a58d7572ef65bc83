//! Fault injection for host memory and mappings, so that tests reach each place where the kernel may refuse them. Only
//! in builds for tests (`config::TEST_HOOKS`); elsewhere every request is granted.
//!
//! | variable | value | what fails |
//! |---|---|---|
//! | `VRAMTRACE_TEST_NO_PAGES` | `7` | the seventh mapping or segment of this process |
//! | | `7-` | that and all later ones |
//! | | `tail` | each of this [`Site`] |
//! | `VRAMTRACE_TEST_NO_MEMORY` | `7`, `7-` | the same for blocks of the heap |
//! | `VRAMTRACE_TEST_NO_TASKS` | `2` | the first two steps of `private_table.rs`: `close_range`, `unshare` |
//! | | `3` | each task, too |
//! | `VRAMTRACE_TEST_NO_MAP` | `1` | no file beside the trace is mapped, as on btrfs and NFS |

use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The purpose of a request for pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// Tables, heap, stacks.
    Pages,
    /// A separate stack.
    Stack,
    /// The page with the pointer to the process's state.
    State,
    /// A window in the tail file.
    Tail,
    /// The live page, where it cannot be shared.
    Live,
    /// Shared memory: the live page, the page of a group.
    Segment,
}

impl Site {
    const fn name(self) -> &'static [u8] {
        match self {
            Site::Pages => b"pages",
            Site::Stack => b"stack",
            Site::State => b"state",
            Site::Tail => b"tail",
            Site::Live => b"live",
            Site::Segment => b"segment",
        }
    }
}

static PAGES: AtomicUsize = AtomicUsize::new(0);
static BLOCKS: AtomicUsize = AtomicUsize::new(0);

/// Whether a request for pages may go to the kernel.
#[inline]
pub fn pages_granted(site: Site) -> bool {
    #[cfg(test)]
    if tests::NO_PAGES.get() {
        return false;
    }
    !cfg!(any(debug_assertions, feature = "test-hooks"))
        || !fails_now(c"VRAMTRACE_TEST_NO_PAGES", &PAGES, site.name())
}

/// Whether the heap may allocate a block without the reserve.
#[inline]
pub fn block_granted() -> bool {
    !cfg!(any(debug_assertions, feature = "test-hooks"))
        || !fails_now(c"VRAMTRACE_TEST_NO_MEMORY", &BLOCKS, b"block")
}

/// Whether a task may take this step to a table of its own.
pub fn task_step_granted(step: u8) -> bool {
    if !cfg!(any(debug_assertions, feature = "test-hooks")) {
        return true;
    }
    // SAFETY: as the C library's; nobody writes the environment while a test's program starts.
    let refused = unsafe { libc::getenv(c"VRAMTRACE_TEST_NO_TASKS".as_ptr()) };
    // SAFETY: a text of the environment.
    refused.is_null() || unsafe { *refused } as u8 & 15 <= step
}

/// Whether a file beside the trace may be mapped, as far as its file system allows it.
pub fn beside_granted() -> bool {
    if !cfg!(any(debug_assertions, feature = "test-hooks")) {
        return true;
    }
    // SAFETY: as the C library's; nobody writes the environment while a test's program starts.
    unsafe { libc::getenv(c"VRAMTRACE_TEST_NO_MAP".as_ptr()) }.is_null()
}

fn fails_now(variable: &CStr, requests: &AtomicUsize, site: &[u8]) -> bool {
    // SAFETY: as the C library's; nobody writes the environment while a test's program starts.
    let wanted = unsafe { libc::getenv(variable.as_ptr()) };
    if wanted.is_null() {
        return false;
    }
    // SAFETY: a text of the environment.
    let wanted = unsafe { CStr::from_ptr(wanted) }.to_bytes();
    if !wanted.first().is_some_and(u8::is_ascii_digit) {
        return wanted == site;
    }
    let number = wanted.strip_suffix(b"-").unwrap_or(wanted);
    let first = number.iter().fold(0, |sum, digit| 10 * sum + usize::from(digit & 15));
    let this = requests.fetch_add(1, Relaxed) + 1;
    this == first || (this > first && number.len() < wanted.len())
}

#[cfg(test)]
pub mod tests {
    thread_local! {
        /// Makes every request for pages on this thread fail.
        pub static NO_PAGES: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    }
}
