//! Refusals that a library did not report to its caller. NVSHMEM, NCCL and others continue, and a later call
//! fails with another error. The recorder writes the next call that fails.

use vramtrace_format::oom::{Cause, Figures, OtherLimit};
use vramtrace_format::{Stamped, ThreadId};

use crate::analysis::StackClassifier;
use crate::replay::RefusalAt;
use crate::trace::Definitions;

/// The most that are kept.
const MOST: usize = 64;

/// A call that failed with another error than out of memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FailedCall {
    pub time_ns: u64,
    pub thread: ThreadId,
    pub api: u16,
    pub result: i32,
}

/// A refusal, and the next error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Swallowed {
    pub refusal: RefusalAt,
    pub error: FailedCall,
    /// The exit status of the process; `None`: 0, or it did not end in order.
    pub status: Option<i32>,
}

impl Swallowed {
    /// The limit that refused the request.
    pub fn cause(&self, definitions: &Definitions) -> Cause {
        let other = OtherLimit::of(|name| definitions.setting(name));
        Figures::of_refused(&self.refusal.refused, other).cause()
    }

    /// The library that was refused. `None`: it is the program itself, or PyTorch, which report a
    /// refusal; or it is not known.
    pub fn library<'c>(&self, classifier: &'c StackClassifier) -> Option<&'c str> {
        let roles = classifier.roles(self.refusal.refused.stack);
        classifier.library_name(&roles).filter(|_| classifier.is_other_library(&roles))
    }
}

/// Collects them during a replay.
#[derive(Clone, Debug, Default)]
pub struct SwallowedObserver {
    last: Option<RefusalAt>,
    found: Vec<Swallowed>,
}

impl SwallowedObserver {
    /// A request for device memory was refused.
    pub fn refused(&mut self, refusal: RefusalAt) {
        self.last = Some(refusal);
    }

    /// The first call after a refusal failed with another error.
    pub fn failed(&mut self, at: &Stamped, api: u16, result: i32) {
        if let Some(refusal) = self.last.take()
            && self.found.len() < MOST
        {
            let error = FailedCall { time_ns: at.time_ns, thread: at.thread, api, result };
            self.found.push(Swallowed { refusal, error, status: None });
        }
    }

    /// The process ended with this exit status.
    pub fn ended(&mut self, status: i32) {
        if let Some(last) = self.found.last_mut() {
            last.status = Some(status);
        }
    }

    pub fn finish(self) -> Vec<Swallowed> {
        self.found
    }
}
