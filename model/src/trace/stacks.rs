//! The stacks of a trace without names: the modules with their address ranges, Python's code objects, and for
//! each stack its native addresses and Python frames. [`crate::symbols`] adds the names.

use std::collections::BTreeMap;
use std::sync::Arc;

use indexmap::IndexSet;
use rustc_hash::{FxBuildHasher, FxHashMap};
use vramtrace_format::{Join, NativeName, PythonFrame, StackFlags, StackId};

/// A loaded program or library.
#[derive(Clone, Debug, PartialEq)]
pub struct Module {
    /// Its number in the trace.
    pub id: u32,
    /// The path by which the loader knew it.
    pub path: Arc<str>,
    /// GNU build-id. Empty: none.
    pub build_id: Vec<u8>,
    /// Subtracted from an address in memory, gives the address in the file.
    pub base: u64,
}

/// A Python code object.
#[derive(Clone, Debug, PartialEq)]
pub struct Code {
    /// The Y of CPython 3.Y.
    pub minor: u8,
    pub name: Arc<str>,
    pub file: Arc<str>,
    pub first_line: i32,
    pub line_table: Vec<u8>,
}

/// A return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// Index into [`Stacks::modules`]. `None`: not in a known module.
    pub module: Option<u32>,
    /// Address in the module's file; in memory where the module is not known.
    pub at: u64,
}

/// One call stack.
#[derive(Clone, Debug, PartialEq)]
pub struct Stack {
    /// Which parts are missing, and why.
    pub flags: StackFlags,
    /// Indexes into [`Stacks::addresses`], innermost first.
    pub native: Box<[u32]>,
    /// Innermost first.
    pub python: Box<[PythonFrame]>,
    pub joins: Box<[Join]>,
}

/// A module as it was defined.
#[derive(Debug)]
pub(super) struct Loaded {
    pub id: u32,
    pub path: String,
    pub build_id: Vec<u8>,
    pub base: u64,
    pub start: u64,
    pub end: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Stacks {
    modules: Vec<Module>,
    /// The modules at their addresses after the last definition: start -> (end, index of the module). Ranges
    /// never overlap.
    layout: BTreeMap<u64, (u64, u32)>,
    pub(super) codes: FxHashMap<u32, Code>,
    addresses: IndexSet<Address, FxBuildHasher>,
    stacks: FxHashMap<StackId, Stack>,
    /// Of stacks in PyTorch's backward pass: the stack of the forward operation.
    pub(super) forward: FxHashMap<StackId, StackId>,
    /// By the module's number.
    pub(super) names: FxHashMap<(u32, u64), Box<[NativeName]>>,
}

impl Stacks {
    /// Adds a module. It replaces earlier modules at its addresses, for the stacks that follow.
    pub(super) fn add_module(&mut self, loaded: Loaded) {
        let index = self.modules.len() as u32;
        let Loaded { id, path, build_id, base, start, end } = loaded;
        self.modules.push(Module { id, path: path.into(), build_id, base });
        if start >= end {
            return;
        }
        let over: Vec<(u64, u64, u32)> = self
            .layout
            .range(..end)
            .rev()
            .take_while(|(_, (old_end, _))| *old_end > start)
            .map(|(old_start, (old_end, old))| (*old_start, *old_end, *old))
            .collect();
        for (old_start, old_end, old) in over {
            self.layout.remove(&old_start);
            if old_start < start {
                self.layout.insert(old_start, (start, old));
            }
            if old_end > end {
                self.layout.insert(end, (old_end, old));
            }
        }
        self.layout.insert(start, (end, index));
    }

    pub(super) fn add_stack(
        &mut self,
        id: StackId,
        flags: StackFlags,
        native: &[u64],
        python: Vec<PythonFrame>,
        joins: Vec<Join>,
    ) {
        let native = native.iter().map(|address| self.address(*address)).collect();
        let (python, joins) = (python.into(), joins.into());
        self.stacks.insert(id, Stack { flags, native, python, joins });
    }

