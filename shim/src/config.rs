//! The configuration that the environment gives. All `VRAMTRACE_*` variables are read here, once a
//! process, at its first use of CUDA.
#![allow(clippy::disallowed_methods)] // once, at the start

mod cgroup;

use crate::runtime::log;
use std::ffi::{CStr, OsStr, OsString};
use std::fmt::Display;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use vramtrace_format::capspec::{self, CapError, CapSpec, Limit};
use vramtrace_format::outspec;
use vramtrace_format::policy::{self, GroupError, GroupSpec, Mode, OomReport};
use vramtrace_format::recordspec::{self, OVERHEAD_DEFAULT, Recording};
use vramtrace_format::size;
use vramtrace_format::stackspec::{self, Languages, NotADepth, NotLanguages, Tensors};

/// All variables. For others a line names the nearest of these.
pub const KNOWN: [&str; 22] = [
    "VRAMTRACE_OUT",
    "VRAMTRACE_MAX",
    "VRAMTRACE_CAP",
    "VRAMTRACE_CAP_MODE",
    "VRAMTRACE_CAP_WARN",
    "VRAMTRACE_CAP_GROUP",
    "VRAMTRACE_STACKS",
    "VRAMTRACE_STACK_DEPTH",
    "VRAMTRACE_TENSORS",
    "VRAMTRACE_FORWARD",
    "VRAMTRACE_RECORD",
    "VRAMTRACE_OVERHEAD",
    "VRAMTRACE_EXCLUSIVE",
    "VRAMTRACE_OOM_REPORT",
    "VRAMTRACE_LIVE_DIR",
    "VRAMTRACE_LIB",
    "VRAMTRACE_RUN",
    "VRAMTRACE_SIM",
    "VRAMTRACE_SIM_STATE",
    "VRAMTRACE_SIM_NVML",
    "VRAMTRACE_SIM_FAULT",
    "VRAMTRACE_SIM_GRAPHS",
];

/// Whether the variables for fault injection are read.
pub const TEST_HOOKS: bool = cfg!(any(debug_assertions, feature = "test-hooks"));

/// Those variables. An optimised library has none of these names in it.
#[cfg(any(debug_assertions, feature = "test-hooks"))]
pub const OF_TESTS: &[&str] = &[
    "VRAMTRACE_TEST_PANIC",
    "VRAMTRACE_TEST_CLOCK",
    "VRAMTRACE_TEST_NO_MAP",
    "VRAMTRACE_TEST_NO_MEMORY",
    "VRAMTRACE_TEST_NO_PAGES",
    "VRAMTRACE_TEST_NO_TASKS",
];
#[cfg(not(any(debug_assertions, feature = "test-hooks")))]
pub const OF_TESTS: &[&str] = &[];

/// Variables of other software about memory; their values are recorded in the trace.
pub const SETTINGS: [&str; 12] = [
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "CUPY_GPU_MEMORY_LIMIT",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    vramtrace_format::oom::MPS_LIMIT,
];

/// `VRAMTRACE_MAX` when it is not set.
pub const MAX_DEFAULT: u64 = 2 << 30;
/// A smaller file has no room for checkpoints and recent events.
pub const MAX_LEAST: u64 = 4 << 20;

/// Where the trace goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Out {
    /// Record nothing.
    Off,
    /// The default name in the working directory.
    Default,
    /// A file or directory with `%` codes, all of them known.
    Pattern(OsString),
}

/// Which call stacks are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stacks {
    pub native: bool,
    pub python: bool,
    /// Frames kept of each, from the innermost out.
    pub native_depth: usize,
    pub python_depth: usize,
}

impl Default for Stacks {
    fn default() -> Stacks {
        Stacks { native: true, python: true, native_depth: 64, python_depth: 128 }
    }
}

impl Stacks {
    /// Whether any stacks are taken.
    #[inline]
    pub fn wanted(&self) -> bool {
        self.native || self.python
    }

