//! The lines that export a segment to other processes. PyTorch's sharing of tensors works with any setting.
//! Other libraries call cuIpcGetMemHandle, which fails on expandable segments.

use vramtrace_format::{Header, StackId};

use crate::analysis::StackClassifier;
use crate::symbols::{Frame, Symbols};

/// The exporting line, `train.py:41 (through libfoo.so)`. `None`: PyTorch's own sharing.
pub(super) fn by_others(symbols: &Symbols, header: &Header, stack: StackId) -> Option<String> {
    if symbols.stack(stack).any(is_own) {
        return None;
    }
    let classifier = StackClassifier::new(symbols, header);
    let roles = classifier.roles(stack);
    let frame = classifier.frame(stack, roles.lead);
    let line = match frame {
        Some(frame) => frame.place().unwrap_or_else(|| frame.function.to_string()),
        None => symbols.why_empty(stack).to_string(),
    };
    Some(match classifier.library_name(&roles) {
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
