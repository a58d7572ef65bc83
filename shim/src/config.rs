//! The configuration that the environment gives. All `VRAMTRACE_*` variables are read here, once a
//! process, at its first use of CUDA.
#![allow(clippy::disallowed_methods)] // once, at the start

mod cgroup;

use crate::runtime::{environment, log};
use std::ffi::{CStr, OsStr, OsString};
use std::fmt::Display;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use vramtrace_format::capspec::{self, CapSpec, Limit};
use vramtrace_format::outspec;
use vramtrace_format::policy::{self, GroupSpec, Mode, OomReport};
use vramtrace_format::recordspec::{self, OVERHEAD_DEFAULT, Recording};
use vramtrace_format::size;
use vramtrace_format::stackspec::{self, Languages, Tensors};

/// All variables. Others have a line.
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
pub const SETTINGS: [&str; 13] = [
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_CLIENT_MEM_FRACTION",
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
}

/// The limits that were set when the process began.
#[derive(Clone, Debug, Default)]
pub struct CapRules {
    pub spec: Option<CapSpec>,
    /// A cap could not be parsed: every request is refused.
    pub bad: bool,
    pub mode: Mode,
    pub soft: Option<Limit>,
    /// With its cap, which is the process's if it has none.
    pub group: Option<GroupSpec>,
}

pub struct Config {
    pub out: Out,
    /// Most bytes of the trace on disk; `None` = unlimited.
    pub max: Option<u64>,
    pub rules: CapRules,
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
        let mut config = Config::from(relevant().into_iter());
        if let Some(limit) = cgroup::device_memory_limit() {
            config.settings.push((vramtrace_format::oom::CGROUP_LIMIT.into(), limit));
        }
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
        self.test_panic = None;
        self.test_clock = false;
    }

    /// From (name, value) pairs.
    pub fn from(variables: impl Iterator<Item = (OsString, OsString)>) -> Config {
        let mut config = Config {
            out: Out::Default,
            max: Some(MAX_DEFAULT),
            rules: CapRules::default(),
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
            config.set(&name, value);
        }
        // A group without its own cap shares the process's.
        let CapRules { spec, group, .. } = &mut config.rules;
        if let Some(group) = group.as_mut().filter(|group| group.cap.is_none()) {
            group.cap = spec.take();
        }
        config
    }

    fn set(&mut self, name: &OsStr, value: OsString) {
        let text = value.to_string_lossy().into_owned();
        let text = text.as_str();
        let Some(known) = name.to_str() else { return self.unknown(name) };
        // An empty cap is an error, not "no cap".
        if text.is_empty() && known != "VRAMTRACE_CAP" && KNOWN.contains(&known) {
            return;
        }
        let given = Given { name: known, text, complaints: &mut self.complaints };
        match known {
            "VRAMTRACE_OUT" => {
                let parsed = outspec::parse(value.as_bytes()).map(|out| match out {
                    outspec::Out::Default => Out::Default,
                    outspec::Out::Off => Out::Off,
                    outspec::Out::Pattern(_) => Out::Pattern(value.clone()),
                });
                given.put(&mut self.out, parsed, "using the default name")
            }
            "VRAMTRACE_MAX" => given.put(&mut self.max, most(text), "using 2GiB"),
            "VRAMTRACE_CAP" => {
                let parsed = capspec::parse(text).map(Some);
                self.rules.bad |= parsed.is_err();
                given.put(&mut self.rules.spec, parsed, REFUSED)
            }
            "VRAMTRACE_CAP_GROUP" => {
                let parsed = GroupSpec::parse(text).map(Some);
                self.rules.bad |= parsed.is_err();
                self.settings.push((known.into(), text.into()));
                given.put(&mut self.rules.group, parsed, REFUSED)
            }
            "VRAMTRACE_CAP_MODE" => {
                given.put(&mut self.rules.mode, Mode::parse(text), "using refuse")
            }
            "VRAMTRACE_CAP_WARN" => {
                let parsed = policy::soft(text).map(Some);
                given.put(&mut self.rules.soft, parsed, "there is no soft limit")
            }
            "VRAMTRACE_STACKS" => {
                let parsed = stackspec::languages(text)
                    .map(|Languages { native, python }| Stacks { native, python, ..self.stacks });
                given.put(&mut self.stacks, parsed, DEFAULT)
            }
            "VRAMTRACE_STACK_DEPTH" => {
                let parsed = stackspec::depth(text).map(|depth| Stacks {
                    native_depth: depth,
                    python_depth: depth,
                    ..self.stacks
                });
                given.put(&mut self.stacks, parsed, DEFAULT)
            }
            "VRAMTRACE_TENSORS" => given.put(&mut self.tensors, stackspec::tensors(text), DEFAULT),
            "VRAMTRACE_FORWARD" => {
                let parsed = one_of(text, ["on", "off"], "is not on or off");
                given.put(&mut self.forward, parsed, DEFAULT)
            }
            "VRAMTRACE_RECORD" => {
                given.put(&mut self.recording, recordspec::recording(text), "using full")
            }
            "VRAMTRACE_OVERHEAD" => {
                given.put(&mut self.overhead, recordspec::overhead(text), "using 2%")
            }
            "VRAMTRACE_EXCLUSIVE" => {
                let wrong = "is not 1 (no other process uses the card) or 0";
                given.put(&mut self.exclusive, one_of(text, ["1", "0"], wrong), DEFAULT)
            }
            "VRAMTRACE_OOM_REPORT" => {
                given.put(&mut self.oom_report, OomReport::parse(text), "using stderr")
            }
            "VRAMTRACE_LIVE_DIR" => {
                let parsed = absolute(value).map(Some).ok_or("is no absolute path");
                given.put(&mut self.live_directory, parsed, DEFAULT)
            }
            "XDG_RUNTIME_DIR" => self.runtime_directory = absolute(value),
            // Their names are in `OF_TESTS` alone; the others are read in `runtime::faults`.
            _ if OF_TESTS.contains(&known) => match known.rsplit('_').next() {
                Some("PANIC") => self.test_panic = Some(text.into()),
                Some("CLOCK") => self.test_clock = !text.is_empty(),
                _ => {}
            },
            _ if SETTINGS.contains(&known) => self.settings.push((known.into(), text.into())),
            _ if KNOWN.contains(&known) => {}
            _ => self.unknown(name),
        }
    }

    fn unknown(&mut self, name: &OsStr) {
        if name.as_bytes().starts_with(b"VRAMTRACE_") {
            let name = name.to_string_lossy();
            let complaint =
                format!("{name} is not a variable of vramtrace; docs/ENV.md lists them");
            self.complaints.push(complaint);
        }
    }

    /// Prints what was wrong with the environment. Called once, by the thread that made the process state.
    pub fn complain(&self) {
        for complaint in &self.complaints {
            log::line(format_args!("{complaint}"));
        }
    }

    /// Whether samples of PyTorch's blocks are recorded.
    pub fn samples_blocks(&self) -> bool {
        self.recording == Recording::Sampled && self.tensors != Tensors::Off && self.out != Out::Off
    }

    /// Whether the forward operations of PyTorch's autograd nodes are kept. Both kinds of stacks are needed for it.
    pub fn wants_forward(&self) -> bool {
        self.forward
            && self.stacks.native
            && self.stacks.python
            && self.tensors != Tensors::Off
            && self.out != Out::Off
    }

    /// Those of [`SETTINGS`] that were set when the process began to use its GPU, with their values.
    pub fn settings(&self) -> impl Iterator<Item = (&str, &str)> {
        self.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// What a setting of [`SETTINGS`] was when the process began to use its GPU.
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.settings.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// A variable that is set.
struct Given<'a> {
    name: &'a str,
    text: &'a str,
    complaints: &'a mut Vec<String>,
}

