//! Sparse arrays: tiles that physical objects back, each of which is a reference.

use super::prelude::*;
use super::vmm::{apply_settled, settle, untie};
use crate::hooks::call::after_call::unfollowed;
use crate::model::vmm::{Dropped, Owner, Region};
use crate::runtime::fallible::{TryPush, list_of, vec_of};

/// cuMemMapArrayAsync: maps tiles of sparse arrays. The driver maps them later, in stream order;
/// references are counted at the call.
pub fn map_array_async(call: Call<impl Row>, list: In<CUarrayMapInfo>, count: u32) -> CUresult {
    let (p, api) = (call.p, call.api());
    let number = if list.is_null() { 0 } else { count as usize };
    let tiles = (0..number).map_while(|n| list.at(n).get()).map(|info| Tile::read(&info.words));
    let room = list_of(number, tiles).and_then(|tiles| Ok((tiles, vec_of(number)?)));
    let Ok((tiles, mut steps)) = room else { return unfollowed(call, current_target(p).device) };
    {
        let mut vmm = p.vmm.lock();
        for tile in &tiles {
            let step: (Option<u64>, Dropped) = match tile.memory {
                Some(handle) => (vmm.hold_handle(handle), Dropped::default()),
                None => (None, untie(p, api, &mut vmm, tile.array, Some(tile.region))),
            };
            let _ = steps.try_push(step);
        }
    }
    let result = call.forward();
    for (tile, (held, dropped)) in tiles.iter().zip(steps) {
        settle(p, api, dropped, result);
        let Some(object) = held else { continue };
        let mut vmm = p.vmm.lock();
        let settled = if result == CUDA_SUCCESS {
            // The tile loses its previous memory.
            let before = untie(p, api, &mut vmm, tile.array, Some(tile.region));
            vmm.held_by_tie(tile.array, tile.region, object);
            vmm.settle(before, true)
        } else {
            vmm.drop_hold(object)
        };
        apply_settled(p, api, &mut vmm, settled);
    }
    result
}

/// The fields of one list element that are used here.
struct Tile {
    array: Owner,
    region: Region,
    /// The handle that backs it from now on; `None` to unmap.
    memory: Option<u64>,
}

impl Tile {
    /// Layout in bytes: array @8, kind of the part @16, its place @24, operation @56, handle @64.
    fn read(words: &[u64; 12]) -> Tile {
        const UNMAP: u32 = 2;
        const MIP_TAIL: u32 = 1;
        let half = |byte: usize| (words[byte / 8] >> (byte % 8 * 8)) as u32;
        let region = if half(16) == MIP_TAIL {
            Region::span(1 << 63 | u64::from(half(24)), words[4], words[5])
        } else {
            // Level and layer, then offset and extent in x, y, z.
            let at = |byte| u64::from(half(byte));
            let from = [at(32), at(36), at(40)];
            let extent = [at(44), at(48), at(52)];
            let to = std::array::from_fn(|d| from[d] + extent[d].max(1));
            Region { lane: words[3] & !(1 << 63), from, to }
        };
        let memory = (half(56) != UNMAP).then_some(words[8]);
        Tile { array: Owner::Array(words[1]), region, memory }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tile_is_read_where_the_driver_puts_it() {
        let mut bytes = [0u8; 96];
        let mut put = |at: usize, value: u32| {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        };
        put(8, 0xa);
        for (n, value) in [2, 3, 10, 20, 30, 64, 32, 1].into_iter().enumerate() {
            put(24 + 4 * n, value);
        }
        put(56, 1);
        put(64, 0xbeef);
        let words = |bytes: [u8; 96]| -> [u64; 12] {
            std::array::from_fn(|n| u64::from_le_bytes(bytes[n * 8..n * 8 + 8].try_into().unwrap()))
        };
        let tile = Tile::read(&words(bytes));
        assert_eq!(tile.array, Owner::Array(0xa));
        assert_eq!(tile.memory, Some(0xbeef));
        let region = Region { lane: 3 << 32 | 2, from: [10, 20, 30], to: [74, 52, 31] };
        assert_eq!(tile.region, region);
        bytes[56] = 2;
        assert_eq!(Tile::read(&words(bytes)).memory, None);
        // The tail of the mip levels: layer, offset, size.
        bytes[16] = 1;
        bytes[24..56].fill(0);
        bytes[24] = 5;
        bytes[33] = 1;
        bytes[42] = 1;
        assert_eq!(Tile::read(&words(bytes)).region, Region::span(1 << 63 | 5, 256, 65536));
    }
}
