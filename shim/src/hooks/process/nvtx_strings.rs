//! The strings and domains that the program registered with NVTX, by handle.

use crate::runtime::log::{self, Once};
use crate::runtime::reserve;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

const REGISTERED: usize = 1 << 12;

/// Strings that the program registered, by handle from 1. They outlive forks, and are never freed.
static STRINGS: [AtomicPtr<String>; REGISTERED] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; REGISTERED];
static STRING_COUNT: AtomicUsize = AtomicUsize::new(0);

/// The handle of a string or domain; never 0.
pub fn register(name: &str) -> usize {
    let at = STRING_COUNT.load(Ordering::Relaxed);
    // Without memory it has no name.
    if at >= REGISTERED || reserve::is_used() {
        if at >= REGISTERED && Once::NvtxStrings.begins() {
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
    fn those_without_a_handle_have_no_name() {
        let handles: Vec<usize> =
            (0..REGISTERED + 10).map(|number| register(&format!("domain {number}"))).collect();
        assert_eq!(registered(handles[7]), "domain 7");
        assert_eq!(registered(handles[REGISTERED + 9]), "");
    }
}
