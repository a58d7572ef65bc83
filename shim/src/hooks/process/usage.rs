//! Which entry points without a hook were called, and which calls may have bypassed the hooks.

use crate::config::{Config, TEST_HOOKS};
use crate::driver::api::Api;
use crate::runtime::attention::{self, ESCAPED};
use crate::runtime::escapes::{Escape, escapes};
use crate::runtime::fallible::TryPush;
use crate::runtime::lock::Lock;
use crate::trace_writer::TraceWriter;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use vramtrace_format::{Definition, Event};

pub struct EntryPointUsage {
    /// Entry points without a hook that were called.
    noted: [AtomicBool; Api::COUNT],
    /// The number of the entry point whose hook is to panic once (a test); else `NEVER`.
    panic_at: AtomicU32,
    /// Names that look like allocation functions, that the program looked up, and that are not in the
    /// table.
    unhooked_name: Lock<Vec<Box<[u8]>>>,
    escapes_reported: AtomicU8,
}

/// Numbers of `Definition::Api` from here on are such names.
pub const UNHOOKED: u16 = 0x8000;
const UNHOOKED_MOST: usize = 256;

const NEVER: u32 = u32::MAX;

impl EntryPointUsage {
    pub fn new(config: &Config) -> EntryPointUsage {
        // A forked child records them too.
        if escapes() != 0 {
            attention::ask(ESCAPED);
        }
        let name = config.test_panic.as_deref().unwrap_or("");
        let panic_at = Api::from_name(name.as_bytes()).map_or(NEVER, |api| api as u32);
        EntryPointUsage {
            noted: [const { AtomicBool::new(false) }; Api::COUNT],
            panic_at: AtomicU32::new(panic_at),
            unhooked_name: Lock::new(Vec::new()),
            escapes_reported: AtomicU8::new(0),
        }
    }

    /// Records once that an entry point was passed through.
    pub fn note(&self, trace: &TraceWriter, api: Api) {
        if !self.noted[api as usize].swap(true, Ordering::Relaxed) {
            trace.record(&Event::PassedThrough { api: api as u16 });
        }
    }

    /// Defines a name once in the trace whose function may allocate or free without a hook; `doctor`
    /// lists it.
    #[cold]
    pub fn unhooked_name(&self, trace: &TraceWriter, name: &[u8]) {
        let mut names = self.unhooked_name.lock();
        if names.len() == UNHOOKED_MOST || names.iter().any(|known| **known == *name) {
            return;
        }
        if names.try_push(name.into()).is_err() {
            return;
        }
        let id = UNHOOKED + (names.len() - 1) as u16;
        drop(names);
        let name = String::from_utf8_lossy(name).into_owned();
        trace.define(&Definition::Api { id, name });
    }

    /// Records, once each, what may let calls bypass the hooks.
    #[cold]
    pub fn record_escapes(&self, trace: &TraceWriter) {
        attention::met(ESCAPED);
        let escapes = escapes();
        let reported = self.escapes_reported.fetch_or(escapes, Ordering::Relaxed);
        for escape in Escape::ALL {
            if escapes & !reported & escape as u8 != 0 {
                trace.define(&Definition::Note { text: escape.name().into() });
            }
        }
    }

    /// Whether a test has chosen an entry point for [`EntryPointUsage::test_panic`].
    pub fn is_to_panic(&self) -> bool {
        TEST_HOOKS && self.panic_at.load(Ordering::Relaxed) != NEVER
    }

    /// Panics once at the entry point that the test chose.
    #[inline]
    pub fn test_panic(&self, api: Api) {
        if TEST_HOOKS && self.panic_at.load(Ordering::Relaxed) == api as u32 {
            self.panic_at.store(NEVER, Ordering::Relaxed);
            panic!("asked for by a test");
        }
    }
}
