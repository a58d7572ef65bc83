//! Instantiating, uploading and launching graphs, and the memory that a device holds for them.

use crate::abi::*;
use crate::contexts;
use crate::device;
use crate::driver::driver;
use crate::error::{Done, Error};
use crate::graph_cost::GraphCost;
use crate::graphs::{Exec, Work, graphs, new_handle, release_orphans};
use crate::memory::{Block, Memory, Owner};
use crate::streams;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

const AUTO_FREE: u64 = 1;

pub(crate) fn instantiate_flags(out: Out<Handle>, graph: Handle, flags: u64) -> Done {
    let context = contexts::current()?;
    out.check()?;
    let mut all = graphs();
    let work = all.ordered(graph as usize)?;
    let cost = Arc::new(GraphCost::new(context, work.len())?);
    let handle = new_handle();
    all.execs.insert(handle, Arc::new(Exec { work, flags, cost }));
    out.put(handle as Handle)
}

fn exec(handle: Handle) -> Done<Arc<Exec>> {
    graphs().execs.get(&(handle as usize)).cloned().ok_or(Error::INVALID_VALUE)
}

pub(crate) fn exec_destroy(handle: Handle) -> Done {
    graphs().execs.remove(&(handle as usize)).ok_or(Error::INVALID_VALUE)?;
    release_orphans();
    Ok(())
}

/// An update with a graph of the same shape.
pub(crate) fn exec_update(handle: Handle, graph: Handle, info: Out<[u64; 3]>) -> Done {
    let mut all = graphs();
    let work = all.ordered(graph as usize)?;
    let old = all.execs.get(&(handle as usize)).cloned().ok_or(Error::INVALID_VALUE)?;
    let kinds = |work: &[Work]| work.iter().map(Work::kind).collect::<Vec<_>>();
    if kinds(&work) != kinds(&old.work) {
        // CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED
        info.set([2, 0, 0]);
        return Err(Error(910));
    }
    let exec = Exec { work, flags: old.flags, cost: old.cost.clone() };
    all.execs.insert(handle as usize, Arc::new(exec));
    info.set([0; 3]);
    Ok(())
}

/// The highest number of bytes that are live at once while the work runs, per device.
fn need(work: &[Work]) -> HashMap<usize, u64> {
    let mut live: HashMap<Pointer, (usize, u64)> = HashMap::new();
    let mut now: HashMap<usize, u64> = HashMap::new();
    let mut most: HashMap<usize, u64> = HashMap::new();
    for one in work {
        match one {
            Work::Alloc(node) => {
                let index = node.memory.index;
                live.insert(node.address, (index, node.span));
                let bytes = now.entry(index).or_default();
                *bytes += node.span;
                let high = most.entry(index).or_default();
                *high = (*high).max(*bytes);
            }
            Work::Free(pointer) => {
                if let Some((index, span)) = live.remove(pointer) {
                    *now.entry(index).or_default() -= span;
                }
            }
            _ => {}
        }
    }
    most
}

fn reserve(exec: &Exec) -> Done {
    for (index, bytes) in need(&exec.work) {
        driver().memory(index).lock().graph_reserve(bytes)?;
    }
    Ok(())
}

pub(crate) fn upload(handle: Handle, stream: StreamArg) -> Done {
    let place = streams::place(stream)?;
    if place.capture.is_some() {
        return Err(Error::CAPTURE_UNSUPPORTED);
    }
    let exec = exec(handle)?;
    exec.cost.used()?;
    reserve(&exec)
}

fn run(work: &[Work]) -> Done {
    for one in work {
        match one {
            Work::Kernel | Work::Empty => {}
            Work::Run { run: step, .. } => step()?,
            Work::Alloc(node) => {
                let mut locked = node.memory.lock();
                locked.state.graph.take(node.span);
                let owner = Owner::Graph(node.clone());
                let block = Block { size: node.size, span: node.span, owner, context: 0 };
                locked.state.live.insert(node.address, block);
            }
            Work::Free(pointer) => {
                let memory = driver().at(*pointer).ok_or(Error::INVALID_VALUE)?;
                memory.lock().free(*pointer)?;
            }
        }
    }
    Ok(())
}

/// Is a node's memory still there from the launch before?
fn still_live(work: &[Work]) -> Vec<(&'static Memory, Pointer)> {
    let memories = work.iter().filter_map(|one| match one {
        Work::Alloc(node) => Some((node.memory, node.address)),
        _ => None,
    });
    memories.filter(|(memory, at)| memory.lock().state.live.contains_key(at)).collect()
}

pub(crate) fn launch(handle: Handle, stream: StreamArg) -> Done {
    let place = streams::place(stream)?;
    let exec = exec(handle)?;
    if place.capture.is_some() {
        return Err(Error::CAPTURE_UNSUPPORTED);
    }
    for (memory, pointer) in still_live(&exec.work) {
        if exec.flags & AUTO_FREE == 0 {
            return Err(Error::INVALID_VALUE);
        }
        memory.lock().free(pointer)?;
    }
    exec.cost.used()?;
    reserve(&exec)?;
    run(&exec.work)
}

// The device's graph memory.

pub(crate) fn trim(ordinal: i32) -> Done {
    let memory = driver().memory(device::by_ordinal(ordinal)?);
    let given = memory.lock().state.graph.trim();
    memory.release(given, given);
    Ok(())
}

pub(crate) fn get_attribute(ordinal: i32, attribute: i32, out: Out<c_void>) -> Done {
    let memory = driver().memory(device::by_ordinal(ordinal)?);
    let locked = memory.lock();
    let graph = &locked.state.graph;
    out.cast::<u64>().put(match attribute {
        0 => graph.used,
        2 => graph.reserved,
        _ => return Err(Error::INVALID_VALUE),
    })
}
