//! Graphs: nodes, instantiation, launch. Work nodes run when the graph is launched, in an order
//! that their dependencies allow; kernels do nothing.

use crate::abi::*;
use crate::copy;
use crate::device;
use crate::error::{Done, Error};
use crate::graphs::*;
use crate::pool::memory_of_location;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

pub(crate) fn create(out: Out<Handle>, flags: u32) -> Done {
    if out.is_null() || flags != 0 {
        return Err(Error::INVALID_VALUE);
    }
    out.set(new_graph() as Handle);
    Ok(())
}

pub(crate) fn destroy(graph: Handle) -> Done {
    graphs().remove(graph as usize)?;
    release_orphans();
    Ok(())
}

pub(crate) fn clone(out: Out<Handle>, graph: Handle) -> Done {
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let mut all = graphs();
    all.check(graph as usize)?;
    let copy = new_handle();
    all.graphs.insert(copy, ());
    let nodes: Vec<(usize, Vec<usize>, Work)> = all
        .of(graph as usize)
        .map(|(id, node)| (id, node.after.clone(), node.work.clone()))
        .collect();
    let ids: HashMap<usize, usize> = nodes.iter().map(|(id, ..)| (*id, new_handle())).collect();
    for (id, after, work) in nodes {
        let after = after.iter().filter_map(|id| ids.get(id).copied()).collect();
        all.nodes.insert(ids[&id], Node { graph: copy, after, work });
    }
    out.set(copy as Handle);
    Ok(())
}

type List = In<Handle>;

fn add_node(out: Out<Handle>, graph: Handle, list: List, count: usize, work: Work) -> Done {
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let after = handles(list, count)?;
    let node = add(graph as usize, &after, work)?;
    out.set(node as Handle);
    Ok(())
}

pub(crate) fn add_empty(out: Out<Handle>, graph: Handle, list: List, count: usize) -> Done {
    add_node(out, graph, list, count, Work::Nothing(EMPTY))
}

pub(crate) fn add_kernel(
    out: Out<Handle>,
    graph: Handle,
    list: List,
    count: usize,
    params: In<c_void>,
) -> Done {
    if params.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    add_node(out, graph, list, count, Work::Kernel)
}

pub(crate) fn add_event_record(
    out: Out<Handle>,
    graph: Handle,
    list: List,
    count: usize,
    _event: Handle,
) -> Done {
    add_node(out, graph, list, count, Work::Nothing(EVENT_RECORD))
}

pub(crate) fn add_event_wait(
    out: Out<Handle>,
    graph: Handle,
    list: List,
    count: usize,
    _event: Handle,
) -> Done {
    add_node(out, graph, list, count, Work::Nothing(WAIT_EVENT))
}

pub(crate) fn add_copy(
    out: Out<Handle>,
    graph: Handle,
    list: List,
    count: usize,
    params: In<Copy3d>,
    _context: Handle,
) -> Done {
    let params = params.get()?;
    let work = Work::Run { kind: MEMCPY, run: Arc::new(copy::box_node(&params)) };
    add_node(out, graph, list, count, work)
}

pub(crate) fn add_fill(
    out: Out<Handle>,
    graph: Handle,
    list: List,
    count: usize,
    params: In<MemsetNodeParams>,
    _context: Handle,
) -> Done {
    let params = params.get()?;
    let work = Work::Run { kind: MEMSET, run: Arc::new(copy::fill_node(&params)) };
    add_node(out, graph, list, count, work)
}

pub(crate) fn add_host(
    out: Out<Handle>,
    graph: Handle,
    list: List,
    count: usize,
    params: In<HostNodeParams>,
) -> Done {
    let params = params.get()?;
    let work = Work::host(params.function.ok_or(Error::INVALID_VALUE)?, params.data as usize);
    add_node(out, graph, list, count, work)
}

pub(crate) fn add_child(
    out: Out<Handle>,
    graph: Handle,
    list: List,
    count: usize,
    child: Handle,
) -> Done {
    let work = Work::Child(graphs().ordered_checked(child as usize)?);
    add_node(out, graph, list, count, work)
}

pub(crate) fn add_alloc(
    out: Out<Handle>,
    graph: Handle,
    list: List,
    count: usize,
    params: Out<AllocNodeParams>,
) -> Done {
    let wanted = params;
    let params = wanted.get()?;
    if params.size == 0 || params.pool.kind != 1 {
        return Err(Error::INVALID_VALUE);
    }
    let memory = memory_of_location(params.pool.location)?;
    let (work, pointer) = Work::alloc(memory, params.size as u64)?;
    add_node(out, graph, list, count, work)?;
    wanted.set(AllocNodeParams { pointer, ..params });
    Ok(())
}

