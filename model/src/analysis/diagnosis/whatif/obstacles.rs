//! What stands against a prediction: settings that cannot work in a recorded run, which every proposal of a setting asks for,
//! and runs whose requests are not in their trace.

use vramtrace_format::torch_conf::Bypass;
use vramtrace_format::{Header, StackId};

use super::recorded::{InForce, Recorded};
use crate::allocator::{Conf, SHARES_EXPANDABLE, TorchVersion, first_with};
use crate::analysis::StackClassifier;
use crate::symbols::{Frame, Symbols};
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

/// The line that exports a segment to other processes, `train.py:41 (through libfoo.so)`. `None`: PyTorch's own sharing, which
/// works with any setting. Other libraries call cuIpcGetMemHandle, which fails on expandable segments.
pub(super) fn shared_by(symbols: &Symbols, header: &Header, stack: StackId) -> Option<String> {
    if symbols.stack(stack).any(is_own) {
        return None;
    }
    let classifier = StackClassifier::new(symbols, header);
    let key_frames = classifier.key_frames(stack);
    let frame = classifier.frame(stack, key_frames.lead);
    let line = match frame {
        Some(frame) => frame.place().unwrap_or_else(|| frame.function.to_string()),
        None => symbols.why_empty(stack).to_string(),
    };
    Some(match classifier.library_name(&key_frames) {
        Some(library) if !line.contains(library) => format!("{line} (through {library})"),
        _ => line,
    })
}

/// Whether the frame is of torch.multiprocessing, or of the sharing functions of PyTorch's storage.
fn is_own(frame: &Frame) -> bool {
    frame.file.contains("/torch/multiprocessing/")
        || frame.function.contains("_share_cuda_")
        || frame.function.contains("THPStorage_shareCuda")
        || (frame.function.contains("shareIpcHandle")
            && frame.library_name().is_some_and(|name| name.starts_with("libc10_cuda")))
}

/// The message for a trace with samples of the blocks.
pub const NOT_OF_SAMPLES: &str = "samples of PyTorch's blocks were recorded \
    (VRAMTRACE_RECORD=sampled), and this needs all of them; record with VRAMTRACE_RECORD=full";

/// The message for an import without a history.
pub const NOT_OF_A_MOMENT: &str = "the file is of one moment, and this needs the requests before it: call \
    torch.cuda.memory._record_memory_history() at the start";

/// The message for a trace without blocks: the probable reason, and what to do.
pub fn why_no_blocks(definitions: &Definitions) -> &'static str {
    let conf = InForce::of(definitions);
    if conf.name().contains("cudaMallocAsync") {
        return "the run used backend:cudaMallocAsync: memory comes from the driver's own pool, \
                and PyTorch's cache had none; record it with the default backend";
    }
    if definitions.setting("PYTORCH_NO_CUDA_MEMORY_CACHING").is_some() {
        return "the run had PYTORCH_NO_CUDA_MEMORY_CACHING set: nothing was cached, and none of \
                these settings counts; record it without";
    }
    let modules = definitions.stacks().modules();
    match modules.iter().any(|module| module.path.contains("libc10_cuda")) {
        true => {
            "PyTorch was there, and none of its tensors were recorded: a pluggable allocator was \
             in its place, or the run was recorded with VRAMTRACE_TENSORS=off"
        }
        false => {
            "no tensors of PyTorch were recorded: give a trace of a PyTorch run, a PyTorch memory \
             snapshot, or a CSV with the columns action,addr,size,stream"
        }
    }
}
