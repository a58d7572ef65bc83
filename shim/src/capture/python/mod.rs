//! Reads the Python stack of this thread. The only call into Python returns the thread's state; no lock
//! of the interpreter is taken, and nothing is allocated.
//!
//! Frames are read at the offsets of the known versions ([`layout`]). The first walk is a self-test: it
//! reads through the kernel, which returns an error where a load would fault ([`memory`]). If a value
//! is not as expected, Python stacks are turned off, with one line on stderr.

pub mod code;
pub mod frame_cache;
mod frame_reader;
mod freed_codes;
pub mod layout;
pub mod memory;
mod others;
pub mod walk;

use crate::capture::python::frame_cache::FrameCache;
use crate::runtime::elf::{Image, Object};
use crate::runtime::found::{self, Fact, Library, hold};
use crate::runtime::lock::Lock;
use crate::runtime::mapped_modules::Loaded;
use layout::{Chain, Layout, LayoutError};
use memory::{Careful, Memory, Plain};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use vramtrace_format::StackFlags;
use walk::{Frames, Walked};

/// The interpreter of this process, once it was found. It may be unloaded, and another one be found later.
#[derive(Default)]
#[repr(C)]
pub struct Python {
    interpreter: found::Found<Interpreter>,
    /// One whose frames cannot be read.
    unreadable: found::Found<()>,
    finding: Lock<()>,
}

/// Not tested yet: read through the kernel.
const UNTRIED: u8 = 0;
const TRUSTED: u8 = 1;
/// Not the expected layout: never read again.
const OFF: u8 = 2;

/// What each capture reads comes first, on two lines of the cache with what precedes it in a [`Fact`].
#[repr(C)]
pub struct Interpreter {
    /// See [`FrameCache::fingerprint`].
    has_frames_for_cache: bool,
    state: AtomicU8,
    /// Where the interpreter's variable is.
    finalizing: usize,
    /// From 3.12 on it returns the state that the thread ran last; before that the thread's first one, also in a
    /// sub-interpreter.
    this_thread: extern "C" fn() -> *mut c_void,
    code_type: usize,
    pub layout: Layout,
    /// Address range of the interpreter loop's code (up to 3.10, where each Python frame has its own
    /// loop).
    pub loops: Option<Range<usize>>,
}

/// A thread's Python frames, and what is to be said of them.
pub type Found = (Walked, StackFlags);

fn some(walked: Walked) -> Found {
    match walked {
        Walked { frames: 0, .. } => (walked, StackFlags::NO_PYTHON_FRAMES),
        Walked { cut: true, .. } => (walked, StackFlags::PYTHON_CUT),
        _ => (walked, StackFlags::default()),
    }
}

impl Python {
    /// Whether an interpreter is known, or Python stacks are off.
    pub fn is_seen(&self) -> bool {
        self.interpreter.get().is_some() || self.unreadable.get().is_some()
    }

    /// Whether the interpreter is known, and its frames can be read.
    #[inline]
    pub fn is_readable(&self) -> bool {
        self.interpreter.get().is_some_and(|found| found.state.load(Ordering::Relaxed) != OFF)
    }

