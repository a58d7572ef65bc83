//! Graph memory: executable graphs, and what the driver reserves for them on a device.
//!
//! Creating an allocation node takes no memory. A launch allocates the blocks of the graph's nodes and
//! frees those that the graph itself frees; the others live until they are freed. The driver's
//! reservation grows at upload or first launch and stays until it is trimmed: that reservation is
//! physical memory, and it is what a cap limits.

use super::node::{node_count, plan_of};
use super::prelude::*;
use super::stream::StreamOfCall;
use crate::hooks::call::accounting::{begin_free, commit_free, enter, free_failed};
use crate::hooks::call::after_call::unfollowed;
use crate::hooks::call::attribution::{watched, watched_by};
use crate::hooks::call::request::{ask_again, refuse_at};
use crate::hooks::process::graph_reserves::{read, record_change, refresh};
use crate::model::attribution::driver_internal::{DriverActivity, Followed, Originator};
use crate::model::cap::InFlight;
use crate::model::graphs::{Block, Executable, Instantiation, Launch, Origin, Plan};
use crate::model::ledger::Removed;
use crate::runtime::fallible::{TryPush, vec_of};
use crate::runtime::reserve;
use std::sync::Arc;
use vramtrace_format::{Cause, GraphChange};

/// cuMemAllocAsync on a capturing stream: creates a node, and takes no memory yet.
#[cold]
pub(in crate::hooks) fn take_captured(call: Call<impl Row>, dptr: Out<u64>, size: u64) -> CUresult {
    let (p, api, result) = (call.p, call.api(), call.forward());
    if result != 0 {
        let request = Request::new(api, Kind::Graph, NO_TARGET, size);
        return refuse(p, &request, Why::Driver(result));
    }
    gave(result, dptr, |address| p.graphs.made_node(address, api as u16, stack(p)))
}

const UPLOAD: u64 = 2;

/// cuGraphInstantiate. The upload flag needs a stream, and has no effect.
pub fn instantiate(
    call: Call<impl Row>,
    exec: Out<GraphExec>,
    graph: Graph,
    flags: u64,
) -> CUresult {
    instantiate_with(call, exec, graph, flags & !UPLOAD)
}

pub fn instantiate_with_params(
    call: Call<impl Row>,
    exec: Out<GraphExec>,
    graph: Graph,
    params: Out<CUDA_GRAPH_INSTANTIATE_PARAMS>,
) -> CUresult {
    instantiate_with(call, exec, graph, params.get().map_or(0, |params| params.flags))
}

/// With the upload flag this also takes memory.
fn instantiate_with(
    call: Call<impl Row>,
    exec: Out<GraphExec>,
    graph: Graph,
    flags: u64,
) -> CUresult {
    let (p, target) = (call.p, current_target(call.p));
    let made = (!p.trace_writer.is_silent()).then(|| Instantiation {
        context: target.context,
        site: site_at(p, call.api(), None, target),
        stack: stack(p),
        nodes: node_count(graph),
    });
    let plan = match p.graphs.any() && !graph.is_null() {
        true => plan_of(graph, flags).map(|plan| (!plan.is_empty()).then(|| Arc::new(plan))),
        false => Ok(None),
    };
    let plan = match plan {
        Ok(Some(_)) if reserve::is_low() || p.graphs.make_room().is_err() => None,
        plan => plan.ok(),
    };
    // No host memory: what its launches allocate could not be followed.
    let Some(plan) = plan else { return unfollowed(call, target.device) };
    let result = watched_by(call, charged_to(made), || match &plan {
        Some(plan) if flags & UPLOAD != 0 => with_memory(call, plan),
        _ => call.forward(),
    });
    gave(result, exec, |exec| instantiated(p, exec, made, plan))
}

fn instantiated(
    p: &'static Process,
    exec: GraphExec,
    made: Option<Instantiation>,
    plan: Option<Arc<Plan>>,
) {
    let exec = exec as u64;
    p.graphs.instantiated(exec, made, plan);
    if let Some(Instantiation { site, stack, nodes, .. }) = made {
        p.trace_writer.record(&Event::GraphMade { exec, nodes, site, stack });
    }
}

/// A call for an executable graph: what the driver takes is charged to the call that instantiated it.
fn charged_to(made: Option<Instantiation>) -> Followed {
    let originator = made.map(|made| Originator {
        context: made.context,
        site: made.site,
        stack: made.stack,
        ..Originator::unnamed(Cause::Graphs)
    });
    Followed { doing: DriverActivity::Graphs, originator }
}

fn call_for(call: Call<impl Row>, exec: GraphExec) -> Followed {
    charged_to(call.p.graphs.instantiation(exec as u64))
}

