//! Allocation and free nodes of graphs: created by the program's calls, and read back from the driver.

use super::prelude::*;
use crate::model::graphs::{Block, Plan};
use crate::runtime::fallible::{TryPush, list_of};
use crate::runtime::hash_table::NoMemory;
use std::iter::repeat_n;
use std::ptr::null_mut;

/// After a call that adds an allocation node.
fn made_node(
    call: Call<impl Row>,
    params: &CUDA_MEM_ALLOC_NODE_PARAMS,
    result: CUresult,
) -> CUresult {
    let (p, api) = (call.p, call.api());
    if result != 0 {
        let target = Target { device: device_id(params.pool_props.location.id), ..NO_TARGET };
        let request = Request::new(api, Kind::Graph, target, params.bytesize as u64);
        return refuse(p, &request, Why::Driver(result));
    }
    p.graphs.made_node(params.dptr, api as u16, stack(p));
    result
}

pub fn add_mem_alloc_node(
    call: Call<impl Row>,
    params: Out<CUDA_MEM_ALLOC_NODE_PARAMS>,
) -> CUresult {
    let result = call.forward();
    params.get().map_or(result, |params| made_node(call, &params, result))
}

/// cuGraphAddNode in any version. Only nodes that allocate are handled.
pub fn add_node(call: Call<impl Row>, params: Out<CUgraphNodeParams>) -> CUresult {
    let result = call.forward();
    match params.get() {
        Some(params) if params.kind == CU_GRAPH_NODE_TYPE_MEM_ALLOC => {
            const _: () = assert!(size_of::<CUDA_MEM_ALLOC_NODE_PARAMS>() <= 29 * 8);
            // SAFETY: the union is longer, starts with the parameters of its kind of node, and any bits
            // are such parameters.
            let alloc = unsafe { core::mem::transmute_copy(&params.union_) };
            made_node(call, &alloc, result)
        }
        _ => result,
    }
}

const CU_GRAPH_NODE_TYPE_GRAPH: i32 = 4;
const AUTO_FREE_ON_LAUNCH: u64 = 1;
/// Depth of nested child graphs; deeper ones are not followed.
const DEEPEST: u32 = 16;

/// The nodes of a graph that the program instantiates, without those of child graphs; 0 = not known.
pub(in crate::hooks) fn node_count(graph: Graph) -> u32 {
    let count = if graph.is_null() { 0 } else { count_of(graph).unwrap_or(0) };
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn count_of(graph: Graph) -> Option<usize> {
    // SAFETY: a live graph, the program's or a child of it; without a list, only the count is written.
    answer(0, |count| Some(unsafe { driver().graph_get_nodes?(graph, null_mut(), count) }))
}

/// The allocation and free nodes of a graph, queried from the driver: captured ones, created ones, and
/// those of child graphs.
pub(in crate::hooks) fn plan_of(graph: Graph, flags: u64) -> Result<Plan, NoMemory> {
    let mut plan = Plan::default();
    plan.auto_free = flags & AUTO_FREE_ON_LAUNCH != 0;
    collect(graph, &mut plan, 0)?;
    plan.measure()?;
    Ok(plan)
}

fn collect(graph: Graph, plan: &mut Plan, depth: u32) -> Result<(), NoMemory> {
    let Some(mut count) = count_of(graph) else { return Ok(()) };
    let nodes = list_of(count, repeat_n(null_mut(), count))?;
    let nodes = answer(nodes, |nodes| {
        // SAFETY: a live graph, and room for as many nodes.
        Some(unsafe { driver().graph_get_nodes?(graph, nodes.as_mut_ptr(), &mut count) })
    });
    for node in nodes.into_iter().flatten().take(count) {
        match kind_of(node) {
            CU_GRAPH_NODE_TYPE_MEM_ALLOC => {
                if let Some(block) = taken_by(node) {
                    plan.takes.try_push(block)?;
                }
            }
            CU_GRAPH_NODE_TYPE_MEM_FREE => {
                if let Some(address) = freed_by(node) {
                    plan.frees.try_push(address)?;
                }
            }
            CU_GRAPH_NODE_TYPE_GRAPH if depth < DEEPEST => {
                if let Some(child) = child_of(node) {
                    collect(child, plan, depth + 1)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

// Of live nodes, and each query is made only of one of its type. Where the driver gives no answer, a node is none of these.

fn kind_of(node: Node) -> i32 {
    // SAFETY: see above.
    answer(0, |kind| Some(unsafe { driver().graph_node_get_type?(node, kind) })).unwrap_or(0) as i32
}

fn taken_by(node: Node) -> Option<Block> {
    // SAFETY: integers and pointers, for which zeros are valid.
    let empty: CUDA_MEM_ALLOC_NODE_PARAMS = unsafe { core::mem::zeroed() };
    let ask = driver().graph_mem_alloc_node_get_params?;
    // SAFETY: see above.
    let params = answer(empty, |params| Some(unsafe { ask(node, params) }))?;
    let device = device_id(params.pool_props.location.id);
    Some(Block { address: params.dptr, size: params.bytesize as u64, device })
}

fn freed_by(node: Node) -> Option<u64> {
    let ask = driver().graph_mem_free_node_get_params?;
    // SAFETY: see above.
    answer(0, |address| Some(unsafe { ask(node, address) }))
}

fn child_of(node: Node) -> Option<Graph> {
    let ask = driver().graph_child_graph_node_get_graph?;
    // SAFETY: see above.
    answer(null_mut(), |child| Some(unsafe { ask(node, child) }))
}
