//! What the recorder's sources find under this name.

pub mod atomics;

/// Without a kernel: who would sleep lets the others run.
pub mod futex {
    use super::atomics::AtomicU32;

    pub fn wait(_: &AtomicU32, _: u32, _: std::time::Duration) {
        loom::thread::yield_now();
    }

    pub fn wake_one(_: &AtomicU32) {}
}

#[path = "../../../shim/src/runtime/lock.rs"]
pub mod lock;
