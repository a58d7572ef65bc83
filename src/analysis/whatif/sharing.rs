//! Who made a segment ready for other processes. PyTorch's own sharing of tensors works with any
//! setting; others call cuIpcGetMemHandle, which fails on expandable segments.

use vramtrace_format::{Header, StackId};

use crate::analysis::StackClassifier;
use crate::symbols::{Frame, Symbols};

/// The line, if it was not PyTorch itself: `train.py:41 share in libfoo.so`.
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

/// A frame of torch.multiprocessing, or of the storage's own way to share.
fn is_own(frame: &Frame) -> bool {
    frame.file.contains("/torch/multiprocessing/")
        || frame.function.contains("_share_cuda_")
        || frame.function.contains("THPStorage_shareCuda")
        || (frame.function.contains("shareIpcHandle")
            && frame.library_name().is_some_and(|name| name.starts_with("libc10_cuda")))
}
