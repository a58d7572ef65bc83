//! One device's memory: pages, the slabs in them, and what is live at which address.
//!
//! Up to 1 MiB, allocations lie 512 bytes apart or at multiples of it in slabs of one 2 MiB page,
//! and the page is taken from the device while anything in it is live. Arrays have slabs of their own. Larger ones take whole
//! pages. Pinned host memory is the same machine without a device to charge.

use crate::abi::{MIB, PAGE, POOL_STEP, Pointer};
use crate::aperture::{Aperture, HOST};
use crate::error::{Done, Error};
use crate::graph_memory::GraphMemory;
use crate::pool_state::{Pool, PoolId};
use crate::ranges::Ranges;
use crate::shared::Shared;
use crate::touched::Touched;
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

const SMALL: u64 = MIB;
const GRAIN: u64 = 512;
const HOST_GRAIN: u64 = 4096;

pub(crate) struct Memory {
    pub index: usize,
    pub aperture: Aperture,
    /// A pool may hold more than its threshold until the next synchronisation.
    pub excess: AtomicBool,
    state: Mutex<State>,
    /// What the processes of the machine share: it has the sums of the device.
    shared: &'static Shared,
}

pub(crate) struct State {
    /// Free addresses, whole pages.
    pages: Ranges,
    /// Free addresses in slabs: of linear memory, of arrays.
    slabs: Ranges,
    array_slabs: BTreeMap<Slabs, Ranges>,
    pub live: BTreeMap<Pointer, Block>,
    pub pools: BTreeMap<PoolId, Pool>,
    pub next_pool: PoolId,
    pub graph: GraphMemory,
}

/// What shares slabs: linear memory (0, 0); the arrays of a context whose elements have so many bytes.
pub(crate) type Slabs = (u32, u64);

/// A live allocation.
pub(crate) struct Block {
    /// As requested.
    pub size: u64,
    /// Addresses that it takes.
    pub span: u64,
    pub owner: Owner,
    /// The context that it is freed with; 0: none.
    pub context: u32,
}

pub(crate) enum Owner {
    Slab(Slabs),
    Pages,
    Managed(Touched),
    Pool(PoolId),
    /// Memory of a graph's allocation node, live after a launch. The node keeps the addresses.
    #[allow(dead_code)]
    Graph(Arc<dyn Any + Send + Sync>),
    /// Another process's memory, mapped here; one opened twice is closed twice.
    Imported {
        opens: u32,
        pool: bool,
    },
}

/// A memory whose lock is held; never across anything that waits.
pub(crate) struct Locked<'a> {
    pub memory: &'a Memory,
    pub state: MutexGuard<'a, State>,
}

pub(crate) fn round_up(bytes: u64, step: u64) -> Done<u64> {
    bytes.checked_next_multiple_of(step).ok_or(Error::OUT_OF_MEMORY)
}

pub(crate) fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Relaxed)
}

impl Memory {
    pub(crate) fn new(index: usize, aperture: Aperture, shared: &'static Shared) -> Memory {
        let mut pages = Ranges::new(0);
        pages.give(aperture.base, aperture.size);
        let state = State {
            pages,
            slabs: Ranges::new(PAGE),
            array_slabs: BTreeMap::new(),
            live: BTreeMap::new(),
            pools: BTreeMap::from([(0, Pool::default_of_device())]),
            next_pool: 1,
            graph: GraphMemory::default(),
        };
        Memory { index, aperture, excess: AtomicBool::new(false), state: Mutex::new(state), shared }
    }

    pub(crate) fn lock(&self) -> Locked<'_> {
        let state = self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        Locked { memory: self, state }
    }

    fn is_host(&self) -> bool {
        self.index == HOST
    }

    pub(crate) fn release(&self, used: u64, shown: u64) {
        if !self.is_host() {
            self.shared.release(self.index, used, shown);
        }
    }

    fn try_charge(&self, used: u64, shown: u64) -> bool {
        self.is_host() || self.shared.charge(self.index, used, shown)
    }

    /// Charges the device and tries nothing else.
    pub(crate) fn charge_only(&self, bytes: u64) -> bool {
        self.try_charge(bytes, bytes)
    }

    /// Charges the device, without locking; what pools hold unused is given up first.
    pub(crate) fn charge(&self, used: u64, shown: u64) -> Done {
        if self.try_charge(used, shown) { Ok(()) } else { self.lock().charge(used, shown) }
    }
}

impl State {
    fn slabs(&mut self, of: Slabs) -> &mut Ranges {
        match of {
            (0, 0) => &mut self.slabs,
            _ => self.array_slabs.entry(of).or_insert_with(|| Ranges::new(PAGE)),
        }
    }
}

