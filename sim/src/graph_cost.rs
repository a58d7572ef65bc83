//! What an executable graph takes of its context's device memory, with `VRAMTRACE_SIM_GRAPHS=1`.
//!
//! Measured on an H200 (driver 580, torch 2.11): 60 kept graphs of 2,000 kernels took 306 MiB, in steps, that is
//! 2,674 bytes for each node; a part of it shows after the instantiation, the rest after the first launch.
//!
//! Not measured, chosen here: one quarter is taken at the instantiation, the rest at the first launch or upload;
//! every kind of node takes the same; the bytes of a context's graphs share pages of 2 MiB; a destroyed graph
//! gives its bytes back, and a page that is empty then goes back to the device; an update takes nothing.

use crate::contexts::Context;
use crate::error::Done;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const A_NODE: u64 = 2_674;
/// At the instantiation, of [`A_NODE`].
const A_NODE_AT_ONCE: u64 = A_NODE / 4;

fn is_charged() -> bool {
    static CHARGED: OnceLock<bool> = OnceLock::new();
    *CHARGED
        .get_or_init(|| std::env::var_os("VRAMTRACE_SIM_GRAPHS").is_some_and(|value| value == "1"))
}

/// The bytes of one executable graph. They are given back when it is dropped.
pub(crate) struct GraphCost {
    context: &'static Context,
    /// Which life of the context: a reset frees all of it.
    life: u64,
    nodes: u64,
    taken: AtomicU64,
}

impl GraphCost {
    /// An instantiation.
    pub(crate) fn new(context: &'static Context, nodes: usize) -> Done<GraphCost> {
        let nodes = if is_charged() { nodes as u64 } else { 0 };
        let cost = GraphCost { context, life: context.life(), nodes, taken: AtomicU64::new(0) };
        cost.grow_to(nodes * A_NODE_AT_ONCE)?;
        Ok(cost)
    }

    /// A launch or an upload.
    pub(crate) fn used(&self) -> Done {
        self.grow_to(self.nodes * A_NODE)
    }

    fn grow_to(&self, bytes: u64) -> Done {
        let before = self.taken.fetch_max(bytes, Relaxed);
        if bytes > before && self.life == self.context.life() {
            let more = bytes - before;
            self.context.need_graph(more).inspect_err(|_| {
                self.taken.fetch_sub(more, Relaxed);
            })?;
        }
        Ok(())
    }
}

impl Drop for GraphCost {
    fn drop(&mut self) {
        if self.life == self.context.life() {
            self.context.graph_ended(self.taken.load(Relaxed));
        }
    }
}
