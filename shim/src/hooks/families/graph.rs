//! Graph memory: executable graphs, and what the driver reserves for them on a device.
//!
//! Creating an allocation node takes no memory. A launch allocates the blocks of the graph's nodes and
//! frees those that the graph itself frees; the others live until they are freed. The driver's
//! reservation grows at upload or first launch and stays until it is trimmed: that reservation is
//! physical memory, and it is what a cap limits.

use super::node::{node_count, plan_of};
use crate::driver::api::Api;
use crate::driver::capture_status::is_capturing;
use crate::driver::cuda::*;
use crate::driver::param::Out;
use crate::hooks::call::accounting::{begin_free, commit_free, enter, free_failed};
use crate::hooks::call::after_call::unfollowed;
use crate::hooks::call::attribution::{nameless, watched, watched_seldom};
use crate::hooks::call::request::{Request, Why, refuse, refuse_at, site};
use crate::hooks::call::{Call, Function, gave, hooks};
use crate::hooks::process::graph_reserves::{read, record_change, refresh};
use crate::hooks::process::refresh::refresh_before_refusal;
use crate::hooks::process::state::Process;
use crate::hooks::process::target::NO_TARGET;
use crate::hooks::process::target::current_target;
use crate::model::attribution::driver_internal::{DriverActivity, Followed, Originator};
use crate::model::cap::InFlight;
use crate::model::contexts::Target;
use crate::model::executable_graphs::{Instantiation, Launch};
use crate::model::graphs::{Block, Origin, Plan};
use crate::model::ledger::{Entry, Removed};
use crate::runtime::fallible::{TryPush, vec_of};
use crate::runtime::reserve;
use core::ffi::{c_char, c_void};
use std::sync::Arc;
use vramtrace_format::{Cause, DeviceId, Event, Kind, PoolId, SiteId, Space};

/// cuMemAllocAsync on a capturing stream: creates a node, and takes no memory yet.
#[cold]
pub(in crate::hooks) fn take_captured(
    p: &'static Process,
    api: Api,
    dptr: Out<u64>,
    size: u64,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let result = real();
    if result != 0 {
        let request = Request::new(api, Kind::Graph, NO_TARGET, size);
        return refuse(p, &request, Why::Driver(result));
    }
    if let Some(address) = dptr.get() {
        p.graphs.made_node(address, api as u16, crate::hooks::process::stacks::stack(p));
    }
    result
}

const UPLOAD: u64 = 2;

/// Instantiates a graph by `real`. With the upload flag this also takes memory.
fn instantiate(
    p: &'static Process,
    api: Api,
    graph: Graph,
    flags: u64,
    exec: Out<GraphExec>,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let target = current_target(p);
    if p.trace_writer.is_silent() {
        return watched(p, api, target, DriverActivity::Graphs, nameless, || {
            instantiate_plan(p, api, graph, flags, exec, real)
        });
    }
    let made = Instantiation {
        context: target.context,
        site: site(p, api, None, target, PoolId(0), 0),
        stack: crate::hooks::process::stacks::stack(p),
        nodes: node_count(graph),
    };
    let result = watched(p, api, target, charged_to(Some(made)), nameless, || {
        instantiate_plan(p, api, graph, flags, exec, real)
    });
    gave(result, exec, |exec| {
        p.executable_graphs.made(exec as u64, made);
        record_made(p, exec, made);
    })
}

fn record_made(p: &'static Process, exec: GraphExec, made: Instantiation) {
    let Instantiation { site, stack, nodes, .. } = made;
    p.trace_writer.record(&Event::GraphMade { exec: exec as u64, nodes, site, stack });
}

/// A call for an executable graph: what the driver takes is charged to the call that instantiated it.
fn charged_to(made: Option<Instantiation>) -> Followed {
    let originator = made.map(|made| Originator {
        context: made.context,
        site: made.site,
        stack: made.stack,
        ..Originator::unnamed(Cause::Graphs)
    });
    Followed { doing: DriverActivity::Graphs, originator, nodes: made.map_or(0, |made| made.nodes) }
}

fn call_for(p: &'static Process, exec: GraphExec) -> Followed {
    charged_to(p.executable_graphs.instantiation(exec as u64))
}

fn instantiate_plan(
    p: &'static Process,
    api: Api,
    graph: Graph,
    flags: u64,
    exec: Out<GraphExec>,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    if !p.graphs.any() || graph.is_null() {
        return real();
    }
    let plan = match plan_of(graph, flags) {
        Ok(plan) if plan.is_empty() => return real(),
        Ok(plan) if !reserve::is_low() && p.graphs.make_room().is_ok() => Arc::new(plan),
        // No host memory: what its launches allocate could not be followed.
        _ => return unfollowed(p, current_target(p).device).unwrap_or_else(real),
    };
    let result = match flags & UPLOAD {
        0 => real(),
        _ => with_memory(p, api, &plan, real),
    };
    gave(result, exec, |exec| p.graphs.instantiated(exec as u64, plan))
}

