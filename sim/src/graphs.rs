//! The graphs of the process: their nodes, and what each does when the graph is launched.

use crate::abi::*;
use crate::driver::driver;
use crate::error::{Done, Error};
use crate::graph_cost::GraphCost;
use crate::memory::{Memory, next_id, round_up};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard};

pub(crate) const KERNEL: i32 = 0;
pub(crate) const MEMCPY: i32 = 1;
pub(crate) const MEMSET: i32 = 2;
pub(crate) const HOST: i32 = 3;
pub(crate) const EMPTY: i32 = 5;
pub(crate) const MEM_ALLOC: i32 = 10;
pub(crate) const MEM_FREE: i32 = 11;

/// What a node does.
#[derive(Clone)]
pub(crate) enum Work {
    Kernel,
    Empty,
    Run { kind: i32, run: Arc<dyn Fn() -> Done + Send + Sync> },
    Alloc(Arc<NodeMemory>),
    Free(Pointer),
}

/// The addresses of an allocation node: they stay the same over all launches.
pub(crate) struct NodeMemory {
    pub memory: &'static Memory,
    pub address: Pointer,
    pub size: u64,
    pub span: u64,
}

/// Addresses of freed nodes, released by the next graph operation: the last owner may be dropped
/// while its memory is locked.
static ORPHANS: Mutex<Vec<(usize, Pointer, u64)>> = Mutex::new(Vec::new());

impl Drop for NodeMemory {
    fn drop(&mut self) {
        ORPHANS.lock().unwrap().push((self.memory.index, self.address, self.span));
    }
}

pub(crate) fn release_orphans() {
    let orphans = std::mem::take(&mut *ORPHANS.lock().unwrap());
    for (index, address, span) in orphans {
        driver().memory(index).lock().give_pages(address, span);
    }
}

impl Work {
    pub(crate) fn alloc(memory: &'static Memory, size: u64) -> Done<(Work, Pointer)> {
        release_orphans();
        let span = round_up(size, PAGE)?;
        let address = memory.lock().take_pages(span, PAGE)?;
        let node = NodeMemory { memory, address, size, span };
        Ok((Work::Alloc(Arc::new(node)), address))
    }

    pub(crate) fn host(function: HostFunction, data: usize) -> Work {
        Work::Run {
            kind: HOST,
            run: Arc::new(move || {
                // SAFETY: the program gave both for this call.
                crate::host_function::run(|| unsafe { function(data as *mut c_void) });
                Ok(())
            }),
        }
    }

    pub(crate) fn kind(&self) -> i32 {
        match self {
            Work::Kernel => KERNEL,
            Work::Empty => EMPTY,
            Work::Run { kind, .. } => *kind,
            Work::Alloc(_) => MEM_ALLOC,
            Work::Free(_) => MEM_FREE,
        }
    }
}

pub(crate) struct Node {
    pub graph: usize,
    pub after: Vec<usize>,
    pub work: Work,
}

pub(crate) struct Exec {
    pub work: Vec<Work>,
    pub flags: u64,
    pub cost: Arc<GraphCost>,
}

#[derive(Default)]
pub(crate) struct Graphs {
    pub graphs: HashSet<usize>,
    /// By handle: a later node has a larger one.
    pub nodes: BTreeMap<usize, Node>,
    pub execs: HashMap<usize, Arc<Exec>>,
}

static GRAPHS: Mutex<Option<Graphs>> = Mutex::new(None);

