//! The state of a traced process: one leaked structure behind one pointer.
//!
//! The pointer lies on a page that the kernel empties in a forked child (MADV_WIPEONFORK, which
//! raw `clone` obeys too): the child finds none, makes its own, and never touches the parent's:
//! its locks may be held by threads that do not exist here, its windows are the parent's file.
//! Beside it is what the most frequent calls read and write, in a few lines of the cache (`hot_page.rs`). What else does not
//! hang on the state is listed in `statics.rs`.

use crate::capture::Capture;
use crate::config::Config;
use crate::hooks::process::device_query;
use crate::hooks::process::early_ranges;
use crate::hooks::process::hot_page::{self, HotPage};
use crate::hooks::process::live_sites::LiveSites;
use crate::hooks::process::nvml_reading::reader::NvmlReader;
use crate::hooks::process::oom::OomReporter;
use crate::hooks::process::patched_entries::PatchedEntries;
use crate::hooks::process::timed::HookCost;
use crate::hooks::process::usage::EntryPointUsage;
use crate::hooks::process::without_state;
use crate::model::block_sampling::BlockSampling;
use crate::model::cap::Cap;
use crate::model::contexts::Contexts;
use crate::model::devices::Devices;
use crate::model::exports::Exports;
use crate::model::graphs::Graphs;
use crate::model::history::Phases;
use crate::model::launched_kernels::LaunchedKernels;
use crate::model::ledger::Ledger;
use crate::model::names::Names;
use crate::model::pools::Pools;
use crate::model::sites::Sites;
use crate::model::stream_captures::StreamCaptures;
use crate::model::stream_targets::StreamTargets;
use crate::model::torch_lanes::CaptureNumbers;
use crate::model::torch_totals::TorchTotals;
use crate::model::vmm::Vmm;
use crate::runtime::clock::{self, ProcessClock};
use crate::runtime::elf;
use crate::runtime::found;
use crate::runtime::lock::{Left, Lock};
use crate::runtime::log::{self, Once};
use crate::runtime::own_stack;
use crate::runtime::uncancelled::uncancelled;
use crate::trace_writer::TraceWriter;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use vramtrace_format::{Definition, Event, Mark, StopReason};

/// What each call reads comes first, side by side.
#[repr(C)]
pub struct Process {
    pub clock: ProcessClock,
    pub stream_targets: StreamTargets,
    pub stream_captures: StreamCaptures,
    pub cap: Cap,
    pub config: Config,
    pub usage: EntryPointUsage,
    pub cost: HookCost,
    pub sites: Sites,
    pub trace_writer: TraceWriter,
    pub capture: Capture,
    pub ledger: Ledger,
    pub pools: Pools,
    pub graphs: Graphs,
    pub torch_totals: TorchTotals,
    /// `None`: all of PyTorch's blocks are recorded, or none.
    pub block_sampling: Option<BlockSampling>,
    pub torch_captures: CaptureNumbers,
    pub oom: OomReporter,
    pub live_sites: LiveSites,
    pub devices: Devices,
    pub contexts: Contexts,
    pub launched_kernels: LaunchedKernels,
    pub vmm: Vmm,
    /// The order in which threads open and close IPC handles: the ledger's entry counts the opens.
    pub imports: Lock<()>,
    pub exports: Exports,
    pub nvml: NvmlReader,
    pub names: Names,
    pub phases: Phases,
    pub patched_entries: PatchedEntries,
}

impl Process {
    /// Initialised field by field in place: the whole structure is larger than the stacks of some
    /// threads.
    fn boxed() -> Box<Process> {
        let config = Config::from_environment();
        if config.test_panic.as_deref() == Some("state") {
            panic!("asked for by a test");
        }
        let mut process = Box::<Process>::new_uninit();
        let at = process.as_mut_ptr();
        macro_rules! put {
            ($($field:ident: $value:expr,)*) => {
                // Fails to compile if a field is missing in the list.
                let _all = |Process { $($field: _),* }: Process| ();
                // SAFETY: each field is written once, in its own place.
                unsafe { $( put(&raw mut (*at).$field, || $value); )* }
            };
        }
        put! {
            usage: EntryPointUsage::new(&config),
            cost: HookCost::default(),
            trace_writer: TraceWriter::new(&config),
            clock: (*at).trace_writer.clock(),
            sites: Sites::default(),
            capture: Capture::new(&config),
            ledger: Ledger::default(),
            cap: Cap::new(config.rules.clone(), device_query::ask),
            pools: Pools::default(),
            graphs: Graphs::default(),
            stream_captures: StreamCaptures::default(),
            block_sampling: block_sampling(&config),
            torch_totals: TorchTotals::new((*at).block_sampling.as_ref().map(|of| of.figures())),
            torch_captures: CaptureNumbers::default(),
            oom: OomReporter::default(),
            live_sites: LiveSites::default(),
            stream_targets: StreamTargets::default(),
            devices: Devices::default(),
            contexts: Contexts::default(),
            launched_kernels: LaunchedKernels::default(),
            vmm: Vmm::default(),
            imports: Lock::new(()),
            exports: Exports::default(),
            nvml: NvmlReader::default(),
            names: Names::new(config.max),
            phases: Phases::new(config.max),
            patched_entries: PatchedEntries::default(),
            config: config,
        }
        // SAFETY: every field was written above.
        unsafe { process.assume_init() }
    }
}

