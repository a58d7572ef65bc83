//! What the driver keeps reserved for graphs on a device.

use crate::driver::cuda::*;
use crate::driver::functions::{answer, driver};
use crate::hooks::process::state::Process;
use crate::model::cap::{Change, Reading, Ticket};
use crate::model::graphs::Memory;
use std::sync::atomic::Ordering::Relaxed;
use vramtrace_format::{DeviceId, Event, Kind};

pub fn record_change(p: &'static Process, device: DeviceId, change: Change) {
    let Change { delta, reserved, .. } = change;
    let now = p.clock.now_ns();
    p.ledger.add_reserved(&p.trace_writer, device, Kind::Graph, delta, now);
    let used = p.graphs.memory(device).used.load(Relaxed);
    p.trace_writer.record_at(now, &Event::GraphState { device, reserved, used });
}

pub fn read(device: DeviceId, memory: &Memory) -> Option<(Ticket, Reading)> {
    let get = driver().device_get_graph_mem_attribute?;
    let ticket = memory.growth.ticket_by_driver();
    let one = |attribute| answer(0u64, |value| Some(get(device.0.into(), attribute, value)));
    let reserved = one(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)?;
    let used = one(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT)?;
    memory.used.store(used, Relaxed);
    Some((ticket, Reading { reserved, used: Some(used) }))
}

/// Reads the device's graph memory from the driver. Does nothing if no graph has taken any yet.
pub fn refresh(p: &'static Process, device: DeviceId) {
    if !p.graphs.any() || device == DeviceId::UNKNOWN {
        return;
    }
    let memory = p.graphs.memory(device);
    if let Some((ticket, reading)) = read(device, memory) {
        let budget = p.cap.budget(device);
        memory.growth.observe(budget, ticket, reading, |change| record_change(p, device, change));
    }
}
