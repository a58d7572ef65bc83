//! Pools, graphs and contexts.

use vramtrace_format::{ContextId, DeviceId, Kind, PoolId, PoolOrigin};

use super::Apply;
use super::GraphChange;
use super::observer::{FreeCause, Observer};
use super::state::PoolSums;

impl<O: Observer> Apply<'_, O> {
    pub(super) fn pool(&mut self, id: PoolId, reserved: u64, used: u64) {
        let defined = self.definitions.pool(id);
        let device = defined.map_or(DeviceId::UNKNOWN, |pool| pool.device);
        let imported = defined.is_some_and(|pool| pool.origin == PoolOrigin::Imported);
        let now = PoolSums { device, reserved, used, imported };
        let before = self.state.pools.insert(id, now);
        if imported {
            return;
        }
        let before = before.unwrap_or(PoolSums { device, reserved: 0, used: 0, imported });
        let sums = self.device(device);
        sums.pool_used = sums.pool_used.saturating_sub(before.used).saturating_add(used);
        sums.reserve(Kind::Pool, before.reserved, reserved);
        self.notify_device_change(device);
        let offset = self.at.offset;
        let device = self.device(device);
        device.peak_is_of_pool = device.peak.offset == Some(offset);
    }

    pub(super) fn graph(&mut self, id: DeviceId, reserved: u64, used: u64) {
        let device = self.device(id);
        let before = std::mem::replace(&mut device.graph_reserved, reserved);
        device.graph_used = used;
        device.reserve(Kind::Graph, before, reserved);
        self.notify_device_change(id);
    }

    pub(super) fn end_context(&mut self, id: ContextId) {
        for key in self.state.live.owned_by(id) {
            self.end(key, FreeCause::WithContext);
        }
        for graph in self.state.exec_graphs.end_context(id) {
            self.observer.on_graph(self.at, &graph, GraphChange::Ended);
        }
        if let Some(context) = self.state.contexts.remove(&id) {
            let device = self.device(context.device);
            device.contexts = device.contexts.saturating_sub(1);
            if device.contexts == 0 {
                device.context_bytes = 0;
            }
            self.observer.on_contexts(self.at, context.device, self.state);
            self.notify_device_change(context.device);
        }
    }
}
