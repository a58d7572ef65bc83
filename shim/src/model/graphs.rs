//! Graphs: their memory nodes, the executable graphs that live, and the memory that the driver reserves for graphs on each
//! device.
//!
//! The driver takes memory for an executable graph when it is instantiated, and more when it is first launched,
//! uploaded or updated. All of it belongs to the line that instantiated it, so that line is kept for each.

use crate::model::cap::Growth;
use crate::model::ledger::device_index;
use crate::runtime::fallible::{MakeRoom, list_of};
use crate::runtime::fallible_map::Map;
use crate::runtime::handle_set::HandleSet;
use crate::runtime::hash_table::NoMemory;
use crate::runtime::lock::Lock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use vramtrace_format::{ContextId, DeviceId, SiteId, StackId};

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
    pub used: AtomicU64,
    trims: AtomicU32,
}

impl Memory {
    pub fn trimmed(&self) {
        self.trims.fetch_add(1, Ordering::Relaxed);
    }
}

/// How a node was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub api: u16,
    pub stack: StackId,
}

/// The call that instantiated an executable graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instantiation {
    pub context: ContextId,
    pub site: SiteId,
    pub stack: StackId,
    /// The nodes of its graph; 0 = not known.
    pub nodes: u32,
}

impl Instantiation {
    /// Graphs of one stack with the same number of nodes are of one kind.
    fn kind(&self) -> (StackId, u32) {
        (self.stack, self.nodes)
    }
}

/// An executable graph.
#[derive(Debug, Default)]
pub struct Executable {
    /// `None`: nothing is recorded.
    pub made: Option<Instantiation>,
    /// `None`: it has no memory nodes.
    pub plan: Option<Arc<Plan>>,
    is_launched: bool,
    /// A later one of its kind was instantiated, and it was not launched since.
    is_superseded: bool,
    /// It was updated, and not launched since.
    is_updated: bool,
}

/// What a launch is to its executable graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launch {
    First,
    /// The first one since a later graph of the same kind was instantiated.
    Again,
    /// The first one since an update.
    Updated,
    Usual,
}

impl Executable {
    fn launch(&self) -> Launch {
        match self {
            Executable { is_launched: false, .. } => Launch::First,
            Executable { is_superseded: true, .. } => Launch::Again,
            Executable { is_updated: true, .. } => Launch::Updated,
            _ => Launch::Usual,
        }
    }
}

#[derive(Default)]
struct Executables {
    live: Map<u64, Executable>,
    /// The latest of each kind.
    latest: Map<(StackId, u32), u64>,
}

pub struct Graphs {
    /// Whether a memory node was ever created in this process. Until then graphs have no plans.
    used: AtomicBool,
    nodes: Lock<Map<u64, Origin>>,
    executables: Lock<Executables>,
    /// Those whose next launch is [`Launch::Usual`]: no lock, since programs launch graphs by the million.
    usual: HandleSet,
    devices: Box<[Memory]>,
}

impl Default for Graphs {
    fn default() -> Self {
        let devices = device_index(DeviceId::UNKNOWN) + 1;
        #[allow(clippy::disallowed_methods)] // one for each device at most
        Graphs {
            used: AtomicBool::new(false),
            nodes: Lock::default(),
            executables: Lock::default(),
            usual: HandleSet::default(),
            devices: (0..devices).map(|_| Memory::default()).collect(),
        }
    }
}

