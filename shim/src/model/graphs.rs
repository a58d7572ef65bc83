//! Memory nodes of graphs: the allocations and frees of each executable graph's launch, and the memory
//! that the driver reserves for graphs on each device.

use crate::model::cap::Growth;
use crate::model::ledger::device_index;
use crate::runtime::fallible::list_of;
use crate::runtime::hash_table::{KeyedSlot, NoMemory, Table, Value};
use crate::runtime::lock::Lock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use vramtrace_format::{DeviceId, Event, StackId};

/// Memory that a node allocates when its graph runs. The address is fixed when the node is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub address: u64,
    pub size: u64,
    pub device: DeviceId,
}

/// The allocations and frees of an executable graph.
#[derive(Debug, Default)]
pub struct Plan {
    pub takes: Vec<Block>,
    /// Addresses of its free nodes: blocks of its own or of another graph.
    pub frees: Vec<u64>,
    /// See [`Plan::measure`].
    bytes: u64,
    /// Whether a launch first frees blocks that an earlier launch left.
    pub auto_free: bool,
    /// The device's number of trims when the graph last got its memory, plus 1; 0 = never.
    resident: AtomicU32,
}

impl Plan {
    pub fn is_empty(&self) -> bool {
        self.takes.is_empty() && self.frees.is_empty()
    }

    pub fn frees_itself(&self, address: u64) -> bool {
        self.frees.contains(&address)
    }