    /// The interpreter that was found last. What it has of its library's addresses may be read only if that is loaded.
    pub fn interpreter(&self) -> Option<&'static Interpreter> {
        self.interpreter.last().map(|found| &found.value)
    }

    /// Looks for the interpreter in a library that was found on a stack. `Err`: it is an interpreter
    /// whose frames cannot be read; Python stacks are then off, which is returned once. `replaces`: it takes the place of one that
    /// was unloaded.
    #[cold]
    pub fn register(
        &self,
        object: &Object,
        (loaded, image): (&Loaded, &Image),
        replaces: impl FnOnce(),
    ) -> Result<(), LayoutError> {
        if self.is_seen() {
            return Ok(());
        }
        let Some(found) = Interpreter::of(object) else { return Ok(()) };
        let _one_at_a_time = self.finding.lock();
        if self.is_seen() {
            return Ok(());
        }
        let library = |mark| [Library::new(loaded, image, mark); 2];
        let interpreter = match found {
            Ok(interpreter) => interpreter,
            Err(why) => {
                let was_said = self.unreadable.last().is_some();
                self.unreadable.put(library(None), ());
                return if was_said { Ok(()) } else { Err(why) };
            }
        };
        if self.interpreter.last().is_some() {
            replaces();
        }
        freed_codes::end();
        let layout = &interpreter.layout;
        let mark = (layout.minor <= 13 && !layout.is_free_threaded())
            // SAFETY: its variable of this name. A function of it is on this thread's stack, and the one found before is gone.
            .then(|| unsafe { freed_codes::count_frees(object, interpreter.code_type) })
            .flatten();
        self.interpreter.put(library(mark), interpreter);
        Ok(())
    }

    /// The fingerprint of this thread's Python stack, if it has one that can be computed from the cached frames. `most`: frames
    /// that are kept.
    #[inline(always)]
    pub fn fingerprint(&self, quick: &mut FrameCache, most: usize) -> Option<u64> {
        let found = self.interpreter.last()?;
        let interpreter = &found.value;
        if interpreter.state.load(Ordering::Acquire) != TRUSTED || !interpreter.has_frames_for_cache
        {
            return None;
        }
        let thread = thread_of(found)??;
        let freed = freed_codes::all();
        quick.fingerprint(&interpreter.layout, interpreter.code_type, thread, most, freed)
    }

    /// `Err`: the self-test failed (returned once).
    #[inline]
    pub fn walk(&self, out: Frames<'_>) -> Result<Found, &'static str> {
        let (off, none) = (StackFlags::PYTHON_OFF, StackFlags::NO_PYTHON_THREAD);
        let without = |why| Ok((Walked::default(), why));
        let Some(found) = self.interpreter.last() else {
            return without(if self.unreadable.get().is_some() { off } else { none });
        };
        let interpreter = &found.value;
        let state = interpreter.state.load(Ordering::Acquire);
        if state == OFF {
            return without(off);
        }
        match thread_of(found) {
            None => without(off),
            Some(None) => without(none),
            Some(Some(thread)) if state == UNTRIED => interpreter.try_out(thread, out),
            Some(Some(thread)) => match interpreter.walk(&Plain, thread, out) {
                Some(walked) => Ok(some(walked)),
                None => without(off),
            },
        }
    }
}

impl Interpreter {
    /// `None`: this is no interpreter.
    fn of(object: &Object) -> Option<Result<Interpreter, LayoutError>> {
        let symbol = |name: &str| object.symbol(name.as_bytes());
        let function = |name: &str| {
            type Function = extern "C" fn() -> *mut c_void;
            // SAFETY: the interpreter's function of this name and type. The functions used here only
            // read variables of the interpreter, in any of its states.
            symbol(name).map(|(at, _)| unsafe { std::mem::transmute::<usize, Function>(at) })
        };
        if let Some(name) = others::name(object) {
            return Some(Err(LayoutError::OtherInterpreter(name)));
        }
        let this_thread = function("PyGILState_GetThisThreadState")?;
        let (runtime, _) = symbol("_PyRuntime")?;
        let (code_type, _) = symbol("PyCode_Type")?;
        let version = match symbol("Py_Version") {
            // SAFETY: an unsigned long of the interpreter.
            Some((at, _)) => unsafe { *(at as *const u64) as u32 },
            None => {
                let text = function("Py_GetVersion")?;
                // SAFETY: it returns a C string in any state of the interpreter.
                let text = unsafe { CStr::from_ptr(text() as *const c_char) };
                version(text.to_str().ok()?)?
            }
        };
        let layout = match Layout::of(version, runtime) {
            Ok(layout) => layout,
            Err(why) => return Some(Err(why)),
        };
        let finalizing = runtime + layout.finalizing;
        if !finalizing.is_multiple_of(align_of::<AtomicUsize>()) {
            return Some(Err(LayoutError::UnknownRuntime));
        }
        let ask = symbol("Py_IsFinalizing").or_else(|| symbol("_Py_IsFinalizing"));
        // SAFETY: the interpreter's function of this name and type, which reads a variable.
        let ask = ask
            .map(|(at, _)| unsafe { std::mem::transmute::<usize, extern "C" fn() -> c_int>(at) });
        // SAFETY: a word of the interpreter's variable.
        let is_finalizing = unsafe { is_set(finalizing) };
        if ask.is_some_and(|ask| (ask() != 0) != is_finalizing) {
            return Some(Err(LayoutError::UnknownRuntime));
        }
        let loops = symbol("_PyEval_EvalFrameDefault")
            .filter(|_| layout.chain == Chain::Objects)
            .map(|(at, size)| at..at + size);
        Some(Ok(Interpreter {
            has_frames_for_cache: !layout.is_free_threaded(),
            state: AtomicU8::new(UNTRIED),
            layout,
            code_type,
            this_thread,
            finalizing,
            loops,
        }))
    }

