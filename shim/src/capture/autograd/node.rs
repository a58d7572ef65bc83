//! Reads a node of PyTorch's autograd graph (`torch::autograd::Node`).
//!
//! The offsets are those of PyTorch 2.11, by its headers; other versions may have the same. Before they are used, a
//! self-test compares a node and the nodes after it with what the layout requires. It reads through the kernel,
//! which returns an error where a load would fault. A node that contradicts the layout turns the reading off.

use crate::capture::python::memory::{Careful, Memory, Plain};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use vramtrace_format::StackId;

/// `std::enable_shared_from_this<Node>`, behind the pointer to virtual functions: the node, and its count of owners.
const SELF: usize = 8;
const SELF_OWNERS: usize = 16;
/// `sequence_nr_`.
const NUMBER: usize = 24;
/// `topological_nr_`: greater than that of each node after it.
const RANK: usize = 32;
/// `has_parent_`, a bool.
const HAS_PARENT: usize = 40;
/// `thread_id_`: the thread that made it.
const THREAD: usize = 48;
/// `mutex_`.
const MUTEX: usize = 56;
/// Of a mutex that `std::mutex` made: its type, which is 0.
const MUTEX_TYPE: usize = MUTEX + 16;
/// `next_edges_`: a vector.
const EDGES: usize = MUTEX + size_of::<libc::pthread_mutex_t>();
/// An edge: `std::shared_ptr<Node>` and the input's number.
const EDGE: usize = 24;

/// Edges of a node that are compared.
const EDGES_MOST: usize = 16;
/// Nodes without evidence for or against the layout, after which the reading is turned off.
const TRIES: u32 = 256;

const UNTRIED: u8 = 0;
const TRUSTED: u8 = 1;
const OFF: u8 = 2;

/// Whether nodes are laid out as above.
#[derive(Default)]
pub struct Layout {
    state: AtomicU8,
    tries: AtomicU32,
}

/// What a node says of the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Evidence {
    For,
    /// Nothing contradicts it, but the node has no edge that confirms it.
    None,
    Against,
}

impl Layout {
    #[inline]
    pub fn is_off(&self) -> bool {
        self.state.load(Ordering::Relaxed) == OFF
    }

    /// The stack under which a live node is known. `owners`: the address of its count of owners. `known`: the stack
    /// of a thread's node by its number. `None`: not known.
    pub fn read(
        &self,
        node: usize,
        owners: usize,
        known: impl Fn(u64, u64) -> Option<StackId>,
    ) -> Option<StackId> {
        if self.state.load(Ordering::Acquire) != TRUSTED && !self.test(node, owners, &known) {
            return None;
        }
        let (thread, number) = numbers(&Plain, node, owners)?;
        known(thread, number)
    }

    /// Tests the layout by a node. `true`: it is as expected.
    #[cold]
    fn test(
        &self,
        node: usize,
        owners: usize,
        known: &impl Fn(u64, u64) -> Option<StackId>,
    ) -> bool {
        if self.is_off() {
            return false;
        }
        let seen = |memory: &Careful| {
            let evidence = evidence(memory, node, owners).unwrap_or(Evidence::Against);
            let is_known = || {
                numbers(memory, node, owners)
                    .is_some_and(|(thread, number)| known(thread, number).is_some())
            };
            match evidence {
                // The numbers agree with a node that was made, too.
                Evidence::For if is_known() => Evidence::For,
                Evidence::For => Evidence::None,
                other => other,
            }
        };
        let state = match Careful::with(seen).unwrap_or(Evidence::Against) {
            Evidence::For => TRUSTED,
            Evidence::Against => OFF,
            Evidence::None if self.tries.fetch_add(1, Ordering::Relaxed) >= TRIES => OFF,
            Evidence::None => return false,
        };
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        let tried = self.state.compare_exchange(UNTRIED, state, order.0, order.1);
        let now = tried.err().unwrap_or(state);
        now == TRUSTED
    }
}

/// The thread that made a node, and its number there. `None`: it is not laid out as expected.
fn numbers(memory: &impl Memory, node: usize, owners: usize) -> Option<(u64, u64)> {
    let own = memory.word(node + SELF)? == node && memory.word(node + SELF_OWNERS)? == owners;
    own.then_some(())?;
    Some((memory.word(node + THREAD)? as u64, memory.word(node + NUMBER)? as u64))
}

/// Compares a node with the layout. `None`: an address in it cannot be read.
fn evidence(memory: &impl Memory, node: usize, owners: usize) -> Option<Evidence> {
    let pointer = |at: usize| at.is_multiple_of(8);
    if numbers(memory, node, owners).is_none()
        || memory.byte(node + HAS_PARENT)? > 1
        || memory.int(node + MUTEX_TYPE)? != 0
    {
        return Some(Evidence::Against);
    }
    let [first, end, room] =
        [0, 8, 16].map(|offset| memory.word(node + EDGES + offset).unwrap_or(usize::MAX));
    let is_vector = first <= end
        && end <= room
        && [first, end, room].into_iter().all(pointer)
        && (end - first).is_multiple_of(EDGE);
    if !is_vector {
        return Some(Evidence::Against);
    }
    let rank = memory.word(node + RANK)?;
    let mut evidence = Evidence::None;
    for edge in (first..end).step_by(EDGE).take(EDGES_MOST) {
        let (next, owners) = (memory.word(edge)?, memory.word(edge + 8)?);
        if next == 0 {
            // An input that needs no gradient.
            continue;
        }
        if !pointer(next)
            || numbers(memory, next, owners).is_none()
            || memory.word(next + RANK)? >= rank
        {
            return Some(Evidence::Against);
        }
        evidence = Evidence::For;
    }
    Some(evidence)
}

#[cfg(all(test, not(loom)))]
mod tests;