impl Locked<'_> {
    pub(crate) fn charge(&mut self, used: u64, shown: u64) -> Done {
        if self.memory.try_charge(used, shown) {
            return Ok(());
        }
        self.release_unused();
        if self.memory.try_charge(used, shown) { Ok(()) } else { Err(Error::OUT_OF_MEMORY) }
    }

    /// Addresses of whole pages; charges nothing.
    pub(crate) fn take_pages(&mut self, bytes: u64, align: u64) -> Done<Pointer> {
        self.state.pages.take(bytes, align.max(PAGE)).ok_or(Error::OUT_OF_MEMORY)
    }

    pub(crate) fn give_pages(&mut self, address: Pointer, bytes: u64) {
        self.memory.aperture.clean(address, bytes);
        self.state.pages.give(address, bytes);
    }

    /// Memory as cuMemAlloc gives it.
    pub(crate) fn allocate(&mut self, size: u64, context: u32) -> Done<Pointer> {
        self.allocate_in((0, 0), size, context)
    }

    pub(crate) fn allocate_in(&mut self, of: Slabs, size: u64, context: u32) -> Done<Pointer> {
        let grain = if self.memory.is_host() { HOST_GRAIN } else { GRAIN };
        let (address, span, owner) = if size <= SMALL {
            let span = round_up(size, grain)?;
            (self.take_small(of, span, grain)?, span, Owner::Slab(of))
        } else {
            let span = round_up(size, PAGE)?;
            self.charge(span, span)?;
            match self.take_pages(span, PAGE) {
                Ok(address) => (address, span, Owner::Pages),
                Err(error) => {
                    self.memory.release(span, span);
                    return Err(error);
                }
            }
        };
        let block = Block { size, span, owner, context };
        self.state.live.insert(address, block);
        Ok(address)
    }

    fn take_small(&mut self, of: Slabs, span: u64, grain: u64) -> Done<Pointer> {
        if let Some(address) = self.state.slabs(of).take(span, grain) {
            return Ok(address);
        }
        self.charge(PAGE, PAGE)?;
        let page = self.take_pages(PAGE, PAGE).inspect_err(|_| self.memory.release(PAGE, PAGE))?;
        self.state.slabs(of).give(page, PAGE);
        self.state.slabs(of).take(span, grain).ok_or(Error::OUT_OF_MEMORY)
    }

    /// Releases a block that was removed from `live`.
    pub(crate) fn release_block(&mut self, address: Pointer, block: Block) {
        match block.owner {
            Owner::Slab(of) => {
                let (start, length) = self.state.slabs(of).give(address, block.span);
                if length == PAGE {
                    self.state.slabs(of).take_at(start, PAGE);
                    self.give_pages(start, PAGE);
                    self.memory.release(PAGE, PAGE);
                }
            }
            Owner::Pages => {
                self.give_pages(address, block.span);
                self.memory.release(block.span, block.span);
            }
            Owner::Managed(touched) => {
                self.give_pages(address, block.span);
                self.memory.release(touched.bytes(), 0);
            }
            Owner::Pool(pool) => self.pool_give(pool, address, block.size, block.span),
            Owner::Graph(_) => self.state.graph.free(block.span),
            Owner::Imported { .. } => {
                // It begins where it begins in its owner's page.
                let start = address / PAGE * PAGE;
                self.memory.aperture.restore(start, block.span);
                self.state.pages.give(start, block.span);
            }
        }
    }

    /// cuMemFree.
    pub(crate) fn free(&mut self, address: Pointer) -> Done {
        match self.state.live.get(&address) {
            None => Err(Error::INVALID_VALUE),
            // Opened handles are closed, not freed.
            Some(Block { owner: Owner::Imported { pool: false, .. }, .. }) => {
                Err(Error::INVALID_VALUE)
            }
            Some(_) => {
                let block = self.state.live.remove(&address).ok_or(Error::INVALID_VALUE)?;
                self.release_block(address, block);
                Ok(())
            }
        }
    }

    /// The live block that holds an address.
    pub(crate) fn find(&self, address: Pointer) -> Option<(Pointer, &Block)> {
        let (&start, block) = self.state.live.range(..=address).next_back()?;
        (address - start < block.size.max(1)).then_some((start, block))
    }

    pub(crate) fn find_mut(&mut self, address: Pointer) -> Option<(Pointer, &mut Block)> {
        let (&start, block) = self.state.live.range_mut(..=address).next_back()?;
        (address - start < block.size.max(1)).then_some((start, block))
    }

    /// Frees the memory that ends with a context.
    pub(crate) fn free_context(&mut self, context: u32) {
        let blocks: Vec<Pointer> = self
            .state
            .live
            .iter()
            .filter(|(_, block)| block.context == context)
            .map(|(&address, _)| address)
            .collect();
        for address in blocks {
            if let Some(block) = self.state.live.remove(&address) {
                self.release_block(address, block);
            }
        }
    }

    /// Makes room for a graph that has `need` bytes live at once.
    pub(crate) fn graph_reserve(&mut self, need: u64) -> Done {
        let want = self.state.graph.used.checked_add(need).ok_or(Error::OUT_OF_MEMORY)?;
        if want > self.state.graph.reserved {
            let missing = want - self.state.graph.reserved;
            let grow = missing.checked_next_multiple_of(POOL_STEP).ok_or(Error::OUT_OF_MEMORY)?;
            self.charge(grow, grow)?;
            let graph = &mut self.state.graph;
            graph.reserved += grow;
        }
        Ok(())
    }
}