    /// `VRAMTRACE_STACKS`: languages with commas between, or `none`.
    fn set(&mut self, text: &str) -> Result<(), NotLanguages> {
        let Languages { native, python } = stackspec::languages(text)?;
        *self = Stacks { native, python, ..*self };
        Ok(())
    }

    /// `VRAMTRACE_STACK_DEPTH`: frames of each language.
    fn set_depth(&mut self, text: &str) -> Result<(), NotADepth> {
        let depth = stackspec::depth(text)?;
        *self = Stacks { native_depth: depth, python_depth: depth, ..*self };
        Ok(())
    }
}

/// The limits that were set when the process began.
#[derive(Clone, Debug, Default)]
pub struct CapRules {
    pub spec: Option<CapSpec>,
    /// The cap could not be parsed: every request is refused.
    pub bad: bool,
    pub mode: Mode,
    pub soft: Option<Limit>,
    pub group: Option<GroupSpec>,
}

pub struct Config {
    pub out: Out,
    /// Most bytes of the trace on disk; `None` = unlimited.
    pub max: Option<u64>,
    /// `Err`: it could not be parsed, and every request must be refused.
    pub cap: Result<Option<CapSpec>, CapError>,
    pub cap_mode: Mode,
    /// Soft limit.
    pub cap_warn: Option<Limit>,
    /// `Err`: as of `cap`.
    pub cap_group: Result<Option<GroupSpec>, GroupError>,
    pub stacks: Stacks,
    /// Stacks of PyTorch's blocks; never more than `stacks` allows.
    pub tensors: Tensors,
    /// `VRAMTRACE_FORWARD`: whether memory of PyTorch's backward pass gets the stack of the forward operation.
    pub forward: bool,
    /// `VRAMTRACE_RECORD`.
    pub recording: Recording,
    /// `VRAMTRACE_OVERHEAD`: above this share of the threads' time, in millionths, fewer samples are taken.
    pub overhead: u32,
    /// `VRAMTRACE_EXCLUSIVE`: no other process uses the cards.
    pub exclusive: bool,
    pub oom_report: OomReport,
    /// Those of [`SETTINGS`] that are set.
    settings: Vec<(String, String)>,
    /// Name of the entry point whose hook is to panic once: for tests.
    pub test_panic: Option<String>,
    /// For tests: every reading of the clock calls `clock_gettime`, which the program may interpose.
    pub test_clock: bool,
    /// `XDG_RUNTIME_DIR`.
    pub runtime_directory: Option<PathBuf>,
    /// `VRAMTRACE_LIVE_DIR`: the directory in which users have directories for their live pages.
    pub live_directory: Option<PathBuf>,
    /// Lines for stderr, see [`Config::complain`].
    complaints: Vec<String>,
}

impl Config {
    pub fn from_environment() -> Config {
        let mut config = Config::from(environment().into_iter());
        config.look_at_cgroup();
        if is_privileged() {
            config.write_nothing();
        }
        config
    }

    /// In a set-uid program the environment is another user's: it may set limits, but not the places of
    /// files.
    fn write_nothing(&mut self) {
        self.out = Out::Off;
        self.runtime_directory = None;
        self.live_directory = None;
        if self.oom_report == OomReport::File {
            self.oom_report = OomReport::Stderr;
        }
        self.test_panic = None;
        self.test_clock = false;
    }

    /// Reads the limit of the kernel's device memory cgroup, if there is one.
    pub fn look_at_cgroup(&mut self) {
        if let Some(limit) = cgroup::device_memory_limit() {
            self.settings.push((vramtrace_format::oom::CGROUP_LIMIT.into(), limit));
        }
    }

