//! The forward operation of memory that PyTorch's backward pass allocates.
//!
//! Backward runs on threads without Python frames. Each node of the autograd graph has a number, which its
//! constructor takes from `at::sequence_number::get_and_increment` on the thread of the forward operation. This
//! library interposes that function: the thread's Python stack is kept under the thread's and the node's number
//! ([`table`]). When a node runs and allocates, both numbers are read from the node ([`node`]), and give the
//! stack. A number that is not in the table, and a node that is not laid out as known, give none.
//!
//! * A node that backward makes (`create_graph=True`) has no Python frames: it gets the stack of the node
//!   that makes it.
//! * `AccumulateGrad` has no number of its own. It takes a gradient, and keeps its name.
//! * Where Python runs in backward (checkpoints, functions written in Python), Python frames name the line.

pub mod node;
pub mod table;

use crate::runtime::found::{Found, Library};
use crate::runtime::mapped_modules::holding;
use node::Layout;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicI32, Ordering};
use table::NodeTable;
use vramtrace_format::StackId;

#[derive(Default)]
pub struct Autograd {
    functions: Found<Functions>,
    nodes: NodeTable,
}

/// PyTorch's functions. All of them are in one library.
#[derive(Default)]
struct Functions {
    /// `None`: a function is missing, or nodes are not held by `std::shared_ptr`: nothing is read.
    calls: Option<Calls>,
    layout: Layout,
}

struct Calls {
    this_thread: extern "C" fn() -> u64,
    current_node: extern "C" fn() -> Returned,
    /// The code that runs one node, and the loop that calls it.
    evaluates: Range<usize>,
    main_loop: Range<usize>,
}

/// Room for the `std::shared_ptr<Node>` that `get_current_node` returns through a pointer to it: a structure of more than
/// two words is returned in the same way by the C ABI of both processors. The function fills two words.
#[repr(C)]
struct Returned(usize, usize, [MaybeUninit<usize>; 2]);

/// Offset of the number of owners in the block that `std::shared_ptr` points to, in libstdc++ and since PyTorch 1.0.
const OWNERS: usize = 8;

impl Functions {
    /// From the library that has this function.
    fn beside(function: usize) -> Functions {
        let calls = || {
            let library = holding(function)?;
            // SAFETY: the function was called just now, so its library is loaded.
            let object = unsafe { library.object() };
            let function = |name: &str| object.function(name.as_bytes());
            // Its parameter is a `std::weak_ptr<Node>`. Where nodes are counted in another way it has another name.
            function(
                "_ZN5torch8autograd4impl20set_grad_accumulatorERKN2at6TensorESt8weak_ptrINS0_4NodeEE",
            )?;
            let this_thread = function("_ZN2at14RecordFunction15currentThreadIdEv")?;
            let current_node = function("_ZN5torch8autograd16get_current_nodeEv")?;
            let code = |name: &str| {
                object.symbol(name.as_bytes()).map(|(start, size)| start..start + size)
            };
            Some(Calls {
                // SAFETY: `static uint64_t at::RecordFunction::currentThreadId()`, which reads a thread's variable.
                this_thread: unsafe {
                    std::mem::transmute::<usize, extern "C" fn() -> u64>(this_thread)
                },
                // SAFETY: `std::shared_ptr<Node> torch::autograd::get_current_node()`, which copies a thread's variable.
                current_node: unsafe {
                    std::mem::transmute::<usize, extern "C" fn() -> Returned>(current_node)
                },
                evaluates: code(
                    "_ZN5torch8autograd6Engine17evaluate_functionERSt10shared_ptrINS0_9GraphTaskEEPNS0_4NodeERNS0_11InputBufferERKS2_INS0_10ReadyQueueEE",
                )?,
                main_loop: code(
                    "_ZN5torch8autograd6Engine11thread_mainERKSt10shared_ptrINS0_9GraphTaskEE",
                )?,
            })
        };
        Functions { calls: calls(), layout: Layout::default() }
    }
}