pub(crate) fn add_free(
    out: Out<Handle>,
    graph: Handle,
    list: List,
    count: usize,
    pointer: Pointer,
) -> Done {
    if !allocates(graph as usize, pointer) {
        return Err(Error::INVALID_VALUE);
    }
    add_node(out, graph, list, count, Work::Free(pointer))
}

/// The words of `GraphNodeParams` before its body.
const BODY: usize = std::mem::offset_of!(GraphNodeParams, body) / size_of::<u64>();

pub(crate) fn add_any(
    out: Out<Handle>,
    graph: Handle,
    list: List,
    count: usize,
    params: Out<GraphNodeParams>,
) -> Done {
    let kind = params.get()?.kind;
    let body = params.cast::<u64>().at(BODY);
    let none = std::ptr::null_mut();
    match kind {
        KERNEL => add_kernel(out, graph, list, count, body.input().cast()),
        // Flags and a context stand before the copy.
        MEMCPY => add_copy(out, graph, list, count, body.at(2).input().cast(), none),
        MEMSET => add_fill(out, graph, list, count, body.input().cast(), none),
        HOST => add_host(out, graph, list, count, body.input().cast()),
        CHILD => add_child(out, graph, list, count, body.get()? as Handle),
        EMPTY => add_empty(out, graph, list, count),
        WAIT_EVENT => add_event_wait(out, graph, list, count, body.get()? as Handle),
        EVENT_RECORD => add_event_record(out, graph, list, count, body.get()? as Handle),
        MEM_ALLOC => add_alloc(out, graph, list, count, body.cast()),
        MEM_FREE => add_free(out, graph, list, count, body.get()?),
        _ => Err(Error::NOT_SUPPORTED),
    }
}

pub(crate) fn add_any_v2(
    out: Out<Handle>,
    graph: Handle,
    list: List,
    _data: In<u8>,
    count: usize,
    params: Out<GraphNodeParams>,
) -> Done {
    add_any(out, graph, list, count, params)
}

pub(crate) fn destroy_node(node: Handle) -> Done {
    let mut all = graphs();
    let removed = all.nodes.remove(&(node as usize)).ok_or(Error::INVALID_VALUE)?;
    for other in all.nodes.values_mut().filter(|other| other.graph == removed.graph) {
        other.after.retain(|&id| id != node as usize);
    }
    Ok(())
}

pub(crate) fn node_type(node: Handle, out: Out<i32>) -> Done {
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    out.set(graphs().node(node)?.work.kind());
    Ok(())
}

pub(crate) fn alloc_params(node: Handle, out: Out<AllocNodeParams>) -> Done {
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let mut all = graphs();
    let Work::Alloc(memory) = &all.node(node)?.work else { return Err(Error::INVALID_VALUE) };
    let location = Location { kind: LOCATION_DEVICE, id: device::ordinal(memory.memory.index) };
    let pool = PoolProps {
        kind: 1,
        handle_types: 0,
        location,
        win32: 0,
        max_size: 0,
        usage: 0,
        reserved: [0; 54],
    };
    let (size, pointer) = (memory.size as usize, memory.address);
    out.set(AllocNodeParams { pool, access: std::ptr::null(), access_count: 0, size, pointer });
    Ok(())
}

pub(crate) fn free_params(node: Handle, out: Out<Pointer>) -> Done {
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    match graphs().node(node)?.work {
        Work::Free(pointer) => out.set(pointer),
        _ => return Err(Error::INVALID_VALUE),
    }
    Ok(())
}

/// A list the driver's way: without an output, only the count is returned.
fn put_list(out: Out<Handle>, count: Out<usize>, list: Vec<usize>) -> Done {
    let room = count.get()?;
    count.set(put_up_to(out, room, &list));
    Ok(())
}

/// The number that was written; without an output, the number that there is.
fn put_up_to(out: Out<Handle>, room: usize, list: &[usize]) -> usize {
    if out.is_null() {
        return list.len();
    }
    for at in 0..room {
        out.at(at).set(list.get(at).copied().unwrap_or(0) as Handle);
    }
    list.len().min(room)
}

pub(crate) fn get_nodes(graph: Handle, out: Out<Handle>, count: Out<usize>) -> Done {
    let all = graphs();
    all.check(graph as usize)?;
    let list = all.of(graph as usize).map(|(id, _)| id).collect();
    put_list(out, count, list)
}