    /// From (name, value) pairs.
    pub fn from(variables: impl Iterator<Item = (OsString, OsString)>) -> Config {
        let mut config = Config {
            out: Out::Default,
            max: Some(MAX_DEFAULT),
            cap: Ok(None),
            cap_mode: Mode::Refuse,
            cap_warn: None,
            cap_group: Ok(None),
            stacks: Stacks::default(),
            tensors: Tensors::Python,
            forward: true,
            recording: Recording::Full,
            overhead: OVERHEAD_DEFAULT,
            exclusive: false,
            oom_report: OomReport::default(),
            settings: Vec::new(),
            test_panic: None,
            test_clock: false,
            runtime_directory: None,
            live_directory: None,
            complaints: Vec::new(),
        };
        for (name, value) in variables {
            match name.to_str() {
                Some("VRAMTRACE_OUT") => config.set_out(value),
                Some("VRAMTRACE_MAX") => config.set_max(&value),
                Some("VRAMTRACE_CAP") => config.set_cap(&value),
                Some("VRAMTRACE_CAP_MODE") => config.set_cap_mode(&value),
                Some("VRAMTRACE_CAP_WARN") => config.set_cap_warn(&value),
                Some("VRAMTRACE_CAP_GROUP") => config.set_cap_group(&value),
                Some("VRAMTRACE_STACKS") => config.set_stacks(&name, &value, Stacks::set),
                Some("VRAMTRACE_STACK_DEPTH") => {
                    config.set_stacks(&name, &value, Stacks::set_depth)
                }
                Some("VRAMTRACE_TENSORS") => config.set_tensors(&value),
                Some("VRAMTRACE_FORWARD") => config.set_forward(&value),
                Some("VRAMTRACE_RECORD") => config.set_recording(&value),
                Some("VRAMTRACE_OVERHEAD") => config.set_overhead(&value),
                Some("VRAMTRACE_EXCLUSIVE") => config.set_exclusive(&value),
                Some("VRAMTRACE_OOM_REPORT") => config.set_oom_report(&value),
                Some("VRAMTRACE_LIVE_DIR") => config.set_live_directory(value),
                Some(hook) if OF_TESTS.contains(&hook) => config.set_hook(hook, value),
                Some("XDG_RUNTIME_DIR") if value.as_bytes().first() == Some(&b'/') => {
                    config.runtime_directory = Some(value.into())
                }
                Some(known) if KNOWN.contains(&known) => {}
                Some(other) if SETTINGS.contains(&other) => {
                    config.settings.push((other.into(), value.to_string_lossy().into_owned()));
                }
                _ if name.as_bytes().starts_with(b"VRAMTRACE_") => config.unknown(&name),
                _ => {}
            }
        }
        config
    }

    fn set_hook(&mut self, name: &str, value: OsString) {
        match name.rsplit('_').next() {
            Some("PANIC") => self.test_panic = value.into_string().ok(),
            Some("CLOCK") => self.test_clock = !value.is_empty(),
            // Read in `runtime::faults`.
            _ => {}
        }
    }

    /// Prints what was wrong with the environment. Called once, by the thread that made the process state.
    pub fn complain(&self) {
        for complaint in &self.complaints {
            log::line(format_args!("{complaint}"));
        }
    }

    fn set_out(&mut self, value: OsString) {
        self.out = match outspec::parse(value.as_bytes()) {
            Ok(outspec::Out::Default) => return,
            Ok(outspec::Out::Off) => Out::Off,
            Ok(outspec::Out::Pattern(_)) => Out::Pattern(value),
            Err(why) => {
                let shown = value.display();
                self.complaints
                    .push(format!("VRAMTRACE_OUT={shown}: {why}; using the default name"));
                return;
            }
        };
    }

    fn set_live_directory(&mut self, value: OsString) {
        match value.as_bytes().first() {
            Some(b'/') => self.live_directory = Some(value.into()),
            None => {}
            Some(_) => self.complaints.push(format!(
                "VRAMTRACE_LIVE_DIR={}: is no absolute path; using the default",
                value.display()
            )),
        }
    }