hooks! { p, call:
    /// cuGraphInstantiate and _v2.
    instantiate_v2(exec: Out<GraphExec>, graph: Graph, error: Out<Node>, log: Out<c_char>, size: usize) =
        instantiate(p, call.api, graph, 0, exec, || call.forward());
    // The upload flag needs a stream: cuGraphInstantiateWithParams only.
    instantiate_with_flags(exec: Out<GraphExec>, graph: Graph, flags: u64) =
        instantiate(p, call.api, graph, flags & !UPLOAD, exec, || call.forward());
    instantiate_with_params(
        exec: Out<GraphExec>,
        graph: Graph,
        params: Out<CUDA_GRAPH_INSTANTIATE_PARAMS>,
    ) = {
        let flags = params.get().map_or(0, |params| params.flags);
        instantiate(p, call.api, graph, flags, exec, || call.forward())
    };
    /// cuGraphExecUpdate: it may take memory, and so may the next launch.
    exec_update(exec: GraphExec, graph: Graph, error: Out<Node>, result: Out<i32>) =
        update(p, call, exec);
    exec_update_v2(exec: GraphExec, graph: Graph, info: *mut c_void) = update(p, call, exec);
    /// cuGraphExecKernelNodeSetParams and its like.
    set_params(exec: GraphExec, node: Node, params: *mut c_void) = set(p, call, exec);
    /// The same of a copy or a fill, which names a context.
    set_params_in_context(exec: GraphExec, node: Node, params: *mut c_void, context: Ctx) =
        set(p, call, exec);
}

/// A call for which the driver may reserve the bytes of the graph's plan.
fn with_memory(
    p: &'static Process,
    api: Api,
    plan: &Plan,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let Some((device, bytes)) = plan.footprint() else { return real() };
    let memory = p.graphs.memory(device);
    let budget = p.cap.budget(device);
    let target = Target { device, ..NO_TARGET };
    let at = || site(p, api, Some(Kind::Graph), target, PoolId(0), 0);
    let fresh = !plan.is_resident(memory);
    let limited = p.cap.limited(device).filter(|_| fresh);
    let mut under_way = None;
    if let Some(limited) = limited {
        // Reserved memory that no graph uses serves this launch: the driver's figure of used bytes is
        // needed.
        refresh(p, device);
        let asked = memory.growth.ask_by_driver(budget, bytes).or_else(|_| {
            refresh_before_refusal(p, device);
            memory.growth.ask_by_driver(budget, bytes)
        });
        let asked = match asked {
            Ok(asked) => asked,
            Err(refusal) if !p.cap.only_warns() => {
                return refuse_at(p, device, at(), bytes, Why::Cap(refusal));
            }
            Err(refusal) => {
                refuse_at(p, device, at(), bytes, Why::Warned(refusal));
                memory.growth.ask_anyway(limited, bytes)
            }
        };
        under_way = Some(InFlight { growth: &memory.growth, budget, size: bytes, asked });
    }
    let result = real();
    if let Some(under_way) = under_way {
        under_way.finish(false, read(device, memory), |change| record_change(p, device, change));
    } else if fresh || memory.is_due(p.clock.now_ns()) {
        refresh(p, device);
    }
    if result == 0 {
        plan.now_resident(memory);
    } else if result == CUDA_ERROR_OUT_OF_MEMORY {
        refuse_at(p, device, at(), bytes, Why::Driver(result));
    }
    result
}

pub fn upload(
    p: &'static Process,
    call: &Call<impl Function>,
    exec: GraphExec,
    _stream: Stream,
) -> CUresult {
    let plan = if p.graphs.any() { p.graphs.plan(exec as u64) } else { None };
    watched(p, call.api, current_target(p), call_for(p, exec), nameless, || match plan {
        Some(plan) => with_memory(p, call.api, &plan, || call.forward()),
        None => call.forward(),
    })
}

