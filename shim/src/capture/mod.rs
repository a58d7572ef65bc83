//! The call stack behind an event: taken on the thread that makes the call, after the driver's call,
//! with none of the recorder's locks held (builds with assertions check this). A capture waits neither for
//! the interpreter's lock nor for the loader's. Its only call into Python returns the thread's state.
//!
//! | step | where |
//! |---|---|
//! | how far the stack can be read | [`stack_bounds`] |
//! | buffers and caches | [`workspace`] |
//! | C and C++ frames | [`native`] |
//! | Python frames | [`python`] |
//! | which of these runs which of those | [`join`] |
//! | the forward operation of a stack in PyTorch's backward pass | [`autograd`] |
//! | one number for each stack | [`stack_interner`] |
//!
//! Most native stacks are not walked: [`native::walk_log`] finds them by the words that earlier walks used.
//!
//! A stack is written once. A 64-bit fingerprint of return addresses, code objects and instructions
//! finds its number. Where a library takes the place of another, fingerprints change, and stacks are
//! written again.
//!
//! Where a stack cannot be determined its id is 0; a partial stack has a flag.

pub mod autograd;
pub mod definitions;
pub mod fingerprint;
pub mod join;
pub mod native;
pub mod python;
pub mod stack_interner;
pub mod workspace;

use crate::capture::autograd::Autograd;
use crate::capture::definitions::DefinitionSink;
use crate::capture::fingerprint::mix;
use crate::capture::stack_interner::{Stack, StackInterner};
use crate::config::{Config, Stacks};
use crate::interpose::dlopen::opened;
use crate::runtime::lock::{Guard, Lock, debug_assert_none_held};
use crate::runtime::log;
use crate::runtime::mapped_modules;
use crate::runtime::mapped_modules::Seen;
use crate::runtime::{own_stack, stack_bounds};
use native::Registers;
use native::walk_log::StackPrint;
use python::walk::{Frames, Group, Walked};
use python::{Found, Python};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use vramtrace_format::stackspec::Tensors;
use vramtrace_format::{Definition, Join, StackFlags, StackId};
use workspace::{Workspace, Workspaces};

/// What the capture of a repeated Python stack reads comes first, on one line of the cache.
#[repr(C, align(64))]
pub struct Capture {
    wants: Stacks,
    /// Of PyTorch's blocks.
    tensors: Tensors,
    /// Number of times that a library was found at the addresses of another one.
    replaced: AtomicU32,
    python: Python,
    workspaces: Workspaces,
    /// `None`: by setting, or because a kind of stacks that it needs is not taken.
    autograd: Option<Autograd>,
    interner: Lock<StackInterner>,
    /// Captures so far in which no interpreter was found (used where native stacks are off).
    looked: AtomicU32,
    native_off_reported: AtomicBool,
}

/// Most bytes of definitions: a quarter of the trace's limit, but no more than this.
const ROOM_MOST: u64 = 1 << 30;

/// Which of the enabled frames a capture takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Enough {
    All,
    /// Python frames; native ones where there are none.
    Python,
    /// The same for a node of PyTorch's autograd graph that is being made. Where there are no Python frames the result is
    /// the forward operation of the node that makes it.
    Node,
}

/// The print of frames that were walked.
fn print_of(frames: &[native::Frame], cut: bool) -> StackPrint {
    StackPrint::of(frames.iter().map(|frame| frame.address), cut)
}

impl Capture {
    pub fn new(config: &Config) -> Capture {
        Capture {
            wants: config.stacks,
            tensors: config.tensors,
            replaced: AtomicU32::new(0),
            python: Python::default(),
            workspaces: Workspaces::default(),
            autograd: config.wants_forward().then(Autograd::default),
            interner: Lock::new(StackInterner::new(config.max.map_or(ROOM_MOST, |max| max / 4))),
            looked: AtomicU32::new(0),
            native_off_reported: AtomicBool::new(false),
        }
    }