    /// This thread's state, if it has one. `None` while Python finalizes: then the states of other
    /// threads are freed while they run.
    ///
    /// # Safety
    /// The library is loaded, and stays so for the call.
    #[inline]
    unsafe fn thread(&self) -> Option<usize> {
        // SAFETY: a word of the interpreter's variable.
        if unsafe { is_set(self.finalizing) } {
            return None;
        }
        let thread = (self.this_thread)();
        (!thread.is_null()).then_some(thread as usize)
    }

    /// The self-test. `Err`: as [`Python::walk`].
    #[cold]
    fn try_out(&self, thread: usize, out: Frames<'_>) -> Result<Found, &'static str> {
        let tried = Careful::with(|careful| self.try_with(careful, thread, out));
        match tried.unwrap_or(Err("this process may not read its own memory through the kernel")) {
            Err(why) if self.state.swap(OFF, Ordering::AcqRel) != OFF => Err(why),
            Err(_) => Ok((Walked::default(), StackFlags::PYTHON_OFF)),
            Ok(walked) => {
                // Without a frame there was nothing to test.
                let next = if walked.frames > 0 { TRUSTED } else { UNTRIED };
                let order = (Ordering::AcqRel, Ordering::Relaxed);
                let _ = self.state.compare_exchange(UNTRIED, next, order.0, order.1);
                Ok(some(walked))
            }
        }
    }

    fn try_with(
        &self,
        careful: &Careful,
        thread: usize,
        out: Frames<'_>,
    ) -> Result<Walked, &'static str> {
        let Frames { frames, groups } = out;
        let all = Frames { frames: &mut *frames, groups };
        let walked = self.walk(careful, thread, all);
        let walked = walked.ok_or("its frames are not laid out as this version's are")?;
        for frame in &frames[..walked.frames] {
            let code = code::read(careful, &self.layout, frame.code).filter(|code| {
                code.first_line >= 0 && !(code.file.is_empty() && code.name.is_empty())
            });
            code.ok_or("its code objects are not laid out as this version's are")?;
        }
        Ok(walked)
    }

    #[inline]
    fn walk(&self, memory: &impl Memory, thread: usize, out: Frames<'_>) -> Option<Walked> {
        walk::walk(memory, &self.layout, self.code_type, thread, out)
    }
}

/// # Safety
/// A word is there, and stays there for the call.
#[inline(always)]
unsafe fn is_set(word: usize) -> bool {
    // SAFETY: the caller's contract.
    unsafe { &*(word as *const AtomicUsize) }.load(Ordering::Acquire) != 0
}

/// This thread's state; inner `None`: it has none, or the interpreter was unloaded. `None`: something is being unloaded. A
/// thread that runs Python keeps the library loaded; of others it is not known.
#[inline(always)]
fn thread_of(found: &Fact<Interpreter>) -> Option<Option<usize>> {
    match found.is_for_good() {
        // SAFETY: it is never unloaded.
        true => Some(unsafe { found.value.thread() }),
        // SAFETY: it is loaded, and held.
        false => hold(|| found.holds().then(|| unsafe { found.value.thread() }).flatten()),
    }
}

/// `PY_VERSION_HEX` of "3.8.18 (default, ...)"; only the first two numbers matter.
fn version(text: &str) -> Option<u32> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    let major: u32 = numbers.next()?.parse().ok()?;
    let minor: u32 = numbers.next()?.parse().ok()?;
    Some(major << 24 | (minor & 0xff) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::mapped_modules;

    #[test]
    fn a_capture_reads_two_lines_of_the_interpreter() {
        let last = std::mem::offset_of!(Interpreter, layout) + std::mem::offset_of!(Layout, code);
        let place = std::mem::offset_of!(Fact<Interpreter>, value);
        assert!(place + last + size_of::<usize>() <= 2 * 64);
    }

    #[test]
    fn versions_as_text() {
        assert_eq!(version("3.8.18 (default, Jan 1 2024)"), Some(0x0308_0000));
        assert_eq!(version("3.10.0rc1+"), Some(0x030a_0000));
        assert_eq!(version("Python"), None);
    }

    #[test]
    fn the_c_library_is_no_interpreter() {
        let loaded = mapped_modules::holding(libc::getppid as *const () as usize).unwrap();
        // SAFETY: the C library stays.
        let (object, image) = unsafe { (loaded.object(), loaded.image()) };
        let python = Python::default();
        assert_eq!(python.register(&object, (&loaded, &image), || unreachable!()), Ok(()));
        assert!(!python.is_seen());
        let out = Frames { frames: &mut [], groups: &mut [] };
        assert_eq!(python.walk(out), Ok((Walked::default(), StackFlags::NO_PYTHON_THREAD)));
    }
}