pub(crate) struct Guard(MutexGuard<'static, Option<Graphs>>);

impl std::ops::Deref for Guard {
    type Target = Graphs;
    fn deref(&self) -> &Graphs {
        self.0.as_ref().expect("made by graphs()")
    }
}

impl std::ops::DerefMut for Guard {
    fn deref_mut(&mut self) -> &mut Graphs {
        self.0.as_mut().expect("made by graphs()")
    }
}

pub(crate) fn graphs() -> Guard {
    let mut guard = GRAPHS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    guard.get_or_insert_default();
    Guard(guard)
}

pub(crate) fn new_handle() -> usize {
    0x6a00_0000_0000 + next_id() as usize * 16
}

impl Graphs {
    pub(crate) fn check(&self, graph: usize) -> Done {
        if self.graphs.contains(&graph) { Ok(()) } else { Err(Error::INVALID_VALUE) }
    }

    pub(crate) fn node(&mut self, node: Handle) -> Done<&mut Node> {
        self.nodes.get_mut(&(node as usize)).ok_or(Error::INVALID_VALUE)
    }

    pub(crate) fn of(&self, graph: usize) -> impl Iterator<Item = (usize, &Node)> {
        self.nodes.iter().filter(move |(_, node)| node.graph == graph).map(|(&id, node)| (id, node))
    }

    pub(crate) fn add(&mut self, graph: usize, after: &[usize], work: Work) -> Done<usize> {
        self.check(graph)?;
        let known = |id: &usize| self.nodes.get(id).is_some_and(|node| node.graph == graph);
        if !after.iter().all(known) {
            return Err(Error::INVALID_VALUE);
        }
        let id = new_handle();
        self.nodes.insert(id, Node { graph, after: after.to_vec(), work });
        Ok(id)
    }

    /// A recapture has come to a node. Nodes that allocate or free keep what they were.
    pub(crate) fn replace(
        &mut self,
        id: Option<usize>,
        after: &[usize],
        work: Work,
    ) -> Done<usize> {
        let id = id.ok_or(Error::INVALID_VALUE)?;
        let node = self.node(id as Handle)?;
        let same = match (&node.work, &work) {
            (Work::Alloc(old), Work::Alloc(new)) => old.size == new.size,
            (Work::Free(old), Work::Free(new)) => old == new,
            (old, new) => old.kind() == new.kind(),
        };
        if !same || node.after != after {
            return Err(Error::INVALID_VALUE);
        }
        if !matches!(work, Work::Alloc(_)) {
            node.work = work;
        }
        Ok(id)
    }

    /// All work in an order that the dependencies allow; an error for a circle.
    pub(crate) fn ordered(&self, graph: usize) -> Done<Vec<Work>> {
        self.check(graph)?;
        let mut waiting: Vec<(usize, &Node)> = self.of(graph).collect();
        let mut done = HashSet::new();
        let mut order = Vec::with_capacity(waiting.len());
        while !waiting.is_empty() {
            let before = waiting.len();
            waiting.retain(|(id, node)| {
                let ready = node.after.iter().all(|after| done.contains(after));
                if ready {
                    done.insert(*id);
                    order.push(node.work.clone());
                }
                !ready
            });
            if waiting.len() == before {
                return Err(Error::INVALID_VALUE);
            }
        }
        Ok(order)
    }

    pub(crate) fn remove(&mut self, graph: usize) -> Done {
        self.check(graph)?;
        self.graphs.remove(&graph);
        self.nodes.retain(|_, node| node.graph != graph);
        Ok(())
    }
}

pub(crate) fn new_graph() -> usize {
    let id = new_handle();
    graphs().graphs.insert(id);
    id
}

pub(crate) fn discard(graph: usize) {
    let _ = graphs().remove(graph);
}

pub(crate) fn check(graph: usize) -> Done {
    graphs().check(graph)
}

pub(crate) fn add(graph: usize, after: &[usize], work: Work) -> Done<usize> {
    graphs().add(graph, after, work)
}

/// Has the graph a node that allocates at this address?
pub(crate) fn allocates(graph: usize, pointer: Pointer) -> bool {
    graphs()
        .of(graph)
        .any(|(_, node)| matches!(&node.work, Work::Alloc(memory) if memory.address == pointer))
}

pub(crate) fn handles(list: In<Handle>, count: usize) -> Done<Vec<usize>> {
    Ok(list.list(count)?.into_iter().map(|handle| handle as usize).collect())
}