impl Given<'_> {
    /// Puts what it says in its place. If it is not understood a line says what is done `instead`.
    fn put<T, E: Display>(self, place: &mut T, parsed: Result<T, E>, instead: &str) {
        let Given { name, text, complaints } = self;
        match parsed {
            Ok(value) => *place = value,
            Err(why) => complaints.push(format!("{name}={text}: {why}; {instead}")),
        }
    }
}

/// What is done in place of settings that are not understood: most of them, and limits.
const DEFAULT: &str = "using the default";
const REFUSED: &str = "every request for GPU memory is refused";

fn most(text: &str) -> Result<Option<u64>, String> {
    match size::parse(text) {
        _ if text == "unlimited" => Ok(None),
        Ok(bytes) if bytes >= MAX_LEAST => Ok(Some(bytes)),
        Ok(_) => Err("is below the minimum, 4MiB".to_string()),
        Err(why) => Err(format!("{why} or unlimited")),
    }
}

/// Whether the text is the first of these words, not the second.
fn one_of<'w>(text: &str, words: [&str; 2], wrong: &'w str) -> Result<bool, &'w str> {
    let at = words.iter().position(|word| *word == text);
    at.map(|at| at == 0).ok_or(wrong)
}

fn absolute(path: OsString) -> Option<PathBuf> {
    path.as_bytes().starts_with(b"/").then(|| path.into())
}

/// The program runs with rights that its caller does not have (set-uid, file capabilities). The
/// loader preloads nothing there, unless root has asked for it in /etc/ld.so.preload.
fn is_privileged() -> bool {
    // SAFETY: reads a word that the kernel gave the process at its start.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The relevant variables.
fn relevant() -> Vec<(OsString, OsString)> {
    let mut found = Vec::new();
    for entry in environment::all().map(CStr::to_bytes) {
        let Some(equals) = entry.iter().position(|byte| *byte == b'=') else { continue };
        let (name, value) = (&entry[..equals], &entry[equals + 1..]);
        let setting = || SETTINGS.iter().any(|setting| setting.as_bytes() == name);
        if name.starts_with(b"VRAMTRACE_") || name == b"XDG_RUNTIME_DIR" || setting() {
            found.push((OsString::from_vec(name.into()), OsString::from_vec(value.into())));
        }
    }
    found
}

#[cfg(test)]
mod tests;
