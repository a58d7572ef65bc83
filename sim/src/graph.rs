//! Graphs: nodes, instantiation, launch. Work nodes run when the graph is launched, in an order
//! that their dependencies allow; kernels do nothing.

use crate::abi::*;
use crate::device;
use crate::error::{Done, Error};
use crate::graphs::*;
use crate::pool::memory_of_location;

pub(crate) fn create(out: Out<Handle>, flags: u32) -> Done {
    if out.is_null() || flags != 0 {
        return Err(Error::INVALID_VALUE);
    }
    out.put(new_graph() as Handle)
}

pub(crate) fn destroy(graph: Handle) -> Done {
    graphs().remove(graph as usize)?;
    release_orphans();
    Ok(())
}

type List = In<Handle>;

fn add_node(out: Out<Handle>, graph: Handle, list: List, count: usize, work: Work) -> Done {
    out.check()?;
    let after = handles(list, count)?;
    let node = add(graph as usize, &after, work)?;
    out.put(node as Handle)
}

pub(crate) fn add_empty(out: Out<Handle>, graph: Handle, list: List, count: usize) -> Done {
    add_node(out, graph, list, count, Work::Empty)
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
    let body = params.cast::<u64>().at(BODY);
    match params.get()?.kind {
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

pub(crate) fn node_type(node: Handle, out: Out<i32>) -> Done {
    out.put(graphs().node(node)?.work.kind())
}

pub(crate) fn alloc_params(node: Handle, out: Out<AllocNodeParams>) -> Done {
    out.check()?;
    let mut all = graphs();
    let Work::Alloc(memory) = &all.node(node)?.work else { return Err(Error::INVALID_VALUE) };
    let pool = PoolProps::of_device(device::ordinal(memory.memory.index));
    let (size, pointer) = (memory.size as usize, memory.address);
    out.put(AllocNodeParams { pool, access: std::ptr::null(), access_count: 0, size, pointer })
}

pub(crate) fn free_params(node: Handle, out: Out<Pointer>) -> Done {
    out.check()?;
    match graphs().node(node)?.work {
        Work::Free(pointer) => out.set(pointer),
        _ => return Err(Error::INVALID_VALUE),
    }
    Ok(())
}

/// Without an output, only the count is returned.
pub(crate) fn get_nodes(graph: Handle, out: Out<Handle>, count: Out<usize>) -> Done {
    let all = graphs();
    all.check(graph as usize)?;
    let list: Vec<usize> = all.of(graph as usize).map(|(id, _)| id).collect();
    let room = count.get()?;
    if out.is_null() {
        return count.put(list.len());
    }
    for at in 0..room {
        out.at(at).set(list.get(at).copied().unwrap_or(0) as Handle);
    }
    count.put(list.len().min(room))
}
