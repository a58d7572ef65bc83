//! What a block is for, where that decides how large it may be at another batch, or whether the program needs it.

use rustc_hash::FxHashMap;
use vramtrace_format::StackId;

use crate::symbols::{Language, Symbols};
use crate::trace::Definitions;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    #[default]
    Ordinary,
    /// The buffer of a reduction (`reductions.rs`).
    Reduction,
    /// The workspace of a convolution by cuDNN. If it is refused, PyTorch tries the next algorithm, down to those that need
    /// little or nothing: the program goes on.
    Workspace,
}

/// Functions of libtorch_cuda.so that allocate such blocks: aten/src/ATen/native/cuda/Reduce.cuh and
/// aten/src/ATen/native/cudnn/Conv_v8.cpp, whose `try_configs` and `try_plans` go on to the next plan after an OutOfMemoryError.
const FUNCTIONS: [(&str, Kind); 2] =
    [("gpu_reduce_kernel", Kind::Reduction), ("run_conv_plan", Kind::Workspace)];

/// The stacks whose blocks are not ordinary.
pub(super) fn kinds(definitions: &Definitions, symbols: &Symbols) -> FxHashMap<StackId, Kind> {
    let of_frame = |index: u32| {
        let frame = &symbols.frames()[index as usize];
        let named = |(name, _): &&(&str, Kind)| frame.function.contains(name);
        let native = frame.language == Language::Native;
        Some((index, FUNCTIONS.iter().find(named).filter(|_| native)?.1))
    };
    let frames: FxHashMap<u32, Kind> =
        (0..symbols.frames().len() as u32).filter_map(of_frame).collect();
    let of_stack = |id: StackId| {
        let indexes = symbols.indexes(id);
        Some((id, *indexes.iter().find_map(|index| frames.get(index))?))
    };
    definitions.stacks().ids().filter_map(of_stack).collect()
}
