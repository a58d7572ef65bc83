//! The definitions of a trace: what its ids stand for.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use vramtrace_format::uuid;
use vramtrace_format::{
    ContextId, Definition, DeviceId, Kind, PATCHED_BY, PoolId, PoolOrigin, SiteId, ThreadId,
};

use super::HostFiles;
use super::sites::Sites;
use super::stacks::{Code, Loaded, Stacks};

#[derive(Clone, Debug, PartialEq)]
pub struct DeviceInfo {
    pub uuid: [u8; 16],
    pub name: String,
    pub total_bytes: u64,
    pub mig: bool,
}

impl DeviceInfo {
    /// `GPU-xxxxxxxx-xxxx-...`, as nvidia-smi prints it; `MIG-` for a slice of a GPU.
    pub fn uuid_text(&self) -> String {
        uuid::text(&self.uuid, self.mig)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolInfo {
    pub device: DeviceId,
    pub handle: u64,
    pub origin: PoolOrigin,
}

/// Where an allocation or a free came from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SiteInfo {
    pub api: u16,
    pub kind: Option<Kind>,
    pub device: DeviceId,
    pub context: ContextId,
    pub pool: PoolId,
    /// The raw handle: 0 legacy default stream, 1 legacy, 2 per-thread.
    pub stream: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ThreadInfo {
    pub tid: u32,
    pub name: String,
}

/// The setting of a trace that was not recorded here: what it was made from.
pub const IMPORT: &str = "import";
/// The setting with PyTorch's version, `2.11.0+cu128`, which `run` and `pack` add.
pub const TORCH_VERSION: &str = "torch_version";
/// The setting that says whether an imported trace has times; without it, it has.
pub const IMPORT_TIMES: &str = "import_times";
/// Its events are in order, a made-up microsecond apart.
pub const NO_TIMES: &str = "none";
/// It is the state at one moment, without a history.
pub const ONE_MOMENT: &str = "moment";

/// All definitions of one trace. A later definition of the same id replaces the earlier one.
#[derive(Clone, Debug, Default)]
pub struct Definitions {
    apis: HashMap<u16, String>,
    threads: HashMap<ThreadId, ThreadInfo>,
    devices: BTreeMap<DeviceId, DeviceInfo>,
    pools: HashMap<PoolId, PoolInfo>,
    sites: Sites,
    texts: HashMap<u32, String>,
    /// The lines that the recorder also put on the program's stderr.
    pub notes: Vec<String>,
    settings: BTreeMap<String, String>,
    /// Paths of the libraries that replaced the beginning of the recorder's functions, as in the modules' definitions.
    pub patched_by: Vec<String>,
    stacks: Stacks,
    files: Option<Arc<dyn HostFiles>>,
}

impl Definitions {
    /// None so far. `files`: those that they will name.
    pub(crate) fn of(files: Option<Arc<dyn HostFiles>>) -> Definitions {
        Definitions { files, ..Definitions::default() }
    }

    /// Opens the files that they name. `None`: none is opened, and functions have the names that are in the trace.
    pub(crate) fn files(&self) -> Option<&dyn HostFiles> {
        self.files.as_deref()
    }

    /// Whether the program loaded a library whose file name begins so.
    pub fn has_library(&self, name: &str) -> bool {
        let file = |path: &str| path.rsplit('/').next().is_some_and(|file| file.starts_with(name));
        self.stacks.modules().iter().any(|module| file(&module.path))
    }

    pub fn add(&mut self, definition: Definition) {
        match definition {
            Definition::Api { id, name } => {
                self.apis.insert(id, name);
            }
            Definition::Thread { id, tid, name } => {
                self.threads.insert(id, ThreadInfo { tid, name });
            }
            Definition::Device { id, uuid, name, total_bytes, mig } => {
                self.devices.insert(id, DeviceInfo { uuid, name, total_bytes, mig });
            }
            Definition::Context { .. } => {}
            Definition::Pool { id, device, handle, origin } => {
                self.pools.insert(id, PoolInfo { device, handle, origin });
            }
            Definition::Site { id, api, kind, device, context, pool, stream } => {
                self.sites.insert(id, SiteInfo { api, kind, device, context, pool, stream });
            }
            Definition::Text { id, text } => {
                self.texts.insert(id, text);
            }
            Definition::Note { text } => self.notes.push(text),
            Definition::Setting { name, value } if name == PATCHED_BY => {
                self.patched_by.push(value);
            }
            Definition::Setting { name, value } => {
                self.settings.insert(name, value);
            }
            Definition::Module { id, path, build_id, base, start, end } => {
                self.stacks.add_module(Loaded { id, path, build_id, base, start, end });
            }
            Definition::Code { id, minor, name, file, first_line, line_table } => {
                let (name, file) = (name.into(), file.into());
                let code = Code { minor, name, file, first_line, line_table };
                self.stacks.codes.insert(id, code);
            }
            Definition::Stack { id, flags, native, python, joins } => {
                self.stacks.add_stack(id, flags, &native, python, joins);
            }
            Definition::Names { module, address, names } => {
                self.stacks.names.insert((module, address), names.into());
            }
            Definition::Forward { stack, forward } => {
                self.stacks.forward.insert(stack, forward);
            }
        }
    }

    /// The entry point's name, `api 17` where its definition is missing.
    pub fn api_name(&self, api: u16) -> String {
        self.apis.get(&api).cloned().unwrap_or_else(|| format!("api {api}"))
    }

    /// The name of the entry point that a site stands for, `?` for site 0.
    pub fn site_api_name(&self, site: SiteId) -> String {
        self.site(site).map_or_else(|| "?".to_string(), |site| self.api_name(site.api))
    }

    pub fn thread(&self, id: ThreadId) -> Option<&ThreadInfo> {
        self.threads.get(&id)
    }

    /// In no order.
    pub fn threads(&self) -> impl Iterator<Item = &ThreadInfo> {
        self.threads.values()
    }

    pub fn device(&self, id: DeviceId) -> Option<&DeviceInfo> {
        self.devices.get(&id)
    }

    pub fn pool(&self, id: PoolId) -> Option<PoolInfo> {
        self.pools.get(&id).copied()
    }

    pub fn site(&self, id: SiteId) -> Option<SiteInfo> {
        self.sites.get(id).copied()
    }

    pub fn text(&self, id: u32) -> Option<&str> {
        self.texts.get(&id).map(String::as_str)
    }

    /// In no order.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.texts.values().map(String::as_str)
    }

    /// Ids that no text has, in ascending order.
    pub fn free_texts(&self) -> impl Iterator<Item = u32> {
        (1..=u32::MAX).filter(|id| !self.texts.contains_key(id))
    }

    /// What was in force when the process began, e.g. `PYTORCH_CUDA_ALLOC_CONF`; `import` says
    /// where an imported trace comes from.
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }

    /// What an imported trace was made from. `None`: it was recorded.
    pub fn imported_from(&self) -> Option<&str> {
        self.setting(IMPORT)
    }

    /// Whether samples of PyTorch's blocks were recorded, not all.
    pub fn samples_blocks(&self) -> bool {
        self.setting("VRAMTRACE_RECORD") == Some("sampled")
    }

    /// Are the events' times real? Where not, no moment can be asked for in seconds.
    pub fn has_times(&self) -> bool {
        self.setting(IMPORT_TIMES).is_none()
    }

    /// False: an import of one moment.
    pub fn has_history(&self) -> bool {
        self.setting(IMPORT_TIMES) != Some(ONE_MOMENT)
    }

    /// In no order.
    pub fn sites(&self) -> impl Iterator<Item = &SiteInfo> {
        self.sites.all()
    }

    /// Empty where none were recorded.
    pub fn stacks(&self) -> &Stacks {
        &self.stacks
    }
}
