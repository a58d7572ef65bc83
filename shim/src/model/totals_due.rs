//! Each device's next call about a block is to write the totals: the request, and what stops calls from being passed until it
//! is met.
//!
//! Who asks makes the request ([`Request::ask`]), then lets no call pass ([`Passing::stop`]). A call that is not passed lets
//! calls pass again ([`Passing::allow`]), then looks for a request ([`Request::is_new`]). If it does not see one that is being
//! made, its exchange comes before that of `stop`, and the next call is not passed. In the other order, or weaker, both
//! may miss each other: then calls pass, and the totals stay unwritten. `models/src/tests/totals_due.rs` checks this.
//!
//! The calls of a device come one at a time (under PyTorch's lock); several threads may ask at once.

use crate::runtime::atomics::{AtomicBool, AtomicU32, Ordering};

/// How often the totals of all devices were asked for.
pub struct Request(AtomicU32);

/// The request that a device's call met last; 0: it had no call yet.
#[derive(Default)]
pub struct Met(AtomicU32);

impl Default for Request {
    /// The first call of each device is asked for.
    fn default() -> Request {
        Request(AtomicU32::new(1))
    }
}

impl Request {
    pub fn ask(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether there is a request that the device's calls have not met; it is met from now on.
    #[inline]
    pub fn is_new(&self, met: &Met) -> bool {
        let asked = self.0.load(Ordering::Acquire);
        if met.0.load(Ordering::Relaxed) == asked {
            return false;
        }
        met.0.store(asked, Ordering::Relaxed);
        true
    }
}

impl Met {
    /// Whether the device had a call.
    pub fn is_any(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

/// Whether calls of a device may be passed. All zero: not.
#[derive(Default)]
#[repr(transparent)]
pub struct Passing(AtomicBool);

impl Passing {
    #[inline(always)]
    pub fn may(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub fn allow(&self) {
        self.0.swap(true, Ordering::AcqRel);
    }

    pub fn stop(&self) {
        // An exchange, as in `allow`: with each other they have one order, and each acquires all requests before it.
        self.0.swap(false, Ordering::AcqRel);
    }
}