    /// Number of distinct stacks so far.
    pub fn stacks(&self) -> u64 {
        self.interner.lock().stacks()
    }

    /// Captures the stack of this thread's current call and returns its id.
    #[inline]
    pub fn stack(&self, sink: &impl DefinitionSink) -> StackId {
        debug_assert_none_held();
        if !self.wants.wanted() || !sink.is_recording() {
            return StackId(0);
        }
        self.take(sink, Enough::All)
    }

    /// The same for a block of PyTorch's cache. There are many of these, so native frames are left out
    /// where Python frames are found.
    #[inline(always)]
    pub fn block_stack(&self, sink: &impl DefinitionSink) -> StackId {
        debug_assert_none_held();
        if !self.wants.wanted() || !sink.is_recording() {
            return StackId(0);
        }
        match self.tensors {
            Tensors::Full => self.take(sink, Enough::All),
            Tensors::Python | Tensors::Off => self.python_first(sink, Enough::Python),
        }
    }

    /// A node of PyTorch's autograd graph is made on this thread, and PyTorch's function at `get_and_increment` has given
    /// it this number.
    #[inline]
    pub fn node_made(&self, number: u64, get_and_increment: usize, sink: &impl DefinitionSink) {
        debug_assert_none_held();
        let Some(autograd) = &self.autograd else { return };
        if !sink.is_recording() || !self.python.is_readable() {
            return;
        }
        autograd.node_made(number, get_and_increment, || self.python_first(sink, Enough::Node));
    }

    /// Out of line: most of its callers' calls take no stack, or need no room for this one.
    #[inline(never)]
    fn python_first(&self, sink: &impl DefinitionSink, enough: Enough) -> StackId {
        match self.known_python() {
            Some(id) => id,
            None => self.take(sink, enough),
        }
    }

    /// The id of a stack of Python frames that this thread had recently: the same result as
    /// [`Capture::take`], in fewer steps.
    #[inline(always)]
    fn known_python(&self) -> Option<StackId> {
        if !self.wants.python {
            return None;
        }
        let mut work = self.workspaces.take()?;
        let Workspace { frame_cache, recent, .. } = &mut *work;
        let python = self.python.fingerprint(frame_cache, self.wants.python_depth)?;
        let mut flags = StackFlags::default();
        flags.add(StackFlags::NATIVE_OFF);
        recent.get(self.fingerprint_with(python, flags, StackPrint::default()))
    }

    /// The fingerprint of a stack, from that of its Python frames.
    #[inline(always)]
    fn fingerprint_with(&self, python: u64, flags: StackFlags, native: StackPrint) -> u64 {
        let seed = u64::from(self.replaced.load(Ordering::Acquire)) << 8 | u64::from(flags.0);
        mix(native.fingerprint(seed), python).max(1)
    }

    #[inline(never)]
    fn take(&self, sink: &impl DefinitionSink, enough: Enough) -> StackId {
        let from = Registers::here();
        let Some(high) = stack_bounds::high(from.sp) else { return StackId(0) };
        own_stack::run(|| self.take_from(from, high, sink, enough)).unwrap_or(StackId(0))
    }

