//! A pool of a device: the addresses and the bytes that it holds.

use crate::abi::{POOL_STEP, Pointer};
use crate::ranges::Ranges;

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
    /// Live blocks in each piece of POOL_STEP bytes, from the lowest of the arenas on, and the number of that.
    pub pieces: Vec<u32>,
    pub first_piece: u64,
    /// Bytes of the pieces that have a block: what `reserved` must hold.
    pub pinned: u64,
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
            pieces: Vec::new(),
            first_piece: 0,
            pinned: 0,
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
        let mut pinned = 0;
        for blocks in self.pieces_of(address, span) {
            *blocks += 1;
            pinned += u64::from(*blocks == 1) * POOL_STEP;
        }
        self.pinned += pinned;
        Some(address)
    }

    /// Adds whole pieces of addresses.
    pub(crate) fn add_arena(&mut self, start: Pointer, bytes: u64) {
        let (first, end) = (start / POOL_STEP, (start + bytes) / POOL_STEP);
        if self.arenas.is_empty() {
            self.first_piece = first;
        }
        let before = self.first_piece.saturating_sub(first);
        self.pieces.splice(..0, (0..before).map(|_| 0));
        self.first_piece -= before;
        let length = (end - self.first_piece) as usize;
        self.pieces.resize(self.pieces.len().max(length), 0);
        self.arenas.push((start, bytes));
        self.free.give(start, bytes);
    }

    fn pieces_of(&mut self, address: Pointer, span: u64) -> &mut [u32] {
        let [first, last] =
            [address, address + span - 1].map(|at| (at / POOL_STEP - self.first_piece) as usize);
        &mut self.pieces[first..=last]
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
        let mut given = 0;
        for blocks in self.pieces_of(address, span) {
            *blocks -= 1;
            given += u64::from(*blocks == 0) * POOL_STEP;
        }
        self.pinned -= given;
    }

    pub(crate) fn forget_recent(&mut self) {
        for (address, span) in std::mem::take(&mut self.recent) {
            if span != 0 {
                self.free.give(address, span);
            }
        }
    }
}
