//! Allocation and free nodes of graphs: created by the program's calls, and read back from the driver.

use crate::driver::api::Api;
use crate::driver::cuda::*;
use crate::driver::depth::inside;
use crate::driver::functions::driver;
use crate::driver::param::{In, Out};
use crate::hooks::call::request::{Request, Why, refuse};
use crate::hooks::call::{Call, Function, hooks};
use crate::hooks::process::state::Process;
use crate::hooks::process::target::NO_TARGET;
use crate::model::contexts::Target;
use crate::model::graphs::{Block, Plan};
use crate::runtime::fallible::{TryPush, list_of};
use crate::runtime::hash_table::NoMemory;
use std::iter::repeat_n;
use std::ptr::null_mut;
use vramtrace_format::{DeviceId, Kind};

fn device_of(props: &CUmemPoolProps) -> DeviceId {
    u8::try_from(props.location.id).map_or(DeviceId::UNKNOWN, DeviceId)
}

/// After cuGraphAddMemAllocNode.
fn made_node(
    p: &'static Process,
    api: Api,
    params: &CUDA_MEM_ALLOC_NODE_PARAMS,
    result: CUresult,
) -> CUresult {
    if result != 0 {
        let target = Target { device: device_of(&params.pool_props), ..NO_TARGET };
        let request = Request::new(api, Kind::Graph, target, params.bytesize as u64);
        return refuse(p, &request, Why::Driver(result));
    }
    p.graphs.made_node(params.dptr, api as u16, crate::hooks::process::stacks::stack(p));
    result
}

hooks! { p, call:
    add_mem_alloc_node(
        node: Out<Node>,
        graph: Graph,
        dependencies: In<Node>,
        count: usize,
        params: Out<CUDA_MEM_ALLOC_NODE_PARAMS>,
    ) = {
        let result = call.forward();
        params.get().map_or(result, |params| made_node(p, call.api, &params, result))
    };
    add_node(
        node: Out<Node>,
        graph: Graph,
        dependencies: In<Node>,
        count: usize,
        params: Out<CUgraphNodeParams>,
    ) = made_any_node(p, call, params);
    /// cuGraphAddNode_v2 and _v3.
    add_node_with_edges(
        node: Out<Node>,
        graph: Graph,
        dependencies: In<Node>,
        edges: In<CUgraphEdgeData>,
        count: usize,
        params: Out<CUgraphNodeParams>,
    ) = made_any_node(p, call, params);
}

/// cuGraphAddNode in any version. Only nodes that allocate are handled.
fn made_any_node(
    p: &'static Process,
    call: &Call<impl Function>,
    params: Out<CUgraphNodeParams>,
) -> CUresult {
    let result = call.forward();
    match params.get() {
        Some(params) if params.kind == CU_GRAPH_NODE_TYPE_MEM_ALLOC => {
            const _: () = assert!(size_of::<CUDA_MEM_ALLOC_NODE_PARAMS>() <= 29 * 8);
            // SAFETY: the union is longer, starts with the parameters of its kind of node, and any bits
            // are such parameters.
            let alloc = unsafe { core::mem::transmute_copy(&params.union_) };
            made_node(p, call.api, &alloc, result)
        }
        _ => result,
    }
}

const CU_GRAPH_NODE_TYPE_GRAPH: u32 = 4;
const AUTO_FREE_ON_LAUNCH: u64 = 1;
/// Depth of nested child graphs; deeper ones are not followed.
const DEEPEST: u32 = 16;

/// The nodes of a graph, without those of child graphs; 0 = not known.
pub(in crate::hooks) fn node_count(graph: Graph) -> u32 {
    let Some(get_nodes) = driver().graph_get_nodes.filter(|_| !graph.is_null()) else { return 0 };
    let mut count = 0;
    // SAFETY: the graph that the program instantiates; without a list, only the count is written.
    let result = inside(|| unsafe { get_nodes(graph, null_mut(), &mut count) });
    if result == 0 { u32::try_from(count).unwrap_or(u32::MAX) } else { 0 }
}

/// The allocation and free nodes of a graph, queried from the driver: captured ones, created ones, and
/// those of child graphs.
pub(in crate::hooks) fn plan_of(graph: Graph, flags: u64) -> Result<Plan, NoMemory> {
    let mut plan = Plan::default();
    plan.auto_free = flags & AUTO_FREE_ON_LAUNCH != 0;
    inside(|| collect(graph, &mut plan, 0))?;
    plan.measure()?;
    Ok(plan)
}

fn collect(graph: Graph, plan: &mut Plan, depth: u32) -> Result<(), NoMemory> {
    let driver = driver();
    let functions = (driver.graph_get_nodes, driver.graph_node_get_type);
    let (Some(get_nodes), Some(get_type)) = functions else { return Ok(()) };
    let mut count = 0;
    // SAFETY: each output argument points to room for the answer, and each query is made only of a node
    // of its type.
    unsafe {
        if get_nodes(graph, null_mut(), &mut count) != 0 {
            return Ok(());
        }
        let mut nodes = list_of(count, repeat_n(null_mut(), count))?;
        if get_nodes(graph, nodes.as_mut_ptr(), &mut count) != 0 {
            return Ok(());
        }
        for node in nodes.into_iter().take(count) {
            let mut kind = 0;
            if get_type(node, &mut kind) != 0 {
                continue;
            }
            match kind as i32 {
                CU_GRAPH_NODE_TYPE_MEM_ALLOC => {
                    let mut params: CUDA_MEM_ALLOC_NODE_PARAMS = core::mem::zeroed();
                    let Some(ask) = driver.graph_mem_alloc_node_get_params else { continue };
                    if ask(node, &mut params) == 0 {
                        plan.takes.try_push(Block {
                            address: params.dptr,
                            size: params.bytesize as u64,
                            device: device_of(&params.pool_props),
                        })?;
                    }
                }
                CU_GRAPH_NODE_TYPE_MEM_FREE => {
                    let mut address = 0;
                    let Some(ask) = driver.graph_mem_free_node_get_params else { continue };
                    if ask(node, &mut address) == 0 {
                        plan.frees.try_push(address)?;
                    }
                }
                _ if kind == CU_GRAPH_NODE_TYPE_GRAPH && depth < DEEPEST => {
                    let mut child = null_mut();
                    let Some(ask) = driver.graph_child_graph_node_get_graph else { continue };
                    if ask(node, &mut child) == 0 {
                        collect(child, plan, depth + 1)?;
                    }
                }
                _ => {}
            }
        }
    }
    Ok(())
}