impl Process {
    /// Records a mark of the program. `name`: the id of its text.
    pub fn mark(&self, name: u32, mark: Mark) {
        self.phases.mark(&self.ledger, self.clock.now_ns(), name, mark);
        self.trace_writer.record(&Event::Mark { name, mark });
    }
}

/// Not inlined, so that one value at a time is on the stack.
///
/// # Safety
/// `at` is writable, aligned and holds no value yet.
#[inline(never)]
unsafe fn put<T>(at: *mut T, make: impl FnOnce() -> T) {
    // SAFETY: `at` is writable and aligned (see above); nothing is overwritten that would have to be
    // dropped.
    unsafe { at.write(make()) }
}

/// Its random numbers are its own: nothing of the program's is used.
fn block_sampling(config: &Config) -> Option<BlockSampling> {
    if !config.samples_blocks() {
        return None;
    }
    let seed = clock::real_mono_ns() ^ u64::from(std::process::id()) << 40;
    Some(BlockSampling::new(&hot().figures, seed, config.overhead))
}

static PAGE: HotPage<Process> = HotPage::empty();

/// What the most frequent calls use: empty until a call of theirs has taken its long way.
#[inline(always)]
pub fn hot() -> &'static HotPage<Process> {
    &PAGE
}

/// This process's state, created at the first call of the driver.
#[inline]
pub fn current() -> &'static Process {
    existing().unwrap_or_else(make)
}

/// The state if there is one. Unlike [`current`] it creates none.
#[inline(always)]
pub fn existing() -> Option<&'static Process> {
    // SAFETY: null, or a state that is never freed.
    unsafe { PAGE.state.load(Ordering::Acquire).as_ref() }
}

#[cold]
fn make() -> &'static Process {
    /// So often another thread may have the only stack that there is memory for.
    const TRIES: u32 = 10_000;
    for _ in 0..TRIES {
        if let Some(made) = existing().or_else(|| own_stack::run(|| uncancelled(make_now))) {
            return made;
        }
        std::thread::yield_now();
    }
    uncancelled(make_now)
}

fn make_now() -> &'static Process {
    silence_panics();
    found::begin(|| PAGE.forget_libraries());
    hot_page::empty_in_children(&PAGE, forget_in_child);
    let fresh = Box::into_raw(Process::boxed());
    match PAGE.state.compare_exchange(null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            // SAFETY: just made, and from here on never freed.
            let process = unsafe { &*fresh };
            process.config.complain();
            // Not by `dlsym`: a failed look-up calls malloc and replaces the program's `dlerror`.
            if elf::function_after_us(b"__asan_init").is_some() {
                log::line(format_args!(
                    "AddressSanitizer is loaded after libvramtrace.so: put libasan first in LD_PRELOAD"
                ));
            }
            #[cfg(not(any(miri, sanitized)))]
            crate::runtime::late_binding::bind_loaded();
            process.trace_writer.start(&process.config);
            if let Some(live) = process.trace_writer.live() {
                process.cap.obeys(live.page().last_order_word());
            }
            record_settings(process);
            early_ranges::record(process);
            process.patched_entries.look(process);
            process
        }
        Err(winner) => {
            // SAFETY: nobody else has seen ours.
            drop(unsafe { Box::from_raw(fresh) });
            // SAFETY: it is never freed.
            unsafe { &*winner }
        }
    }
}

/// Records the settings in force when the process first uses its GPU.
fn record_settings(process: &Process) {
    for (name, value) in process.config.settings() {
        let (name, value) = (name.to_string(), value.to_string());
        process.trace_writer.define(&Definition::Setting { name, value });
    }
    if process.block_sampling.is_some() {
        let (name, value) = ("VRAMTRACE_RECORD".into(), "sampled".into());
        process.trace_writer.define(&Definition::Setting { name, value });
    }
}

/// Where the kernel does not empty the page. (A raw clone does not run fork handlers.)
extern "C" fn forget_in_child() {
    PAGE.forget();
}

/// Makes panics of this library silent: `std`'s hook writes many lines on stderr. A cdylib has its own
/// copy of `std`, so the program's panics are not affected. Not a `Once`: a child that is forked while
/// another thread runs it would wait forever.
fn silence_panics() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if !cfg!(test) && !DONE.swap(true, Ordering::Relaxed) {
        std::panic::set_hook(Box::new(|_| {}));
    }
}

/// A hook panicked: recording ends, the cap stays in force, the program continues.
#[cold]
pub fn panicked(at: &str, payload: Box<dyn Any + Send>) {
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let why = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .or_else(|| payload.is::<Left>().then_some(Left::WHY))
            .unwrap_or("no reason given");
        if Once::Panic.begins() {
            let rest = match existing().is_none() && without_state::is_cap_requested() {
                true => "the cap cannot be enforced, so every request for GPU memory is refused",
                false => "recording ends here, the program goes on",
            };
            log::line(format_args!("internal error in {at}: {why}; {rest}"));
        }
        if let Some(process) = existing() {
            process.trace_writer.stop(StopReason::Panic, 0);
        }
    }));
    // Its own drop could panic again.
    std::mem::forget(payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_has_a_state_of_its_own() {
        let parent: *const Process = current();
        assert!(std::ptr::eq(parent, current()));
        let ended = testkit::in_child(|| {
            let none = existing().is_none();
            let own: *const Process = current();
            none && own != parent && std::ptr::eq(own, current())
        });
        assert_eq!(ended, Ok(true));
        assert!(std::ptr::eq(parent, existing().unwrap()));
    }
}