impl Graphs {
    #[inline]
    pub fn any(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    pub fn memory(&self, device: DeviceId) -> &Memory {
        &self.devices[device_index(device)]
    }

    /// A memory node was created, by a call or by a capture.
    pub fn made_node(&self, address: u64, api: u16, stack: StackId) {
        // Without host memory its blocks are recorded with the site of the launch.
        let _ = self.nodes.lock().insert(address, Origin { api, stack });
        self.used.store(true, Ordering::Relaxed);
    }

    pub fn origin(&self, address: u64) -> Option<Origin> {
        self.nodes.lock().get(&address).copied()
    }

    /// Makes room for one more executable graph, before the driver's call.
    pub fn make_room(&self) -> Result<(), NoMemory> {
        self.executables.lock().live.make_room()
    }

    /// After the instantiation. Without host memory for it, the graph is not known.
    pub fn instantiated(&self, exec: u64, made: Option<Instantiation>, plan: Option<Arc<Plan>>) {
        self.ended(exec);
        let mut all = self.executables.lock();
        let executable = Executable { made, plan, ..Executable::default() };
        let (Ok(_), Some(made)) = (all.live.insert(exec, executable), made) else { return };
        let Executables { live, latest } = &mut *all;
        // Without host memory for it none of its kind is superseded.
        let Ok(Some(before)) = latest.insert(made.kind(), exec) else { return };
        let is_kind = |executable: &&mut Executable| {
            executable.made.is_some_and(|before| before.kind() == made.kind())
        };
        if before != exec
            && let Some(before_it) = live.get_mut(&before).filter(is_kind)
        {
            before_it.is_superseded = true;
            self.usual.remove(before as usize);
        }
    }

    /// `None`: it has no memory nodes.
    pub fn plan(&self, exec: u64) -> Option<Arc<Plan>> {
        if !self.any() {
            return None;
        }
        self.executables.lock().live.get(&exec)?.plan.clone()
    }

    pub fn instantiation(&self, exec: u64) -> Option<Instantiation> {
        self.executables.lock().live.get(&exec)?.made
    }

    #[inline]
    pub fn launch(&self, exec: u64) -> Launch {
        match self.usual.has(exec as usize) {
            true => Launch::Usual,
            false => {
                let all = self.executables.lock();
                all.live.get(&exec).map_or(Launch::First, Executable::launch)
            }
        }
    }

    /// After a launch that succeeded.
    pub fn was_launched(&self, exec: u64, launch: Launch) {
        let mut all = self.executables.lock();
        if let Some(executable) = all.live.get_mut(&exec) {
            match launch {
                Launch::First => executable.is_launched = true,
                Launch::Again => executable.is_superseded = false,
                Launch::Updated => executable.is_updated = false,
                Launch::Usual => {}
            }
            if executable.launch() != Launch::Usual {
                return;
            }
        }
        self.usual.add(exec as usize);
    }

    /// After an update: its next launch may take memory.
    pub fn updated(&self, exec: u64) {
        if let Some(executable) = self.executables.lock().live.get_mut(&exec) {
            executable.is_updated = true;
        }
        self.usual.remove(exec as usize);
    }

    /// Before an executable graph is destroyed. The driver may reuse its handle.
    pub fn ended(&self, exec: u64) -> Option<Executable> {
        self.usual.remove(exec as usize);
        self.executables.lock().live.remove(&exec)
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
        graphs.made_node(1, 7, StackId(3));
        graphs.instantiated(7, None, Some(plan(1)));
        let held = graphs.plan(7).unwrap();
        graphs.instantiated(7, None, Some(plan(2)));
        assert_eq!((held.takes[0].size, graphs.plan(7).unwrap().takes[0].size), (1, 2));
        assert!(graphs.ended(7).is_some() && graphs.plan(7).is_none());
        assert_eq!(Arc::strong_count(&held), 1);
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

    fn made(stack: u32, nodes: u32) -> Instantiation {
        Instantiation { context: ContextId(1), site: SiteId(2), stack: StackId(stack), nodes }
    }

    const EXEC: u64 = 0x6a00_0000_0000;

    #[test]
    fn a_graph_knows_its_line_until_it_ends() {
        let graphs = Graphs::default();
        graphs.instantiated(EXEC, Some(made(3, 10)), None);
        assert_eq!(graphs.instantiation(EXEC), Some(made(3, 10)));
        assert_eq!(graphs.ended(EXEC).unwrap().made, Some(made(3, 10)));
        assert!(graphs.instantiation(EXEC).is_none() && graphs.ended(EXEC).is_none());
    }

    #[test]
    fn a_launch_after_a_later_graph_of_the_kind_is_said_once() {
        let graphs = Graphs::default();
        let launch = |exec| {
            let launch = graphs.launch(exec);
            graphs.was_launched(exec, launch);
            launch
        };
        graphs.instantiated(EXEC, Some(made(3, 10)), None);
        assert_eq!((launch(EXEC), launch(EXEC)), (Launch::First, Launch::Usual));
        // Of another line, or with another number of nodes.
        graphs.instantiated(EXEC + 16, Some(made(4, 10)), None);
        graphs.instantiated(EXEC + 32, Some(made(3, 11)), None);
        assert_eq!(launch(EXEC), Launch::Usual);
        graphs.instantiated(EXEC + 48, Some(made(3, 10)), None);
        assert_eq!((launch(EXEC), launch(EXEC)), (Launch::Again, Launch::Usual));
        assert_eq!((launch(EXEC + 48), launch(EXEC + 48)), (Launch::First, Launch::Usual));
        graphs.updated(EXEC);
        assert_eq!((launch(EXEC), launch(EXEC)), (Launch::Updated, Launch::Usual));
        assert!(graphs.usual.has(EXEC as usize), "no launch takes the lock any more");
    }

    #[test]
    fn a_reused_handle_is_a_new_graph() {
        let graphs = Graphs::default();
        graphs.instantiated(EXEC, Some(made(3, 10)), None);
        graphs.was_launched(EXEC, Launch::First);
        graphs.ended(EXEC);
        graphs.instantiated(EXEC, Some(made(4, 1)), None);
        // The latest of the first kind is gone: its handle is another kind's.
        graphs.instantiated(EXEC + 16, Some(made(3, 10)), None);
        assert_eq!(graphs.launch(EXEC), Launch::First);
        graphs.was_launched(EXEC, Launch::First);
        assert_eq!(graphs.launch(EXEC), Launch::Usual);
    }
}