    fn set_max(&mut self, value: &OsStr) {
        let text = value.to_string_lossy();
        if text == "unlimited" {
            self.max = None;
            return;
        }
        if text.is_empty() {
            return;
        }
        let why = match size::parse(&text) {
            Ok(bytes) if bytes >= MAX_LEAST => {
                self.max = Some(bytes);
                return;
            }
            Ok(_) => "is below the minimum, 4MiB".to_string(),
            Err(why) => format!("{why} or unlimited"),
        };
        self.complaints.push(format!("VRAMTRACE_MAX={text}: {why}; using 2GiB"));
    }

    fn set_cap(&mut self, value: &OsStr) {
        let text = value.to_string_lossy();
        match capspec::parse(&text) {
            Ok(spec) => self.cap = Ok(Some(spec)),
            Err(why) => {
                self.complaints.push(format!(
                    "VRAMTRACE_CAP={text}: {why}; every request for GPU memory is refused"
                ));
                self.cap = Err(why);
            }
        }
    }

    fn set_cap_mode(&mut self, value: &OsStr) {
        let text = value.to_string_lossy();
        match Mode::parse(&text) {
            Ok(mode) => self.cap_mode = mode,
            Err(_) if text.is_empty() => {}
            Err(why) => {
                self.complaints.push(format!("VRAMTRACE_CAP_MODE={text}: {why}; using refuse"))
            }
        }
    }

    fn set_cap_warn(&mut self, value: &OsStr) {
        let text = value.to_string_lossy();
        match policy::soft(&text) {
            Ok(soft) => self.cap_warn = Some(soft),
            Err(_) if text.is_empty() => {}
            Err(why) => self
                .complaints
                .push(format!("VRAMTRACE_CAP_WARN={text}: {why}; there is no soft limit")),
        }
    }

    fn set_cap_group(&mut self, value: &OsStr) {
        let text = value.to_string_lossy();
        if text.is_empty() {
            return;
        }
        self.cap_group = GroupSpec::parse(&text).map(Some);
        self.settings.push(("VRAMTRACE_CAP_GROUP".into(), text.clone().into_owned()));
        if let Err(why) = &self.cap_group {
            self.complaints.push(format!(
                "VRAMTRACE_CAP_GROUP={text}: {why}; every request for GPU memory is refused"
            ));
        }
    }

    /// The limits. A group without its own cap shares the process's.
    pub fn rules(&self) -> CapRules {
        let mut spec = self.cap.as_ref().ok().cloned().flatten();
        let mut group = self.cap_group.as_ref().ok().cloned().flatten();
        if let Some(group) = &mut group
            && group.cap.is_none()
        {
            group.cap = spec.take();
        }
        let bad = self.cap.is_err() || self.cap_group.is_err();
        CapRules { spec, bad, mode: self.cap_mode, soft: self.cap_warn, group }
    }

    fn set_stacks<E: Display>(
        &mut self,
        name: &OsStr,
        value: &OsStr,
        set: impl Fn(&mut Stacks, &str) -> Result<(), E>,
    ) {
        let text = value.to_string_lossy();
        if !text.is_empty()
            && let Err(why) = set(&mut self.stacks, &text)
        {
            self.complaints.push(format!("{}={text}: {why}; using the default", name.display()));
        }
    }

    fn set_tensors(&mut self, value: &OsStr) {
        let text = value.to_string_lossy();
        if text.is_empty() {
            return;
        }
        match stackspec::tensors(&text) {
            Ok(tensors) => self.tensors = tensors,
            Err(why) => {
                self.complaints.push(format!("VRAMTRACE_TENSORS={text}: {why}; using the default"))
            }
        }
    }

    fn set_forward(&mut self, value: &OsStr) {
        let text = value.to_string_lossy();
        match &*text {
            "" => {}
            "on" => self.forward = true,
            "off" => self.forward = false,
            _ => self
                .complaints
                .push(format!("VRAMTRACE_FORWARD={text}: is not on or off; using the default")),
        }
    }

    fn set_recording(&mut self, value: &OsStr) {
        let text = value.to_string_lossy();
        match recordspec::recording(&text) {
            Ok(recording) => self.recording = recording,
            Err(_) if text.is_empty() => {}
            Err(why) => self.complaints.push(format!("VRAMTRACE_RECORD={text}: {why}; using full")),
        }
    }