/// A call for which the driver may reserve the bytes of the graph's plan.
fn with_memory(call: Call<impl Row>, plan: &Plan) -> CUresult {
    let p = call.p;
    let Some((device, bytes)) = plan.footprint() else { return call.forward() };
    let memory = p.graphs.memory(device);
    let target = Target { device, ..NO_TARGET };
    let at = || site_at(p, call.api(), Some(Kind::Graph), target);
    let fresh = !plan.is_resident(memory);
    let limited = p.cap.limited(device).filter(|_| fresh);
    let mut under_way = None;
    if let Some(budget) = limited {
        // Reserved memory that no graph uses serves this launch: the driver's figure of used bytes is
        // needed.
        refresh(p, device);
        let ask = || memory.growth.ask_by_driver(budget, bytes);
        let asked = ask().or_else(|_| {
            let anyway = || memory.growth.ask_anyway(budget, bytes);
            ask_again(p, device, ask, anyway, |why| refuse_at(p, device, at(), bytes, why))
        });
        let asked = match asked {
            Ok(asked) => asked,
            Err(refused) => return refused,
        };
        under_way = Some(InFlight { growth: &memory.growth, budget, size: bytes, asked });
    }
    let result = call.forward();
    if let Some(under_way) = under_way {
        under_way.finish(false, read(device, memory), |change| record_change(p, device, change));
    } else if fresh || memory.growth.is_due(p.clock.now_ns()) {
        refresh(p, device);
    }
    if result == 0 {
        plan.now_resident(memory);
    } else if result == CUDA_ERROR_OUT_OF_MEMORY {
        refuse_at(p, device, at(), bytes, Why::Driver(result));
    }
    result
}

pub fn upload(call: Call<impl Row>, exec: GraphExec) -> CUresult {
    let plan = call.p.graphs.plan(exec as u64);
    watched_by(call, call_for(call, exec), || match plan {
        Some(plan) => with_memory(call, &plan),
        None => call.forward(),
    })
}

pub fn launch(call: Call<impl Row>, exec: GraphExec, stream: Stream) -> CUresult {
    let (p, plan) = (call.p, call.p.graphs.plan(exec as u64));
    let launch = || match plan {
        // A launch in a capture is a node of another graph.
        Some(plan) if !StreamOfCall::new(call, stream).is_captured(p) => run(call, &plan),
        _ => call.forward(),
    };
    let kind = p.graphs.launch(exec as u64);
    if kind == Launch::Usual {
        return launch();
    }
    let result = watched_by(call, call_for(call, exec), launch);
    if result == CUDA_SUCCESS {
        p.graphs.was_launched(exec as u64, kind);
        if kind != Launch::Updated {
            let change = match kind {
                Launch::Again => GraphChange::LaunchedAgain,
                _ => GraphChange::Launched,
            };
            p.trace_writer.record(&Event::GraphUsed { exec: exec as u64, change });
        }
    }
    result
}

/// cuGraphExecUpdate: it may take memory, and so may the next launch.
pub fn update(call: Call<impl Row>, exec: GraphExec) -> CUresult {
    let result = watched(call, call_for(call, exec));
    if result == CUDA_SUCCESS {
        call.p.graphs.updated(exec as u64);
    }
    result
}

/// A launch. First the ledger removes what the graph frees: blocks of other graphs, and, with the
/// auto-free flag, its own of the last launch. Then the driver is called, and the ledger adds the new
/// blocks.
fn run(call: Call<impl Row>, plan: &Plan) -> CUresult {
    let (p, api) = (call.p, call.api());
    let left = plan.takes.iter().map(|block| block.address).filter(|_| plan.auto_free);
    // Without host memory for the list, the freed blocks stay counted.
    let mut freed: Vec<Removed> = vec_of(plan.frees.len() + plan.takes.len()).unwrap_or_default();
    for address in plan.foreign_frees().chain(left) {
        if freed.len() < freed.capacity()
            && let Some(removed) = free(p, api, address)
        {
            let _ = freed.try_push(removed);
        }
    }
    let result = with_memory(call, plan);
    if result != 0 {
        freed.iter().for_each(|removed| free_failed(p, removed));
        return result;
    }
    let now = p.clock.now_ns();
    freed.iter().for_each(|removed| commit_free(p, removed, now));
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
    let origin = made.unwrap_or_else(|| Origin { api: api as u16, stack: stack(p) });
    let api = Api::ALL.get(origin.api as usize).copied().unwrap_or(api);
    let entry = Entry {
        site: site_at(p, api, Some(Kind::Graph), target),
        stack: origin.stack,
        time_ns: now,
        ..Entry::new(Kind::Graph, block.address, block.size, block.device)
    };
    enter(p, &entry);
}

fn free(p: &'static Process, api: Api, address: u64) -> Option<Removed> {
    begin_free(p, api, (Space::Device, address), |_| true)
}

pub fn exec_destroy(call: Call<impl Row>, exec: GraphExec) -> CUresult {
    let p = call.p;
    let Executable { made, plan, .. } = p.graphs.ended(exec as u64).unwrap_or_default();
    if made.is_some() {
        // Before the call: another thread's graph may get the same handle.
        let change = GraphChange::Ended;
        p.trace_writer.record(&Event::GraphUsed { exec: exec as u64, change });
    }
    let result = watched(call, charged_to(made));
    if result != CUDA_SUCCESS && (made.is_some() || plan.is_some()) {
        instantiated(p, exec, made, plan);
    }
    result
}

/// cuDeviceGraphMemTrim.
pub fn trim(call: Call<impl Row>, device: i32) -> CUresult {
    let result = call.forward();
    if let Ok(device) = u8::try_from(device) {
        call.p.graphs.memory(DeviceId(device)).trimmed();
        refresh(call.p, DeviceId(device));
    }
    result
}
