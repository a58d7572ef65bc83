//! A pool of a device: the addresses and the bytes that it holds.

use crate::abi::{POOL_STEP, Pointer};
use crate::ranges::Ranges;
use std::collections::HashMap;

pub(crate) type PoolId = u32;

pub(crate) const GRAIN: u64 = 512;

const RECENT: usize = 8;

pub(crate) struct Pool {
    pub free: Ranges,
    /// Freed last, not yet joined with their neighbours: most programs request the same sizes
    /// again.
    pub recent: [(Pointer, u64); RECENT],
    /// Address ranges that the pool owns.
    pub arenas: Vec<(Pointer, u64)>,
    pub reserved: u64,
    /// Live blocks in each piece of POOL_STEP bytes of the addresses. Pieces with one are what `reserved` must hold.
    pub pieces: HashMap<u64, u32>,
    /// Bytes of live blocks, each rounded up.
    pub used: u64,
    /// The same as requested: the value of the attribute.
    pub requested: u64,
    pub threshold: u64,
    pub max: u64,
    pub handle_types: i32,
    pub destroyed: bool,
    /// Another process's: the file that its blocks are in.
    pub imported: Option<i32>,
}

impl Pool {
    pub(crate) fn default_of_device() -> Pool {
        Pool {
            free: Ranges::new(0),
            arenas: Vec::new(),
            reserved: 0,
            pieces: HashMap::new(),
            used: 0,
            requested: 0,
            threshold: 0,
            max: 0,
            handle_types: 0,
            destroyed: false,
            imported: None,
            recent: [(0, 0); RECENT],
        }
    }

    pub(crate) fn take(&mut self, size: u64, span: u64) -> Option<Pointer> {
        let again = self.recent.iter_mut().find(|(_, length)| *length == span);
        let address = match again {
            Some(slot) => std::mem::take(slot).0,
            None => match self.free.take(span, GRAIN) {
                Some(address) => address,
                None => {
                    self.forget_recent();
                    self.free.take(span, GRAIN)?
                }
            },
        };
        self.used += span;
        self.requested += size;
        for piece in pieces(address, span) {
            *self.pieces.entry(piece).or_default() += 1;
        }
        Some(address)
    }

    /// Bytes of the pieces that have a block.
    pub(crate) fn pinned(&self) -> u64 {
        self.pieces.len() as u64 * POOL_STEP
    }

    pub(crate) fn give(&mut self, address: Pointer, size: u64, span: u64) {
        match self.recent.iter_mut().find(|(_, length)| *length == 0) {
            Some(slot) => *slot = (address, span),
            None => {
                self.free.give(address, span);
            }
        }
        self.used = self.used.saturating_sub(span);
        self.requested = self.requested.saturating_sub(size);
        for piece in pieces(address, span) {
            if let Some(blocks) = self.pieces.get_mut(&piece) {
                *blocks -= 1;
            }
            if self.pieces.get(&piece) == Some(&0) {
                self.pieces.remove(&piece);
            }
        }
    }

    pub(crate) fn forget_recent(&mut self) {
        for (address, span) in std::mem::take(&mut self.recent) {
            if span != 0 {
                self.free.give(address, span);
            }
        }
    }
}

fn pieces(address: Pointer, span: u64) -> impl Iterator<Item = u64> {
    address / POOL_STEP..=(address + span - 1) / POOL_STEP
}
