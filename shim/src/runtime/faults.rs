//! Fault injection for host memory and mappings, so that tests reach each place where the kernel may refuse them. Only
//! in builds for tests (`config::TEST_HOOKS`); elsewhere every request is granted.
//!
//! | variable | value | what fails |
//! |---|---|---|
//! | `VRAMTRACE_TEST_NO_PAGES` | `7` | the seventh mapping or segment of this process |
//! | | `7-` | that and all later ones |
//! | | `tail` | each of this purpose: see the callers of [`pages_granted`] |
//! | `VRAMTRACE_TEST_NO_MEMORY` | `7`, `7-` | the same for blocks of the heap |
//! | `VRAMTRACE_TEST_NO_TASKS` | `1` | the first step of `private_table.rs`: `close_range` |
//! | | `2` | each task, too |
//! | `VRAMTRACE_TEST_NO_MAP` | `1` | no file beside the trace is mapped, as on btrfs and NFS |
//!
//! `VRAMTRACE_TEST_NVML_FREE=1`: a reading of NVML counts as one that took no time. Else a busy machine makes readings rare.

use crate::runtime::environment;
use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static PAGES: AtomicUsize = AtomicUsize::new(0);
static BLOCKS: AtomicUsize = AtomicUsize::new(0);

/// Whether a request for pages of this purpose may go to the kernel.
#[inline]
pub fn pages_granted(purpose: &str) -> bool {
    #[cfg(test)]
    if tests::NO_PAGES.get() {
        return false;
    }
    !fails_now(c"VRAMTRACE_TEST_NO_PAGES", &PAGES, purpose)
}

/// Whether the heap may allocate a block without the reserve.
#[inline]
pub fn block_granted() -> bool {
    !fails_now(c"VRAMTRACE_TEST_NO_MEMORY", &BLOCKS, "block")
}

/// Whether a task may take this step to a separate table.
pub fn task_step_granted(step: u8) -> bool {
    variable(c"VRAMTRACE_TEST_NO_TASKS").is_none_or(|refused| refused[0] & 15 <= step)
}

/// Whether a file beside the trace may be mapped, as far as its file system allows it.
pub fn beside_granted() -> bool {
    variable(c"VRAMTRACE_TEST_NO_MAP").is_none()
}

/// The time that a reading of NVML counts as.
pub fn reading_cost_ns(took_ns: u64) -> u64 {
    variable(c"VRAMTRACE_TEST_NVML_FREE").map_or(took_ns, |_| 0)
}

/// The value of a variable for tests, if it is set and not empty.
fn variable(name: &CStr) -> Option<&'static [u8]> {
    if !cfg!(any(debug_assertions, feature = "test-hooks")) {
        return None;
    }
    environment::variable(name).map(CStr::to_bytes).filter(|value| !value.is_empty())
}

fn fails_now(name: &CStr, requests: &AtomicUsize, purpose: &str) -> bool {
    let Some(wanted) = variable(name) else { return false };
    if !wanted[0].is_ascii_digit() {
        return wanted == purpose.as_bytes();
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
