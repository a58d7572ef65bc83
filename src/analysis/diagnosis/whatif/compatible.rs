//! Which settings cannot work in a recorded run, and why. Every proposal of a setting asks here.

use vramtrace_format::torch_conf::Bypass;

use super::recorded::Recorded;
use crate::allocator::{Conf, SHARES_EXPANDABLE, TorchVersion, first_with};
use crate::trace::Definitions;

/// What a trace shows about settings that cannot work.
#[derive(Clone, Debug, Default)]
pub struct Obstacles {
    /// PyTorch's version; `None`: not known.
    pub torch: Option<TorchVersion>,
    /// Why no setting counts: the allocator that they are for was not in use.
    pub bypassed: Option<String>,
    /// Lines of other libraries that share memory of tensors: `train.py:41`.
    pub shared_by: Vec<String>,
    /// PyTorch shared tensors with other processes.
    pub shared_by_torch: bool,
    /// Memory of tensors was mapped, and not by PyTorch's expandable segments.
    pub mapped_by_others: bool,
}

impl Recorded {
    /// Why the recorded calls would fail with this setting. `name`: as it is written.
    pub fn forbids(&self, name: &str, conf: &Conf) -> Option<String> {
        let found = &self.obstacles;
        if let Some(why) = &found.bypassed {
            return Some(why.clone());
        }
        if let Some((key, first)) = first_with(name)
            && let Some(torch) = found.torch.filter(|torch| *torch < first)
        {
            return Some(format!("PyTorch {torch} does not know {key}; {first} does"));
        }
        if !conf.expandable_segments || self.in_force.is_expandable() {
            return None;
        }
        if found.mapped_by_others {
            return Some(
                "the memory is mapped already (a sleep mode, a pluggable allocator, the program's \
                 settings)"
                    .into(),
            );
        }
        if let Some(by) = found.shared_by.first() {
            let more = match found.shared_by.len() {
                1 => String::new(),
                n => format!(" and {} more", n - 1),
            };
            return Some(format!("{by}{more} calls cuIpcGetMemHandle on a tensor's memory"));
        }
        let torch = found.torch.filter(|torch| found.shared_by_torch && *torch < SHARES_EXPANDABLE);
        torch.map(|torch| {
            format!(
                "PyTorch {torch} cannot share tensors in expandable segments with other \
                 processes; {SHARES_EXPANDABLE} can"
            )
        })
    }
}

/// Why settings of PyTorch's own allocator do not count in this run.
pub(super) fn bypassed(definitions: &Definitions) -> Option<String> {
    Some(match Bypass::of(|name| definitions.setting(name))? {
        Bypass::Backend(backend) => {
            format!("backend:{backend} is in force, which these settings are not for")
        }
        Bypass::Uncached => "PYTORCH_NO_CUDA_MEMORY_CACHING is set: nothing is cached".into(),
    })
}