    #[inline(always)]
    fn take_from(
        &self,
        from: Registers,
        high: usize,
        sink: &impl DefinitionSink,
        enough: Enough,
    ) -> StackId {
        let Some(mut work) = self.workspaces.take() else { return StackId(0) };
        let Workspace {
            walker,
            changes,
            walk_log,
            native,
            frame_cache,
            python,
            groups,
            joins,
            recent,
        } = &mut *work;
        let mut flags = StackFlags::default();

        // A library that is loaded again at its old addresses must be defined again, and a new one may
        // be mistaken for the one before it.
        let now = (self.replaced.load(Ordering::Acquire), opened());
        if *changes != now {
            walker.forget();
            self.looked.store(0, Ordering::Relaxed);
            *changes = now;
        }
        let seen = |seen: Seen| self.define_found(sink, seen);

        let frame_cache = match self.wants.python {
            true => self.python.fingerprint(frame_cache, self.wants.python_depth),
            false => None,
        };
        let mut walk_python =
            || self.python.walk(Frames { frames: &mut python[..self.wants.python_depth], groups });
        let python_only = enough != Enough::All;
        let wanted = self.wants.python && python_only && frame_cache.is_none();
        let first = (wanted && self.python.is_seen()).then(&mut walk_python);
        let has_python = matches!(first, Some(Ok(Found::Frames(walked))) if walked.frames > 0)
            || (frame_cache.is_some() && python_only);
        let all_native = native;
        let native = &mut all_native[..self.wants.native_depth];
        let mut print = StackPrint::default();
        // `None`: there are none, or the log knows them.
        let mut in_buffer: Option<native::Walked> = None;
        if self.wants.native && !has_python && self.can_unwind(sink) {
            if let Some(known) = walker.find(from, high, native.len(), walk_log) {
                print = known;
                if cfg!(debug_assertions) && walker.is_check_due() {
                    let walked = walker.walk(from, high, native, walk_log, seen);
                    assert_eq!(print_of(&native[..walked.frames], walked.cut), known);
                    let addresses = native[..walked.frames].iter().map(|frame| frame.address);
                    assert!(walk_log.addresses().eq(addresses));
                }
            } else {
                let walked = walker.walk(from, high, native, walk_log, seen);
                print = print_of(&native[..walked.frames], walked.cut);
                in_buffer = Some(walked);
            }
            if print.cut {
                flags.add(StackFlags::NATIVE_CUT);
            }
        } else {
            flags.add(StackFlags::NATIVE_OFF);
            if self.wants.python && !self.python.is_seen() && self.is_probe_due() {
                walker.walk(from, high, all_native, walk_log, seen);
            }
        }
        let native = &mut all_native[..self.wants.native_depth];

        // Most stacks are found in this table.
        let mut known = None;
        if let Some(frame_cache) = frame_cache {
            let fingerprint = self.fingerprint_with(frame_cache, flags, print);
            if let Some(id) = recent.get(fingerprint) {
                if in_buffer.is_some() {
                    walker.came_before();
                }
                return id;
            }
            known = Some(fingerprint);
        }

        let found = match self.wants.python {
            true => first.unwrap_or_else(walk_python),
            false => Ok(Found::Off),
        };
        let mut walked = Walked::default();
        match found.unwrap_or_else(|why| self.give_up(sink, why)) {
            Found::Off => flags.add(StackFlags::PYTHON_OFF),
            Found::NoThread => flags.add(StackFlags::NO_PYTHON_THREAD),
            Found::Frames(none) if none.frames == 0 => flags.add(StackFlags::NO_PYTHON_FRAMES),
            Found::Frames(some) => {
                walked = some;
                if walked.cut {
                    flags.add(StackFlags::PYTHON_CUT);
                }
            }
        }

        let forward = match &self.autograd {
            Some(autograd) if walked.frames == 0 => match &in_buffer {
                Some(all) => {
                    autograd.forward_of(native[..all.frames].iter().map(|frame| frame.address))
                }
                None => autograd.forward_of(walk_log.addresses().take(print.frames)),
            },
            _ => StackId(0),
        };
        if enough == Enough::Node && walked.frames == 0 {
            return forward;
        }

        let seed = u64::from(self.replaced.load(Ordering::Acquire)) << 8 | u64::from(flags.0);
        let seed = seed ^ u64::from(forward.0) << 40;
        let pythons = &python[..walked.frames];
        let fingerprint = python::walk::fingerprint(print.fingerprint(seed), pythons).max(1);
        let known = known.unwrap_or(fingerprint);
        if known == fingerprint
            && let Some(id) = recent.get(fingerprint)
        {
            if in_buffer.is_some() {
                walker.came_before();
            }
            return id;
        }
        let in_buffer = match in_buffer {
            None if print.frames > 0 => walker.walk(from, high, native, walk_log, seen),
            None => native::Walked { frames: 0, cut: false, high },
            Some(all) => all,
        };
        let frames = &native[..in_buffer.frames];
        // Joins are computed for new stacks only: equal frames have equal joins.
        let joined = self.join(frames, in_buffer.high, flags, (&walked, groups), joins);
        let stack =
            Stack { flags, native: frames, python: pythons, joins: &joins[..joined], forward };
        let id = self.intern(sink, fingerprint, &stack);
        if id != StackId(0) {
            recent.put(known, id);
        }
        id
    }

