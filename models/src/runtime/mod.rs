//! Replaces the recorder's module of this name.

pub mod atomics;

/// A futex without a kernel: a thread that would sleep yields.
pub mod futex {
    use super::atomics::AtomicU32;

    pub fn wait(_: &AtomicU32, _: u32, _: std::time::Duration) {
        loom::thread::yield_now();
    }

    pub fn wake_one(_: &AtomicU32) {}
}

#[path = "../../../shim/src/runtime/lock.rs"]
pub mod lock;

#[path = "../../../shim/src/runtime/fallible.rs"]
pub mod fallible;
#[path = "../../../shim/src/runtime/hash_table.rs"]
pub mod hash_table;

/// Every request for memory is granted.
pub mod faults {
    pub fn pages_granted(_: &str) -> bool {
        true
    }
}

/// One word for all threads: loom runs one thread at a time, and switches at atomic operations only.
pub mod tls {
    macro_rules! thread_cells {
        (fn $name:ident() -> &$type:ty, $($rest:tt)*) => {
            fn $name() -> &'static $type {
                static WORD: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
                // SAFETY: a cell of at most eight bytes, which one thread at a time uses.
                unsafe { &*WORD.as_ptr().cast() }
            }
        };
    }
    pub(crate) use thread_cells;

    loom::thread_local! {
        static NUMBER: usize = {
            static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(1);
            NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
        };
    }

    /// As if each thread had a page of its own.
    pub fn thread_pointer() -> usize {
        NUMBER.with(|number| number << 12)
    }
}

/// The libraries of a process: there are none here.
pub mod mapped_modules {
    use std::ffi::CStr;

    #[derive(Clone, Copy)]
    pub struct Loaded {
        pub start: usize,
        pub end: usize,
    }

    pub struct Object;

    impl Object {
        pub fn path(&self) -> &'static CStr {
            c""
        }
    }

    impl Loaded {
        /// # Safety
        /// As the recorder's.
        pub unsafe fn object(&self) -> Object {
            Object
        }
    }
}

pub mod elf {
    pub struct Image {
        pub base: usize,
        pub build_id: &'static [u8],
    }
}
