//! Executable graphs that live, by handle.

use rustc_hash::FxHashMap;
use vramtrace_format::{ContextId, DeviceId, SiteId, StackId};

/// An executable graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecGraph {
    /// The number of executable graphs that were instantiated before: handles are reused.
    pub number: u64,
    pub device: DeviceId,
    pub context: ContextId,
    pub site: SiteId,
    /// Of the call that instantiated it.
    pub stack: StackId,
    /// 0: not known.
    pub nodes: u32,
}

#[derive(Clone, Debug, Default)]
pub struct ExecGraphs {
    live: FxHashMap<u64, ExecGraph>,
    made: u64,
}

impl ExecGraphs {
    pub(super) fn len(&self) -> usize {
        self.live.len()
    }

    /// Returns the graph, and an earlier one with the same handle, whose end was not seen.
    pub(super) fn add(&mut self, handle: u64, graph: ExecGraph) -> (ExecGraph, Option<ExecGraph>) {
        let graph = ExecGraph { number: self.made, ..graph };
        self.made += 1;
        (graph, self.live.insert(handle, graph))
    }

    pub(super) fn get(&self, handle: u64) -> Option<ExecGraph> {
        self.live.get(&handle).copied()
    }

    pub(super) fn remove(&mut self, handle: u64) -> Option<ExecGraph> {
        self.live.remove(&handle)
    }

    /// Removes those of a context, in the order in which they were instantiated.
    pub(super) fn end_context(&mut self, context: ContextId) -> Vec<ExecGraph> {
        let of_context = self.live.extract_if(|_, graph| graph.context == context);
        let mut gone: Vec<ExecGraph> = of_context.map(|(_, graph)| graph).collect();
        gone.sort_unstable_by_key(|graph| graph.number);
        gone
    }

    pub(super) fn forget(&mut self) {
        self.live.clear();
    }
}