    fn set_overhead(&mut self, value: &OsStr) {
        let text = value.to_string_lossy();
        match recordspec::overhead(&text) {
            Ok(overhead) => self.overhead = overhead,
            Err(_) if text.is_empty() => {}
            Err(why) => self.complaints.push(format!("VRAMTRACE_OVERHEAD={text}: {why}; using 2%")),
        }
    }

    /// Whether samples of PyTorch's blocks are recorded.
    pub fn samples_blocks(&self) -> bool {
        self.recording == Recording::Sampled && self.tensors != Tensors::Off && self.out != Out::Off
    }

    fn set_exclusive(&mut self, value: &OsStr) {
        let text = value.to_string_lossy();
        match &*text {
            "" | "0" => self.exclusive = false,
            "1" => self.exclusive = true,
            _ => self.complaints.push(format!(
                "VRAMTRACE_EXCLUSIVE={text}: is not 1 (no other process uses the card) or 0; using the default"
            )),
        }
    }

    /// Whether the forward operations of PyTorch's autograd nodes are kept. Both kinds of stacks are needed for it.
    pub fn wants_forward(&self) -> bool {
        self.forward
            && self.stacks.native
            && self.stacks.python
            && self.tensors != Tensors::Off
            && self.out != Out::Off
    }

    fn set_oom_report(&mut self, value: &OsStr) {
        let text = value.to_string_lossy();
        match OomReport::parse(&text) {
            Ok(report) => self.oom_report = report,
            Err(_) if text.is_empty() => {}
            Err(why) => {
                self.complaints.push(format!("VRAMTRACE_OOM_REPORT={text}: {why}; using stderr"))
            }
        }
    }

    /// Those of [`SETTINGS`] that were set when the process began to use its GPU, with their values.
    pub fn settings(&self) -> impl Iterator<Item = (&str, &str)> {
        self.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// What a setting of [`SETTINGS`] was when the process began to use its GPU.
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.settings.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    fn unknown(&mut self, name: &OsStr) {
        /// A name that differs by more is not proposed.
        const MOST_EDITS: usize = 4;
        let name = name.to_string_lossy();
        let nearest = KNOWN.into_iter().map(|known| (distance(known, &name), known)).min();
        self.complaints.push(match nearest {
            Some((edits, known)) if edits <= MOST_EDITS => {
                format!("{name} is not a variable of vramtrace; meant {known}?")
            }
            _ => format!("{name} is not a variable of vramtrace; docs/ENV.md lists them"),
        });
    }
}

/// The program runs with rights that its caller does not have (set-uid, file capabilities). The
/// loader preloads nothing there, unless root has asked for it in /etc/ld.so.preload.
fn is_privileged() -> bool {
    // SAFETY: reads a word that the kernel gave the process at its start.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The relevant variables, read from `environ`: `std::env` takes a lock that may be held forever in a
/// forked child.
fn environment() -> Vec<(OsString, OsString)> {
    unsafe extern "C" {
        static environ: *const *const libc::c_char;
    }
    let mut found = Vec::new();
    // SAFETY: `environ` is null or an array that ends in null, as the program keeps it. We read it
    // once, from a thread of the program that is just calling into CUDA.
    unsafe {
        let mut at = environ;
        while !at.is_null() && !(*at).is_null() {
            let entry = CStr::from_ptr(*at).to_bytes();
            at = at.add(1);
            let Some(equals) = entry.iter().position(|byte| *byte == b'=') else { continue };
            let (name, value) = (&entry[..equals], &entry[equals + 1..]);
            let setting = || SETTINGS.iter().any(|setting| setting.as_bytes() == name);
            if name.starts_with(b"VRAMTRACE_") || name == b"XDG_RUNTIME_DIR" || setting() {
                found.push((OsString::from_vec(name.into()), OsString::from_vec(value.into())));
            }
        }
    }
    found
}

/// The edit distance of two names.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let change = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests;