pub fn launch(
    p: &'static Process,
    call: &Call<impl Function>,
    exec: GraphExec,
    stream: Stream,
) -> CUresult {
    let plan = if p.graphs.any() { p.graphs.plan(exec as u64) } else { None };
    let per_thread = call.api == Api::cuGraphLaunch_ptsz;
    let launch = || match plan {
        // A launch in a capture is a node of another graph.
        Some(plan) if !p.stream_captures.takes(|| is_capturing(stream, per_thread)) => {
            run(p, call.api, &plan, || call.forward())
        }
        _ => call.forward(),
    };
    let kind = p.executable_graphs.launch(exec as u64);
    if kind == Launch::Usual {
        return launch();
    }
    let result = watched(p, call.api, current_target(p), call_for(p, exec), nameless, launch);
    if result == CUDA_SUCCESS {
        p.executable_graphs.was_launched(exec as u64, kind);
        if kind != Launch::Updated {
            let again = kind == Launch::Again;
            p.trace_writer.record(&Event::GraphUsed { exec: exec as u64, again });
        }
    }
    result
}

fn update(p: &'static Process, call: &Call<impl Function>, exec: GraphExec) -> CUresult {
    let real = || call.forward();
    let result = watched(p, call.api, current_target(p), call_for(p, exec), nameless, real);
    if result == CUDA_SUCCESS {
        p.executable_graphs.updated(exec as u64);
    }
    result
}

/// Programs set parameters of many nodes before each launch, so that a reading follows seldom.
fn set(p: &'static Process, call: &Call<impl Function>, exec: GraphExec) -> CUresult {
    let (target, real) = (|| current_target(p), || call.forward());
    watched_seldom(p, call.api, target, || call_for(p, exec), real)
}

/// A launch. First the ledger removes what the graph frees: blocks of other graphs, and, with the
/// auto-free flag, its own of the last launch. Then the driver is called, and the ledger adds the new
/// blocks.
fn run(p: &'static Process, api: Api, plan: &Plan, real: impl FnOnce() -> CUresult) -> CUresult {
    let left = plan.takes.iter().map(|block| block.address).filter(|_| plan.auto_free);
    // Without host memory for the list, the freed blocks stay counted.
    let mut freed: Vec<(Removed, SiteId)> =
        vec_of(plan.frees.len() + plan.takes.len()).unwrap_or_default();
    for address in plan.foreign_frees().chain(left) {
        if freed.len() < freed.capacity()
            && let Some(removed) = free(p, api, address)
        {
            let _ = freed.try_push(removed);
        }
    }
    let result = with_memory(p, api, plan, real);
    if result != 0 {
        freed.iter().for_each(|(removed, site)| free_failed(p, removed, *site, result));
        return result;
    }
    let now = p.clock.now_ns();
    freed.iter().for_each(|(removed, _)| commit_free(p, removed, now));
    for block in &plan.takes {
        record_block(p, api, block, now);
        if plan.frees_itself(block.address) {
            free(p, api, block.address);
        }
    }
    result
}

/// Enters a block that a launch allocated in the ledger and the trace. Its owner is the call that created
/// the node; where that is not known, the launch.
fn record_block(p: &'static Process, api: Api, block: &Block, now: u64) {
    let target = Target { device: block.device, ..NO_TARGET };
    let made = p.graphs.origin(block.address);
    let origin =
        made.unwrap_or(Origin { api: api as u16, stack: crate::hooks::process::stacks::stack(p) });
    let api = Api::ALL.get(origin.api as usize).copied().unwrap_or(api);
    let entry = Entry {
        site: site(p, api, Some(Kind::Graph), target, PoolId(0), 0),
        stack: origin.stack,
        time_ns: now,
        ..Entry::new(Kind::Graph, block.address, block.size, block.device)
    };
    enter(p, &entry);
}

fn free(p: &'static Process, api: Api, address: u64) -> Option<(Removed, SiteId)> {
    begin_free(p, api, (Space::Device, address), |_| true)
}

pub fn exec_destroy(p: &'static Process, call: &Call<impl Function>, exec: GraphExec) -> CUresult {
    let plan = if p.graphs.any() { p.graphs.ended(exec as u64) } else { None };
    let made = p.executable_graphs.ended(exec as u64);
    if made.is_some() {
        // Before the call: another thread's graph may get the same handle.
        p.trace_writer.record(&Event::GraphEnded { exec: exec as u64 });
    }
    let real = || call.forward();
    let result = watched(p, call.api, current_target(p), charged_to(made), nameless, real);
    if result != CUDA_SUCCESS {
        if let Some(plan) = plan {
            p.graphs.instantiated(exec as u64, plan);
        }
        if let Some(made) = made {
            p.executable_graphs.made(exec as u64, made);
            record_made(p, exec, made);
        }
    }
    result
}

pub fn trim(p: &'static Process, call: &Call<impl Function>, device: i32) -> CUresult {
    let result = call.forward();
    if let Ok(device) = u8::try_from(device) {
        let device = DeviceId(device);
        p.graphs.memory(device).trimmed();
        refresh(p, device);
    }
    result
}