pub(crate) fn get_roots(graph: Handle, out: Out<Handle>, count: Out<usize>) -> Done {
    let all = graphs();
    all.check(graph as usize)?;
    let roots = all.of(graph as usize).filter(|(_, node)| node.after.is_empty());
    let list = roots.map(|(id, _)| id).collect();
    put_list(out, count, list)
}

pub(crate) fn get_edges(
    graph: Handle,
    from: Out<Handle>,
    to: Out<Handle>,
    count: Out<usize>,
) -> Done {
    let all = graphs();
    all.check(graph as usize)?;
    if count.is_null() || from.is_null() != to.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let edges = all
        .of(graph as usize)
        .flat_map(|(id, node)| node.after.iter().map(move |&after| (after, id)))
        .collect::<Vec<_>>();
    let (before, after): (Vec<usize>, Vec<usize>) = edges.into_iter().unzip();
    put_up_to(from, count.get()?, &before);
    put_list(to, count, after)
}

pub(crate) fn get_edges_v2(
    graph: Handle,
    from: Out<Handle>,
    to: Out<Handle>,
    data: Out<[u8; 8]>,
    count: Out<usize>,
) -> Done {
    get_edges(graph, from, to, count)?;
    clear_data(data, count)
}

fn clear_data(data: Out<[u8; 8]>, count: Out<usize>) -> Done {
    for at in 0..count.get()? {
        data.at(at).set([0; 8]);
    }
    Ok(())
}

pub(crate) fn get_dependencies(node: Handle, out: Out<Handle>, count: Out<usize>) -> Done {
    let list = graphs().node(node)?.after.clone();
    put_list(out, count, list)
}

pub(crate) fn get_dependencies_v2(
    node: Handle,
    out: Out<Handle>,
    data: Out<[u8; 8]>,
    count: Out<usize>,
) -> Done {
    get_dependencies(node, out, count)?;
    clear_data(data, count)
}

pub(crate) fn get_dependents(node: Handle, out: Out<Handle>, count: Out<usize>) -> Done {
    let mut all = graphs();
    let graph = all.node(node)?.graph;
    let dependents = all.of(graph).filter(|(_, other)| other.after.contains(&(node as usize)));
    let list = dependents.map(|(id, _)| id).collect();
    put_list(out, count, list)
}

pub(crate) fn get_dependents_v2(
    node: Handle,
    out: Out<Handle>,
    data: Out<[u8; 8]>,
    count: Out<usize>,
) -> Done {
    get_dependents(node, out, count)?;
    clear_data(data, count)
}

fn change_edges(
    graph: Handle,
    from: List,
    to: List,
    count: usize,
    change: fn(&mut Vec<usize>, usize) -> bool,
) -> Done {
    let (from, to) = (handles(from, count)?, handles(to, count)?);
    let mut all = graphs();
    all.check(graph as usize)?;
    for (from, to) in from.into_iter().zip(to) {
        if all.node(from as Handle)?.graph != graph as usize {
            return Err(Error::INVALID_VALUE);
        }
        if !change(&mut all.node(to as Handle)?.after, from) {
            return Err(Error::INVALID_VALUE);
        }
    }
    Ok(())
}

pub(crate) fn add_dependencies(graph: Handle, from: List, to: List, count: usize) -> Done {
    let change = |after: &mut Vec<usize>, id| {
        let new = !after.contains(&id);
        after.push(id);
        new
    };
    change_edges(graph, from, to, count, change)
}

pub(crate) fn add_dependencies_v2(
    graph: Handle,
    from: List,
    to: List,
    _data: In<u8>,
    count: usize,
) -> Done {
    add_dependencies(graph, from, to, count)
}

pub(crate) fn remove_dependencies(graph: Handle, from: List, to: List, count: usize) -> Done {
    let change = |after: &mut Vec<usize>, id| {
        let before = after.len();
        after.retain(|&other| other != id);
        after.len() < before
    };
    change_edges(graph, from, to, count, change)
}

pub(crate) fn remove_dependencies_v2(
    graph: Handle,
    from: List,
    to: List,
    _data: In<u8>,
    count: usize,
) -> Done {
    remove_dependencies(graph, from, to, count)
}

pub(crate) fn debug_dot(graph: Handle, path: Name, _flags: u32) -> Done {
    let path = path.text()?;
    let mut text = String::from("digraph {\n");
    {
        let all = graphs();
        all.check(graph as usize)?;
        for (id, node) in all.of(graph as usize) {
            text += &format!("  n{id:x} [label=\"type {}\"];\n", node.work.kind());
            for after in &node.after {
                text += &format!("  n{after:x} -> n{id:x};\n");
            }
        }
    }
    std::fs::write(path, text + "}\n").map_err(|_| Error::OPERATING_SYSTEM)
}
