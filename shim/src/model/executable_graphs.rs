//! Executable graphs that live: where each was instantiated, and whether it was launched.
//!
//! The driver takes memory for an executable graph when it is instantiated, and more when it is first launched,
//! uploaded or updated. All of it belongs to the line that instantiated it, so that line is kept for each.

use crate::runtime::handle_set::HandleSet;
use crate::runtime::hash_table::{KeyedSlot, Table, Value, spread};
use crate::runtime::lock::Lock;
use vramtrace_format::{ContextId, SiteId, StackId};

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
    fn kind(&self) -> u64 {
        spread(u64::from(self.stack.0) << 32 | u64::from(self.nodes))
    }
}

#[derive(Clone, Copy)]
struct Slot {
    made: Instantiation,
    is_used: bool,
}

// SAFETY: plain numbers; zero bytes are a slot that is not used.
unsafe impl Value for Slot {
    fn is_none(&self) -> bool {
        !self.is_used
    }
}

/// The latest executable graph of a kind.
#[derive(Clone, Copy)]
struct Latest(u64);

// SAFETY: a number; no handle is 0.
unsafe impl Value for Latest {
    fn is_none(&self) -> bool {
        self.0 == 0
    }
}

#[derive(Default)]
struct Known {
    live: Table<KeyedSlot<Slot>>,
    /// By kind.
    latest: Table<KeyedSlot<Latest>>,
}

#[derive(Default)]
pub struct ExecutableGraphs {
    known: Lock<Known>,
    /// Those that were launched.
    launched: HandleSet,
    /// Those that were launched, followed by a later one of their kind, and not launched since.
    superseded: HandleSet,
    /// Those that were updated and not launched since.
    updated: HandleSet,
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

impl ExecutableGraphs {
    /// After the instantiation. Without host memory for it, the graph is not known.
    pub fn made(&self, exec: u64, made: Instantiation) {
        self.ended(exec);
        let kind = made.kind();
        let mut known = self.known.lock();
        let before = known.latest.get(kind).map(|slot| slot.value.0);
        let before = before.filter(|exec| {
            known.live.get(*exec).is_some_and(|slot| slot.value.made.kind() == kind)
        });
        let slot = KeyedSlot { key: exec, value: Slot { made, is_used: true } };
        if known.live.insert(slot).is_err() {
            return;
        }
        match known.latest.get_mut(kind) {
            Some(slot) => slot.value = Latest(exec),
            None => drop(known.latest.insert(KeyedSlot { key: kind, value: Latest(exec) })),
        }
        drop(known);
        if let Some(before) = before {
            self.superseded.add(before as usize);
        }
    }

    pub fn instantiation(&self, exec: u64) -> Option<Instantiation> {
        self.known.lock().live.get(exec).map(|slot| slot.value.made)
    }

    /// No lock: programs launch graphs by the million.
    #[inline]
    pub fn launch(&self, exec: u64) -> Launch {
        if !self.launched.has(exec as usize) {
            return Launch::First;
        }
        let in_set = |set: &HandleSet| !set.is_empty() && set.has(exec as usize);
        if in_set(&self.superseded) {
            return Launch::Again;
        }
        match in_set(&self.updated) {
            true => Launch::Updated,
            false => Launch::Usual,
        }
    }

    /// After a launch that was no [`Launch::Usual`] and succeeded.
    pub fn was_launched(&self, exec: u64, launch: Launch) {
        match launch {
            Launch::First => self.launched.add(exec as usize),
            Launch::Again => self.superseded.remove(exec as usize),
            Launch::Updated => self.updated.remove(exec as usize),
            Launch::Usual => {}
        }
    }

    /// After an update: its next launch may take memory.
    pub fn updated(&self, exec: u64) {
        self.updated.add(exec as usize);
    }

    /// Before an executable graph is destroyed. The driver may reuse its handle.
    pub fn ended(&self, exec: u64) -> Option<Instantiation> {
        self.launched.remove(exec as usize);
        self.superseded.remove(exec as usize);
        self.updated.remove(exec as usize);
        self.known.lock().live.remove(exec).map(|slot| slot.value.made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(stack: u32, nodes: u32) -> Instantiation {
        Instantiation { context: ContextId(1), site: SiteId(2), stack: StackId(stack), nodes }
    }

    const EXEC: u64 = 0x6a00_0000_0000;

    #[test]
    fn a_graph_knows_its_line_until_it_ends() {
        let graphs = ExecutableGraphs::default();
        graphs.made(EXEC, made(3, 10));
        assert_eq!(graphs.instantiation(EXEC), Some(made(3, 10)));
        assert_eq!(graphs.ended(EXEC), Some(made(3, 10)));
        assert_eq!((graphs.instantiation(EXEC), graphs.ended(EXEC)), (None, None));
    }

    #[test]
    fn a_launch_after_a_later_graph_of_the_kind_is_said_once() {
        let graphs = ExecutableGraphs::default();
        let launch = |exec| {
            let launch = graphs.launch(exec);
            graphs.was_launched(exec, launch);
            launch
        };
        graphs.made(EXEC, made(3, 10));
        assert_eq!((launch(EXEC), launch(EXEC)), (Launch::First, Launch::Usual));
        // Of another line, or with another number of nodes.
        graphs.made(EXEC + 16, made(4, 10));
        graphs.made(EXEC + 32, made(3, 11));
        assert_eq!(launch(EXEC), Launch::Usual);
        graphs.made(EXEC + 48, made(3, 10));
        assert_eq!((launch(EXEC), launch(EXEC)), (Launch::Again, Launch::Usual));
        assert_eq!((launch(EXEC + 48), launch(EXEC + 48)), (Launch::First, Launch::Usual));
        graphs.updated(EXEC);
        assert!(!graphs.updated.is_empty());
        assert_eq!((launch(EXEC), launch(EXEC)), (Launch::Updated, Launch::Usual));
        // No launch looks them up any more.
        assert!(graphs.superseded.is_empty() && graphs.updated.is_empty());
    }

    #[test]
    fn a_reused_handle_is_a_new_graph() {
        let graphs = ExecutableGraphs::default();
        graphs.made(EXEC, made(3, 10));
        graphs.was_launched(EXEC, Launch::First);
        graphs.ended(EXEC);
        graphs.made(EXEC, made(4, 1));
        // The latest of the first kind is gone: its handle is another kind's.
        graphs.made(EXEC + 16, made(3, 10));
        assert_eq!(graphs.launch(EXEC), Launch::First);
        graphs.was_launched(EXEC, Launch::First);
        assert_eq!(graphs.launch(EXEC), Launch::Usual);
    }
}