impl Calls {
    /// Whether the innermost function of the engine on this stack runs a node. Then the thread's current node is set.
    fn runs_node(&self, mut addresses: impl Iterator<Item = usize>) -> bool {
        let is_in = |code: &Range<usize>, address: usize| code.contains(&address.wrapping_sub(1));
        let engine = |at: &usize| is_in(&self.evaluates, *at) || is_in(&self.main_loop, *at);
        addresses.find(engine).is_some_and(|at| is_in(&self.evaluates, at))
    }

    /// Runs `read` with the addresses of the thread's current node and of its count of owners.
    /// [`Calls::runs_node`] is true.
    fn with_current<R>(&self, read: impl FnOnce(usize, usize) -> R) -> Option<R> {
        let Returned(node, owners, _) = (self.current_node)();
        let result = (node != 0 && owners != 0).then(|| read(node, owners));
        if owners != 0 {
            // SAFETY: the count of owners of a live shared pointer. The function added one for us, which is given back. The
            // engine's variable owns the node while this thread runs it, so that this is never the last one.
            let owners = unsafe { AtomicI32::from_ptr((owners + OWNERS) as *mut i32) };
            owners.fetch_sub(1, Ordering::AcqRel);
        }
        result
    }
}

impl Autograd {
    /// A node is made on this thread and has got this number. `get_and_increment`: the address of PyTorch's
    /// function. `stack`: captures the stack of the forward operation.
    #[inline]
    pub fn node_made(
        &self,
        number: u64,
        get_and_increment: usize,
        stack: impl FnOnce() -> StackId,
    ) {
        let known = self.functions.get().or_else(|| self.find_functions(get_and_increment));
        let Some(Functions { calls: Some(calls), layout }) = known else { return };
        if layout.is_off() {
            return;
        }
        let stack = stack();
        if stack != StackId(0) {
            self.nodes.insert((calls.this_thread)(), number, stack);
        }
    }

    #[cold]
    fn find_functions(&self, get_and_increment: usize) -> Option<&'static Functions> {
        // SAFETY: the function was called just now.
        let library = unsafe { Library::holding(get_and_increment) }?;
        self.functions.put([library; 2], Functions::beside(get_and_increment));
        self.functions.get()
    }

    /// The stack of the forward operation whose node runs on this thread; 0: none runs, or it is not known.
    /// `addresses`: of the thread's native frames, from the innermost out.
    pub fn forward_of(&self, addresses: impl Iterator<Item = usize>) -> StackId {
        let Some(Functions { calls: Some(calls), layout }) = self.functions.get() else {
            return StackId(0);
        };
        if layout.is_off() || !calls.runs_node(addresses) {
            return StackId(0);
        }
        let stack = calls.with_current(|node, owners| {
            let known = |thread, number| self.nodes.get(thread, number);
            layout.read(node, owners, known)
        });
        stack.flatten().unwrap_or(StackId(0))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    extern "C" fn no_thread() -> u64 {
        unreachable!()
    }

    extern "C" fn no_node() -> Returned {
        Returned(0, 0, [MaybeUninit::new(0); 2])
    }

    #[test]
    fn a_node_runs_where_the_innermost_engine_frame_evaluates_it() {
        let calls = Calls {
            this_thread: no_thread,
            current_node: no_node,
            evaluates: 100..200,
            main_loop: 300..400,
        };
        for (stack, runs) in [
            (&[10, 150, 350][..], true),
            // Between two nodes, as callbacks at a pass's end.
            (&[10, 350], false),
            // A pass within a node, between its own nodes.
            (&[10, 350, 20, 150, 350], false),
            (&[10, 20], false),
            (&[], false),
            // A return address behind the function's last instruction.
            (&[10, 200, 350], true),
            (&[10, 100], false),
        ] {
            assert_eq!(calls.runs_node(stack.iter().copied()), runs, "{stack:?}");
        }
        assert_eq!(calls.with_current(|_, _| ()), None, "no node is current");
    }

    #[test]
    fn a_library_without_the_functions_gives_none() {
        let autograd = Autograd::default();
        autograd.node_made(1, libc::getppid as *const () as usize, || unreachable!());
        assert_eq!(autograd.forward_of([1, 2, 3].into_iter()), StackId(0));
    }
}