    /// The stack of the forward operation whose autograd node a stack of PyTorch's backward pass runs. `None`: it runs
    /// none, or it is not known.
    pub fn forward_of(&self, id: StackId) -> Option<StackId> {
        self.forward.get(&id).copied()
    }

    fn address(&mut self, memory: u64) -> u32 {
        // A call may be the last instruction of its module: its return address is then outside of it.
        let call = memory.saturating_sub(1);
        let module = self.layout.range(..=call).next_back();
        let module = module.filter(|(_, (end, _))| call < *end).map(|(_, (_, module))| *module);
        let base = module.map_or(0, |module| self.modules[module as usize].base);
        self.addresses.insert_full(Address { module, at: memory.wrapping_sub(base) }).0 as u32
    }

    pub fn is_empty(&self) -> bool {
        self.stacks.is_empty()
    }

    pub fn get(&self, id: StackId) -> Option<&Stack> {
        self.stacks.get(&id)
    }

    /// In no order.
    pub fn ids(&self) -> impl Iterator<Item = StackId> {
        self.stacks.keys().copied()
    }

    pub fn modules(&self) -> &[Module] {
        &self.modules
    }

    pub fn addresses(&self) -> &IndexSet<Address, FxBuildHasher> {
        &self.addresses
    }

    /// The names of a return address, where `vramtrace pack` added them to the trace. `at`: address in the
    /// module's file.
    pub fn names(&self, module: &Module, at: u64) -> Option<&[NativeName]> {
        self.names.get(&(module.id, at)).map(|names| &**names)
    }

    pub fn code(&self, id: u32) -> Option<&Code> {
        self.codes.get(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(path: &str, start: u64, end: u64) -> Loaded {
        Loaded { id: 1, path: path.into(), build_id: Vec::new(), base: start, start, end }
    }

    fn native(stacks: &mut Stacks, id: u32, addresses: &[u64]) -> Vec<(Option<u32>, u64)> {
        stacks.add_stack(StackId(id), StackFlags(0), addresses, Vec::new(), Vec::new());
        let stack = stacks.get(StackId(id)).unwrap();
        let address = |index: &u32| stacks.addresses()[*index as usize];
        stack.native.iter().map(address).map(|at| (at.module, at.at)).collect()
    }

    #[test]
    fn an_address_belongs_to_the_module_that_was_there_then() {
        let mut stacks = Stacks::default();
        stacks.add_module(loaded("a", 0x1000, 0x4000));
        stacks.add_module(loaded("b", 0x4000, 0x5000));
        let first = native(&mut stacks, 1, &[0x1010, 0x4000, 0x4001, 0x5001, 0x10]);
        let expected =
            [(Some(0), 0x10), (Some(0), 0x3000), (Some(1), 1), (None, 0x5001), (None, 0x10)];
        assert_eq!(first, expected, "a return address at a module's end is of the call before it");
        // Another comes into the middle of the first, and over all of the second.
        stacks.add_module(loaded("c", 0x2000, 0x2800));
        stacks.add_module(loaded("d", 0x3800, 0x6000));
        let second = native(&mut stacks, 2, &[0x1010, 0x2010, 0x2810, 0x3810, 0x4810, 0x6001]);
        let expected = [
            (Some(0), 0x10),
            (Some(2), 0x10),
            (Some(0), 0x1810),
            (Some(3), 0x10),
            (Some(3), 0x1010),
            (None, 0x6001),
        ];
        assert_eq!(second, expected);
        assert_eq!(native(&mut stacks, 3, &[]), []);
        assert_eq!(stacks.addresses().len(), 10, "each address is kept once");
    }

    #[test]
    fn ranges_that_mean_nothing_are_kept_out() {
        let mut stacks = Stacks::default();
        stacks.add_module(loaded("upside down", 0x2000, 0x1000));
        stacks.add_module(loaded("everywhere", 0, u64::MAX));
        assert_eq!(
            native(&mut stacks, 1, &[0, 1, u64::MAX]),
            [(Some(1), 0), (Some(1), 1), (Some(1), u64::MAX)]
        );
    }
}
