//! What is equal in the stacks of two processes: addresses differ, places in files do not.

use std::hash::{Hash, Hasher};

use rustc_hash::{FxHashMap, FxHasher};
use vramtrace_format::StackId;

use crate::symbols::base_name;
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
            let code = stacks.code(frame.code);
            let code = code.map(|code| (&*code.name, &*code.file, code.first_line));
            (code, frame.last_instruction).hash(&mut hasher);
        }
        Some((id, hasher.finish()))
    };
    stacks.ids().filter_map(key).collect()
}
