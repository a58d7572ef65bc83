//! Refusals that a library did not report to its caller: NVSHMEM, NCCL and others go on, and the program
//! meets another error later. The recorder keeps the next call that fails.

use vramtrace_format::oom::{Cause, Figures, OtherLimit};
use vramtrace_format::{Stamped, ThreadId};

use crate::analysis::StackClassifier;
use crate::replay::RefusalAt;
use crate::trace::Definitions;

/// More are not kept.
const MOST: usize = 64;

/// A call that failed, and not by want of memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FailedCall {
    pub time_ns: u64,
    pub thread: ThreadId,
    pub api: u16,
    pub result: i32,
}

/// A refusal, and the error that came next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Swallowed {
    pub refusal: RefusalAt,
    pub error: FailedCall,
    /// What the process ended with; `None`: 0, or it did not end in order.
    pub status: Option<i32>,
}

impl Swallowed {
    /// Whose limit it was.
    pub fn cause(&self, definitions: &Definitions) -> Cause {
        let other = OtherLimit::of(|name| definitions.setting(name));
        Figures::of_refused(&self.refusal.refused, other).cause()
    }

    /// The library that was refused. `None`: it is the program itself, or PyTorch, which report a
    /// refusal; or it is not known.
    pub fn library<'c>(&self, classifier: &'c StackClassifier) -> Option<&'c str> {
        let roles = classifier.roles(self.refusal.refused.stack);
        classifier.library_name(&roles).filter(|_| classifier.is_of_a_library(&roles))
    }
}

/// Watches while a trace is replayed.
#[derive(Clone, Debug, Default)]
pub struct SwallowedObserver {
    last: Option<RefusalAt>,
    found: Vec<Swallowed>,
}

impl SwallowedObserver {
    /// A request for device memory got nothing.
    pub fn refused(&mut self, refusal: RefusalAt) {
        self.last = Some(refusal);
    }

    pub fn failed(&mut self, at: &Stamped, api: u16, result: i32) {
        if let Some(refusal) = self.last.take()
            && self.found.len() < MOST
        {
            let error = FailedCall { time_ns: at.time_ns, thread: at.thread, api, result };
            self.found.push(Swallowed { refusal, error, status: None });
        }
    }

    pub fn ended(&mut self, status: i32) {
        if let Some(last) = self.found.last_mut() {
            last.status = Some(status);
        }
    }

    pub fn finish(self) -> Vec<Swallowed> {
        self.found
    }
}