    #[cold]
    fn join(
        &self,
        native: &[native::Frame],
        end: usize,
        flags: StackFlags,
        (walked, groups): (&Walked, &[Group]),
        joins: &mut [Join],
    ) -> usize {
        if native.is_empty() || walked.frames == 0 {
            return 0;
        }
        match self.python.interpreter().and_then(|found| found.loops.as_ref()) {
            Some(loops) => {
                let cut = (flags.has(StackFlags::NATIVE_CUT), walked.cut);
                join::by_loop(native, loops, walked.frames, cut, joins)
            }
            None => join::by_address(native, end, &groups[..walked.groups], joins),
        }
    }

    #[cold]
    fn intern(&self, sink: &impl DefinitionSink, fingerprint: u64, stack: &Stack) -> StackId {
        let define = |definition: &Definition| sink.define_located(definition);
        let interpreter = self.python.interpreter();
        let interned = self.interner.lock().stack(fingerprint, stack, interpreter, define);
        if interned.full {
            define_note(
                sink,
                "too many different stacks: all further ones are recorded as one".to_string(),
            );
        }
        interned.id
    }

    /// The table of stacks, code objects and libraries.
    pub fn interner(&self) -> Guard<'_, StackInterner> {
        self.interner.lock()
    }

    /// Defines code that a walk found for the first time.
    #[cold]
    fn define_found(&self, sink: &impl DefinitionSink, seen: Seen) {
        let define = |definition: &Definition| sink.define_located(definition);
        let replaced = match seen {
            Seen::Made(_) if !self.wants.native => false,
            Seen::Made(code) => self.interner.lock().made(code, define),
            Seen::Library(loaded, headers) => {
                // SAFETY: one of its functions is on this thread's stack.
                let object = unsafe { loaded.object() };
                // Another interpreter's numbers of code objects may be the same.
                let replaces = || {
                    self.interner.lock().forget_codes();
                    self.replaced.fetch_add(1, Ordering::Release);
                };
                if self.wants.python
                    && let Err(why) = self.python.register(&object, (loaded, headers), replaces)
                {
                    self.give_up(sink, &why.to_string());
                }
                // SAFETY: one of its functions is on this thread's stack, so it is loaded.
                self.wants.native && unsafe { self.interner.lock().module(loaded, headers, define) }
            }
        };
        if replaced {
            self.replaced.fetch_add(1, Ordering::Release);
        }
    }

    #[inline]
    fn can_unwind(&self, sink: &impl DefinitionSink) -> bool {
        if mapped_modules::can_ask() {
            return true;
        }
        if !self.native_off_reported.swap(true, Ordering::Relaxed) {
            let why =
                "native stacks are off: they need glibc 2.28 or later with a known loader layout";
            define_note(sink, why.to_string());
        }
        false
    }

    /// True at the 1st, 2nd, 4th, 8th... call.
    fn is_probe_due(&self) -> bool {
        (self.looked.fetch_add(1, Ordering::Relaxed) + 1).is_power_of_two()
    }

    #[cold]
    fn give_up(&self, sink: &impl DefinitionSink, why: &str) -> Found {
        define_note(sink, format!("Python stacks are off: {why}"));
        Found::Off
    }
}

/// Prints a line on stderr and writes it to the trace.
#[cold]
fn define_note(sink: &impl DefinitionSink, text: String) {
    log::line(format_args!("{text}"));
    sink.define_located(&Definition::Note { text });
}
