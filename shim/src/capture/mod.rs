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
use crate::runtime::log::{self, Once};
use crate::runtime::mapped_modules;
use crate::runtime::mapped_modules::Seen;
use crate::runtime::{own_stack, stack_bounds};
use native::State;
use native::walk_log::StackPrint;
use python::walk::{Frames, Group, Walked};
use python::{Found, Python};
use std::sync::atomic::{AtomicU32, Ordering};
use vramtrace_format::stackspec::{DEEPEST, Tensors};
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

/// Where a capture begins, and the end of this thread's stack.
#[derive(Clone, Copy)]
struct Start {
    from: State,
    high: usize,
}

/// The native frames of a capture.
struct NativePart {
    print: StackPrint,
    /// `None`: the frames are not in the buffer. There are none, or the log knows them.
    walked: Option<native::Walked>,
    flags: StackFlags,
}

/// The Python frames of a capture.
#[derive(Clone, Copy)]
struct PythonPart {
    print: u64,
    /// `None`: the cache knows them, and they are not in the buffer. There is at least one.
    walked: Option<Walked>,
    flags: StackFlags,
}

impl PythonPart {
    fn is_empty(&self) -> bool {
        self.walked.is_some_and(|walked| walked.frames == 0)
    }
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
        }
    }

    /// Number of distinct stacks so far.
    pub fn stacks(&self) -> u64 {
        self.interner.lock().stacks()
    }

    /// Captures the stack of this thread's current call and returns its id.
    #[inline]
    pub fn stack(&self, sink: &impl DefinitionSink) -> StackId {
        if !self.is_due(sink) { StackId(0) } else { self.take(sink, Enough::All) }
    }

    /// The same for a block of PyTorch's cache. There are many of these, so native frames are left out
    /// where Python frames are found.
    #[inline(always)]
    pub fn block_stack(&self, sink: &impl DefinitionSink) -> StackId {
        match self.tensors {
            _ if !self.is_due(sink) => StackId(0),
            Tensors::Full => self.take(sink, Enough::All),
            Tensors::Python | Tensors::Off => self.python_first(sink, Enough::Python),
        }
    }

    #[inline(always)]
    fn is_due(&self, sink: &impl DefinitionSink) -> bool {
        debug_assert_none_held();
        self.wants.wanted() && sink.is_recording()
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
        self.known_python().unwrap_or_else(|| self.take(sink, enough))
    }

    /// The id of a stack of Python frames that this thread had recently: the same result as
    /// [`Capture::take`], in fewer steps.
    #[inline(always)]
    fn known_python(&self) -> Option<StackId> {
        let mut work = self.workspaces.take()?;
        let python = self.cached_python(&mut work)?;
        let (flags, none) = (StackFlags::NATIVE_OFF, StackPrint::default());
        work.recent.get(self.fingerprint(flags, none, python.print, StackId(0)))
    }

    /// The fingerprint of a stack, from those of its parts.
    #[inline(always)]
    fn fingerprint(
        &self,
        flags: StackFlags,
        native: StackPrint,
        python: u64,
        forward: StackId,
    ) -> u64 {
        let seed = u64::from(self.replaced.load(Ordering::Acquire)) << 8 | u64::from(flags.0);
        mix(native.fingerprint(seed ^ u64::from(forward.0) << 40), python).max(1)
    }

    #[inline(never)]
    fn take(&self, sink: &impl DefinitionSink, enough: Enough) -> StackId {
        let from = State::here();
        let Some(high) = stack_bounds::high(from.sp) else { return StackId(0) };
        let start = Start { from, high };
        own_stack::run(|| self.take_from(start, sink, enough)).unwrap_or(StackId(0))
    }

    #[inline(always)]
    fn take_from(&self, start: Start, sink: &impl DefinitionSink, enough: Enough) -> StackId {
        let Some(mut work) = self.workspaces.take() else { return StackId(0) };
        let work = &mut *work;
        self.forget_what_changed(work);
        let cached = self.cached_python(work);
        // A walk of native frames may find the interpreter: where all frames are wanted it comes first.
        let first = match enough {
            Enough::Python | Enough::Node if cached.is_none() && self.python.is_seen() => {
                Some(self.walk_python(work, sink))
            }
            _ => cached,
        };
        let is_python_enough = enough != Enough::All && first.is_some_and(|part| !part.is_empty());
        let native = match self.wants.native && !is_python_enough && Self::can_unwind(sink) {
            true => self.native(work, start, sink),
            false => self.without_native(work, start, sink),
        };
        let python = first.unwrap_or_else(|| self.walk_python(work, sink));
        let forward = if python.is_empty() { self.forward(work, &native) } else { StackId(0) };
        if enough == Enough::Node && python.is_empty() {
            return forward;
        }
        let mut flags = native.flags;
        flags.add(python.flags);
        // Most stacks are found in this table.
        let fingerprint = self.fingerprint(flags, native.print, python.print, forward);
        if let Some(id) = work.recent.get(fingerprint) {
            if native.walked.is_some() {
                work.walker.came_before();
            }
            return id;
        }
        let id = self.define(work, start, sink, native, python, forward);
        if id != StackId(0) {
            work.recent.put(fingerprint, id);
        }
        id
    }

    /// A library that is loaded again at its old addresses must be defined again, and a new one may
    /// be mistaken for the one before it.
    #[inline(always)]
    fn forget_what_changed(&self, work: &mut Workspace) {
        let now = (self.replaced.load(Ordering::Acquire), opened());
        if work.changes != now {
            work.walker.forget();
            self.looked.store(0, Ordering::Relaxed);
            work.changes = now;
        }
    }

    /// The Python frames, if the thread had them recently.
    #[inline(always)]
    fn cached_python(&self, work: &mut Workspace) -> Option<PythonPart> {
        if !self.wants.python {
            return None;
        }
        let print = self.python.fingerprint(&mut work.frame_cache, self.wants.python_depth)?;
        Some(PythonPart { print, walked: None, flags: StackFlags::default() })
    }

    #[inline]
    fn walk_python(&self, work: &mut Workspace, sink: &impl DefinitionSink) -> PythonPart {
        let Workspace { python: frames, groups, .. } = work;
        let out = Frames { frames: &mut frames[..self.wants.python_depth], groups };
        let (walked, flags) = match self.wants.python {
            true => self.python.walk(out).unwrap_or_else(|why| self.give_up(sink, why)),
            false => (Walked::default(), StackFlags::PYTHON_OFF),
        };
        let print = python::walk::fingerprint(&frames[..walked.frames]);
        PythonPart { print, walked: Some(walked), flags }
    }

    #[inline(always)]
    fn native(&self, work: &mut Workspace, start: Start, sink: &impl DefinitionSink) -> NativePart {
        let Workspace { walker, walk_log, .. } = work;
        let known = walker.find(start.from, start.high, self.wants.native_depth, walk_log);
        let is_checked = cfg!(debug_assertions) && walker.is_check_due();
        let (print, walked) = match known {
            Some(known) if !is_checked => (known, None),
            _ => {
                let walked = self.walk_native(work, start, sink, self.wants.native_depth);
                let print = StackPrint::of(work.addresses(walked.frames), walked.cut);
                if let Some(known) = known {
                    assert_eq!(print, known);
                    assert!(work.walk_log.addresses().eq(work.addresses(walked.frames)));
                }
                (print, known.is_none().then_some(walked))
            }
        };
        let flags = if print.cut { StackFlags::NATIVE_CUT } else { StackFlags::default() };
        NativePart { print, walked, flags }
    }

    /// From time to time it looks for an interpreter, also where native frames are not taken.
    #[inline]
    fn without_native(
        &self,
        work: &mut Workspace,
        start: Start,
        sink: &impl DefinitionSink,
    ) -> NativePart {
        if self.wants.python && !self.python.is_seen() && self.is_probe_due() {
            self.walk_native(work, start, sink, DEEPEST);
        }
        NativePart { print: StackPrint::default(), walked: None, flags: StackFlags::NATIVE_OFF }
    }

    #[inline]
    fn walk_native(
        &self,
        work: &mut Workspace,
        Start { from, high }: Start,
        sink: &impl DefinitionSink,
        most: usize,
    ) -> native::Walked {
        let Workspace { walker, walk_log, native, .. } = work;
        walker.walk(from, high, &mut native[..most], walk_log, |seen| self.define_found(sink, seen))
    }

    /// The forward operation of a stack without Python frames.
    #[inline]
    fn forward(&self, work: &Workspace, native: &NativePart) -> StackId {
        match (&self.autograd, native.walked) {
            (None, _) => StackId(0),
            (Some(autograd), Some(walked)) => autograd.forward_of(work.addresses(walked.frames)),
            (Some(autograd), None) => {
                autograd.forward_of(work.walk_log.addresses().take(native.print.frames))
            }
        }
    }

    /// The id of a stack that this thread did not have recently. It is written to the trace if it is new.
    #[cold]
    fn define(
        &self,
        work: &mut Workspace,
        start: Start,
        sink: &impl DefinitionSink,
        native: NativePart,
        python: PythonPart,
        forward: StackId,
    ) -> StackId {
        let all = match native.walked {
            Some(walked) => walked,
            None if native.print.frames > 0 => {
                self.walk_native(work, start, sink, self.wants.native_depth)
            }
            None => native::Walked { frames: 0, cut: false, high: start.high },
        };
        // The common table has stacks by the fingerprint of a walk.
        let PythonPart { print, walked, flags: of_python } = match python.walked {
            Some(_) => python,
            None => self.walk_python(work, sink),
        };
        let walked = walked.unwrap_or_default();
        let mut flags = native.flags;
        flags.add(of_python);
        let fingerprint = self.fingerprint(flags, native.print, print, forward);
        let Workspace { native: frames, python: pythons, groups, joins, .. } = work;
        let (frames, pythons) = (&frames[..all.frames], &pythons[..walked.frames]);
        let joined = self.join(frames, all.high, flags, (&walked, groups), joins);
        let stack =
            Stack { flags, native: frames, python: pythons, joins: &joins[..joined], forward };
        let define = |definition: &Definition| sink.define_located(definition);
        let interpreter = self.python.interpreter();
        let interned = self.interner.lock().stack(fingerprint, &stack, interpreter, define);
        if interned.full {
            define_note(sink, "too many different stacks: all further ones are recorded as one");
        }
        interned.id
    }

    /// Joins are computed for new stacks only: equal frames have equal joins.
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

    /// The table of stacks, code objects and libraries.
    pub fn interner(&self) -> Guard<'_, StackInterner> {
        self.interner.lock()
    }

    /// Defines code that a walk found for the first time.
    #[cold]
    fn define_found(&self, sink: &impl DefinitionSink, seen: Seen) {
        let define = |definition: &Definition| sink.define_located(definition);
        match seen {
            Seen::Made(_) if !self.wants.native => {}
            Seen::Made(code) => {
                let mut interner = self.interner.lock();
                self.count_replaced(interner.made(code, define));
            }
            Seen::Library(loaded, image) => {
                // SAFETY: one of its functions is on this thread's stack.
                let object = unsafe { loaded.object() };
                // Another interpreter's numbers of code objects may be the same.
                let replaces = || {
                    let mut interner = self.interner.lock();
                    interner.forget_codes();
                    self.count_replaced(true);
                };
                if self.wants.python
                    && let Err(why) = self.python.register(&object, (loaded, image), replaces)
                {
                    self.give_up(sink, &why.to_string());
                }
                if self.wants.native {
                    let mut interner = self.interner.lock();
                    // SAFETY: one of its functions is on this thread's stack, so it is loaded.
                    self.count_replaced(unsafe { interner.module(loaded, image, define) });
                }
            }
        }
    }

    /// Under the interner's lock: a thread to which the new library is known counts it, too.
    fn count_replaced(&self, replaced: bool) {
        if replaced {
            self.replaced.fetch_add(1, Ordering::Release);
        }
    }

    #[inline]
    fn can_unwind(sink: &impl DefinitionSink) -> bool {
        if mapped_modules::can_ask() {
            return true;
        }
        if Once::NoNativeStacks.begins() {
            let why =
                "native stacks are off: they need glibc 2.28 or later with a known loader layout";
            define_note(sink, why);
        }
        false
    }

    /// True at the 1st, 2nd, 4th, 8th... call.
    fn is_probe_due(&self) -> bool {
        (self.looked.fetch_add(1, Ordering::Relaxed) + 1).is_power_of_two()
    }

    #[cold]
    fn give_up(&self, sink: &impl DefinitionSink, why: &str) -> Found {
        define_note(sink, &format!("Python stacks are off: {why}"));
        (Walked::default(), StackFlags::PYTHON_OFF)
    }
}

/// Prints a line on stderr and writes it to the trace.
#[cold]
fn define_note(sink: &impl DefinitionSink, text: &str) {
    log::line(format_args!("{text}"));
    sink.define_located(&Definition::Note { text: text.to_string() });
}
