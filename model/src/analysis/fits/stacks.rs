//! What is known of a block by its stack: what is equal in the stacks of two processes - addresses differ, places in files do
//! not - and what it is for, where that decides how large it may be at another batch, or whether the program needs it.

use std::hash::{Hash, Hasher};

use rustc_hash::{FxHashMap, FxHasher};
use vramtrace_format::StackId;
use vramtrace_format::layers::is_generated;

use crate::symbols::{Language, Symbols, base_name};
use crate::trace::Definitions;

/// A stack by the places of its frames.
pub(super) type StackKey = u64;

/// The key of each stack of a trace.
pub(super) fn stack_keys(definitions: &Definitions) -> FxHashMap<StackId, StackKey> {
    let stacks = definitions.stacks();
    let place = |address: &u32| {
        let address = stacks.addresses().get_index(*address as usize)?;
        let module = stacks.modules().get(address.module? as usize)?;
        Some((base_name(&module.path), address.at))
    };
    let key = |id: StackId| {
        let stack = stacks.get(id)?;
        let mut hasher = FxHasher::default();
        for address in &stack.native {
            place(address).hash(&mut hasher);
        }
        for frame in &stack.python {
            let Some(code) = stacks.code(frame.code) else { continue };
            code.name.hash(&mut hasher);
            // PyTorch's compiler writes another file for another batch, and other lines.
            if !is_generated(&code.file) {
                (&*code.file, code.first_line, frame.last_instruction).hash(&mut hasher);
            }
        }
        Some((id, hasher.finish()))
    };
    stacks.ids().filter_map(key).collect()
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    #[default]
    Ordinary,
    /// The buffer of a reduction (`reductions.rs`).
    Reduction,
    /// The workspace of a convolution by cuDNN. If it is refused, PyTorch tries the next algorithm, down to those that need
    /// little or nothing: the program goes on.
    Workspace,
    /// Of code that PyTorch's compiler wrote: for another batch it may write other code, which takes other blocks.
    Compiled,
}

/// Functions of libtorch_cuda.so that allocate such blocks: aten/src/ATen/native/cuda/Reduce.cuh and
/// aten/src/ATen/native/cudnn/Conv_v8.cpp, whose `try_configs` and `try_plans` go on to the next plan after an OutOfMemoryError.
const FUNCTIONS: [(&str, Kind); 2] =
    [("gpu_reduce_kernel", Kind::Reduction), ("run_conv_plan", Kind::Workspace)];

/// The stacks whose blocks are not ordinary.
pub(super) fn kinds(definitions: &Definitions, symbols: &Symbols) -> FxHashMap<StackId, Kind> {
    let of_frame = |index: u32| {
        let frame = &symbols.frames()[index as usize];
        if frame.language == Language::Python && is_generated(&frame.file) {
            return Some((index, Kind::Compiled));
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TraceBuilder;
    use crate::trace::Trace;

    #[test]
    fn compiled_code_is_the_same_in_another_file() {
        let mut t = TraceBuilder::new();
        let files = ["/tmp/torchinductor_me/ab/cab7.py", "/tmp/torchinductor_me/xy/cxy9.py"];
        for (id, file) in files.iter().copied().chain(["/me/a.py", "/me/b.py"]).enumerate() {
            t.code(id as u32, "Runner.call", file, 9 + id as i32);
            t.stack(id as u32, &[], &[id as u32, 2], &[]);
        }
        let (definitions, _) = Trace::of(&t).definitions();
        let keys = stack_keys(&definitions);
        let [one, other, own, another] = [0, 1, 2, 3].map(|id| keys[&StackId(id)]);
        assert!(one == other && own != another && one != own);
    }
}
