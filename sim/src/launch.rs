//! Instantiating, uploading and launching graphs, and the memory that a device holds for them.

use crate::abi::*;
use crate::contexts;
use crate::device;
use crate::driver::driver;
use crate::error::{Done, Error};
use crate::graph_cost::GraphCost;
use crate::graphs::{Exec, Work, graphs, new_handle, release_orphans};
use crate::memory::{Block, Memory, Owner, next_id};
use crate::streams;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

const AUTO_FREE: u64 = 1;
const UPLOAD: u64 = 2;

pub(crate) fn instantiate_flags(out: Out<Handle>, graph: Handle, flags: u64) -> Done {
    let context = contexts::current()?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let mut all = graphs();
    let work = all.ordered_checked(graph as usize)?;
    let cost = Arc::new(GraphCost::new(context, work.len())?);
    let handle = new_handle();
    all.execs.insert(handle, Arc::new(Exec { work, flags, cost }));
    out.set(handle as Handle);
    Ok(())
}

pub(crate) fn instantiate(
    out: Out<Handle>,
    graph: Handle,
    _error_node: Out<Handle>,
    log: Out<u8>,
    length: usize,
) -> Done {
    if length > 0 {
        log.set(0);
    }
    instantiate_flags(out, graph, 0)
}

pub(crate) fn instantiate_params(
    out: Out<Handle>,
    graph: Handle,
    params: Out<InstantiateParams>,
) -> Done {
    let wanted = params.get()?;
    params.set(InstantiateParams { result: 1, ..wanted });
    instantiate_flags(out, graph, wanted.flags)?;
    if wanted.flags & UPLOAD != 0 {
        upload(out.get()?, wanted.upload_stream)?;
    }
    params.set(InstantiateParams { result: 0, error_node: std::ptr::null_mut(), ..wanted });
    Ok(())
}

fn exec(handle: Handle) -> Done<Arc<Exec>> {
    graphs().execs.get(&(handle as usize)).cloned().ok_or(Error::INVALID_VALUE)
}

pub(crate) fn exec_destroy(handle: Handle) -> Done {
    graphs().execs.remove(&(handle as usize)).ok_or(Error::INVALID_VALUE)?;
    release_orphans();
    Ok(())
}

pub(crate) fn exec_flags(handle: Handle, out: Out<u64>) -> Done {
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    out.set(exec(handle)?.flags);
    Ok(())
}

/// An update with a graph of the same shape.
fn replace(handle: Handle, graph: Handle) -> Done<i32> {
    let mut all = graphs();
    let work = all.ordered_checked(graph as usize)?;
    let old = all.execs.get(&(handle as usize)).cloned().ok_or(Error::INVALID_VALUE)?;
    let kinds = |work: &[Work]| work.iter().map(Work::kind).collect::<Vec<_>>();
    if kinds(&work) != kinds(&old.work) {
        // CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED
        return Ok(2);
    }
    all.execs
        .insert(handle as usize, Arc::new(Exec { work, flags: old.flags, cost: old.cost.clone() }));
    Ok(0)
}

pub(crate) fn exec_update(
    handle: Handle,
    graph: Handle,
    error_node: Out<Handle>,
    out: Out<i32>,
) -> Done {
    let result = replace(handle, graph)?;
    error_node.set(std::ptr::null_mut());
    out.set(result);
    if result == 0 { Ok(()) } else { Err(Error(910)) }
}

pub(crate) fn exec_update_v2(handle: Handle, graph: Handle, info: Out<[u64; 3]>) -> Done {
    let result = replace(handle, graph)?;
    info.set([result as u64, 0, 0]);
    if result == 0 { Ok(()) } else { Err(Error(910)) }
}

/// New parameters of a node. Kernels do nothing, so they are not kept.
pub(crate) fn set_params(handle: Handle, node: Handle, params: In<c_void>) -> Done {
    exec(handle)?;
    if node.is_null() || params.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    Ok(())
}

/// The most bytes that are live at once while the work runs, per device.
fn need(work: &[Work]) -> HashMap<usize, u64> {
    let mut live: HashMap<Pointer, (usize, u64)> = HashMap::new();
    let mut now: HashMap<usize, u64> = HashMap::new();
    let mut most: HashMap<usize, u64> = HashMap::new();
    fn walk(work: &[Work], step: &mut impl FnMut(&Work)) {
        for one in work {
            match one {
                Work::Child(inside) => walk(inside, step),
                other => step(other),
            }
        }
    }
    walk(work, &mut |one| match one {
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
    });
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
            Work::Kernel | Work::Nothing(_) => {}
            Work::Run { run: step, .. } => step()?,
            Work::Child(inside) => self::run(inside)?,
            Work::Alloc(node) => {
                let mut locked = node.memory.lock();
                locked.state.graph.take(node.span);
                let block = Block {
                    size: node.size,
                    span: node.span,
                    owner: Owner::Graph(node.clone()),
                    context: 0,
                    id: next_id(),
                };
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
    let mut list = Vec::new();
    for one in work {
        match one {
            Work::Alloc(node) if node.memory.lock().state.live.contains_key(&node.address) => {
                list.push((node.memory, node.address));
            }
            Work::Child(inside) => list.extend(still_live(inside)),
            _ => {}
        }
    }
    list
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
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let locked = memory.lock();
    let graph = &locked.state.graph;
    let value = match attribute {
        0 => graph.used,
        1 => graph.used_high,
        2 => graph.reserved,
        3 => graph.reserved_high,
        _ => return Err(Error::INVALID_VALUE),
    };
    out.cast::<u64>().set(value);
    Ok(())
}

/// The high marks can be set back to what is now.
pub(crate) fn set_attribute(ordinal: i32, attribute: i32, value: Out<c_void>) -> Done {
    let memory = driver().memory(device::by_ordinal(ordinal)?);
    if value.is_null() || value.cast::<u64>().get()? != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let mut locked = memory.lock();
    let graph = &mut locked.state.graph;
    match attribute {
        1 => graph.used_high = graph.used,
        3 => graph.reserved_high = graph.reserved,
        _ => return Err(Error::INVALID_VALUE),
    }
    Ok(())
}