    /// Addresses that it frees and that another graph, or a stream, allocated.
    pub fn foreign_frees(&self) -> impl Iterator<Item = u64> + '_ {
        let own = |address: &u64| self.takes.iter().any(|block| block.address == *address);
        self.frees.iter().copied().filter(move |address| !own(address))
    }

    /// The device of its memory (a graph's memory is on one device), and its bytes.
    pub fn footprint(&self) -> Option<(DeviceId, u64)> {
        Some((self.takes.first()?.device, self.bytes))
    }

    /// Computes the bytes of all blocks: the union of their addresses, since blocks that are never live
    /// together share addresses.
    pub fn measure(&mut self) -> Result<(), NoMemory> {
        let range = |block: &Block| (block.address, block.address.saturating_add(block.size));
        let mut ranges = list_of(self.takes.len(), self.takes.iter().map(range))?;
        ranges.sort_unstable();
        let mut bytes = 0u64;
        let mut reached = 0;
        for (start, end) in ranges {
            bytes = bytes.saturating_add(end.saturating_sub(start.max(reached)));
            reached = reached.max(end);
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Whether the driver still holds its memory: it was allocated, and the device was not trimmed
    /// since. Then a launch takes no more.
    pub fn is_resident(&self, memory: &Memory) -> bool {
        self.resident.load(Ordering::Relaxed) == memory.trims.load(Ordering::Relaxed) + 1
    }

    pub fn now_resident(&self, memory: &Memory) {
        self.resident.store(memory.trims.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// Graph memory of one device.
#[derive(Default)]
pub struct Memory {
    pub growth: Growth,
    /// The driver's figure of used bytes when last read.
    used: AtomicU64,
    trims: AtomicU32,
    looked_ns: AtomicU64,
}

const LOOK_EVERY_NS: u64 = 1_000_000;

impl Memory {
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub fn set_used(&self, used: u64) {
        self.used.store(used, Ordering::Relaxed);
    }

    pub fn trimmed(&self) {
        self.trims.fetch_add(1, Ordering::Relaxed);
    }

    /// True from time to time: the caller then reads the figures.
    pub fn is_due(&self, now_ns: u64) -> bool {
        let last = self.looked_ns.load(Ordering::Relaxed);
        now_ns >= last.saturating_add(LOOK_EVERY_NS)
            && self
                .looked_ns
                .compare_exchange(last, now_ns, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

/// How a node was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub api: u16,
    pub stack: StackId,
}

/// The origin of a node: the entry point plus 1, and the id of the stack.
#[derive(Clone, Copy)]
struct NodeOrigin {
    stack: u32,
    /// 0 = none.
    api: u32,
}

// SAFETY: plain numbers; an entry point of 0 is none.
unsafe impl Value for NodeOrigin {
    fn is_none(&self) -> bool {
        self.api == 0
    }
}

/// A counted reference to the plan of an executable graph.
#[derive(Clone, Copy)]
struct PlanReference(*const Plan);

// SAFETY: null is none.
unsafe impl Value for PlanReference {
    fn is_none(&self) -> bool {
        self.0.is_null()
    }
}

// SAFETY: plans are shared by counted references.
unsafe impl Send for PlanReference {}

pub struct Graphs {
    /// Whether a memory node was ever created in this process. Until then graphs are not followed.
    used: AtomicBool,
    nodes: Lock<Table<KeyedSlot<NodeOrigin>>>,
    execs: Lock<Table<KeyedSlot<PlanReference>>>,
    devices: Box<[Memory]>,
}

impl Default for Graphs {
    fn default() -> Self {
        let devices = device_index(DeviceId::UNKNOWN) + 1;
        #[allow(clippy::disallowed_methods)] // one for each device at most
        Graphs {
            used: AtomicBool::new(false),
            nodes: Lock::default(),
            execs: Lock::default(),
            devices: (0..devices).map(|_| Memory::default()).collect(),
        }
    }
}

impl Graphs {
    #[inline]
    pub fn any(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    /// Writes the graph memory of each device. Later changes follow as `GraphState`.
    pub fn checkpoint(&self, id: u32, emit: &mut dyn FnMut(&Event)) {
        for (index, memory) in self.devices.iter().enumerate() {
            let (reserved, used) = (memory.growth.known().0, memory.used());
            if reserved != 0 || used != 0 {
                let device = DeviceId(u8::try_from(index).unwrap_or(u8::MAX));
                emit(&Event::CheckpointGraph { id, device, reserved, used });
            }
        }
    }

    pub fn memory(&self, device: DeviceId) -> &Memory {
        &self.devices[device_index(device)]
    }

    /// A memory node was created, by a call or by a capture.
    pub fn made_node(&self, address: u64, api: u16, stack: StackId) {
        let value = NodeOrigin { stack: stack.0, api: u32::from(api) + 1 };
        let slot = KeyedSlot { key: address, value };
        let mut nodes = self.nodes.lock();
        match nodes.get_mut(address) {
            Some(known) => *known = slot,
            // Without host memory its blocks are recorded with the site of the launch.
            None => drop(nodes.insert(slot)),
        }
        drop(nodes);
        self.used.store(true, Ordering::Relaxed);
    }

    pub fn origin(&self, address: u64) -> Option<Origin> {
        let nodes = self.nodes.lock();
        let slot = nodes.get(address)?;
        Some(Origin { api: (slot.value.api - 1) as u16, stack: StackId(slot.value.stack) })
    }

    /// Makes room for one more executable graph, before the driver's call.
    pub fn make_room(&self) -> Result<(), NoMemory> {
        self.execs.lock().make_room().map(|_| ())
    }

    /// Keeps the plan of an instantiated graph. A graph without memory nodes needs none.
    pub fn instantiated(&self, handle: u64, plan: Arc<Plan>) {
        self.ended(handle);
        let slot = KeyedSlot { key: handle, value: PlanReference(Arc::into_raw(plan)) };
        if self.execs.lock().insert(slot).is_err() {
            // SAFETY: the reference created above, which the table did not take.
            drop(unsafe { Arc::from_raw(slot.value.0) });
        }
    }

    pub fn plan(&self, handle: u64) -> Option<Arc<Plan>> {
        let execs = self.execs.lock();
        let plan = execs.get(handle)?.value.0;
        // SAFETY: the table's own reference keeps it alive while the lock is held.
        unsafe {
            Arc::increment_strong_count(plan);
            Some(Arc::from_raw(plan))
        }
    }

    /// Before an executable graph is destroyed. The driver may reuse its handle.
    pub fn ended(&self, handle: u64) -> Option<Arc<Plan>> {
        let slot = self.execs.lock().remove(handle)?;
        // SAFETY: the table's own reference.
        Some(unsafe { Arc::from_raw(slot.value.0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(address: u64, size: u64) -> Block {
        Block { address, size, device: DeviceId(1) }
    }

    #[test]
    fn blocks_that_share_addresses_count_once() {
        let mut plan = Plan {
            takes: vec![block(1000, 100), block(1000, 50), block(1050, 100), block(5000, 1)],
            ..Plan::default()
        };
        plan.measure().unwrap();
        assert_eq!(plan.footprint(), Some((DeviceId(1), 151)));
        assert_eq!(Plan::default().footprint(), None);
    }

    #[test]
    fn frees_are_its_own_or_foreign() {
        let plan = Plan {
            takes: vec![block(1000, 100), block(2000, 1)],
            frees: vec![1000, 9000],
            ..Plan::default()
        };
        assert!(plan.frees_itself(1000) && !plan.frees_itself(2000));
        assert_eq!(plan.foreign_frees().collect::<Vec<_>>(), [9000]);
    }

    #[test]
    fn a_trim_takes_the_memory_of_all() {
        let (plan, memory) = (Plan::default(), Memory::default());
        assert!(!plan.is_resident(&memory));
        plan.now_resident(&memory);
        assert!(plan.is_resident(&memory));
        memory.trimmed();
        assert!(!plan.is_resident(&memory));
    }

    #[test]
    fn a_reused_handle_has_the_new_plan() {
        let graphs = Graphs::default();
        let plan = |size| Arc::new(Plan { takes: vec![block(1, size)], ..Plan::default() });
        graphs.instantiated(7, plan(1));
        let held = graphs.plan(7).unwrap();
        graphs.instantiated(7, plan(2));
        assert_eq!((held.takes[0].size, graphs.plan(7).unwrap().takes[0].size), (1, 2));
        assert!(graphs.ended(7).is_some() && graphs.plan(7).is_none());
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[test]
    fn a_checkpoint_has_the_devices_that_hold_something() {
        let graphs = Graphs::default();
        graphs.memory(DeviceId(1)).set_used(512);
        let mut events = Vec::new();
        graphs.checkpoint(3, &mut |event| events.push(*event));
        let device = DeviceId(1);
        assert_eq!(events, [Event::CheckpointGraph { id: 3, device, reserved: 0, used: 512 }]);
    }

    #[test]
    fn nodes_know_where_they_came_from() {
        let graphs = Graphs::default();
        assert!(!graphs.any());
        graphs.made_node(0x1000, 7, StackId(3));
        graphs.made_node(0x1000, 8, StackId(4));
        assert!(graphs.any());
        let origin = graphs.origin(0x1000).unwrap();
        assert_eq!(origin, Origin { api: 8, stack: StackId(4) });
    }
}
