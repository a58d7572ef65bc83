//! The rules, one by one, and what holds for any order of requests.

use std::collections::HashSet;

use super::blocks::NONE;
use super::*;
use crate::allocator::LogSegment;

const MIB: u64 = 1 << 20;

impl Cache {
    /// Every segment is tiled by its blocks, neighbours agree, totals are the sums, and no two
    /// free neighbours in the same state lie side by side.
    pub(super) fn check(&self) {
        let (mut reserved, mut allocated) = (0, 0);
        let mut spans: Vec<(u64, u64)> = Vec::new();
        let free: Vec<HashSet<BlockId>> = self
            .blocks
            .pools
            .iter()
            .map(|pool| pool.free.iter().map(|entry| entry.2).collect())
            .collect();
        for (id, block) in self.blocks.iter() {
            spans.push((block.address, block.size));
            if block.mapped {
                reserved += block.size;
            }
            if block.allocated {
                allocated += block.size;
            }
            if block.next != NONE {
                let next = self.blocks.at(block.next);
                assert_eq!(next.previous, id);
                assert_eq!(next.pool, block.pool);
                assert_eq!(next.address, block.address + block.size, "a gap or an overlap");
                assert!(
                    block.allocated || next.allocated || block.mapped != next.mapped,
                    "free neighbours were not merged"
                );
            }
            let listed = free[block.pool as usize].contains(&id);
            assert_eq!(listed, block.mapped && !block.allocated);
            let waiting = self.blocks.pool(id).unmapped.contains(&(block.address, id));
            assert_eq!(waiting, !block.mapped);
            assert!(block.mapped || block.expandable);
        }
        spans.sort_unstable();
        assert!(spans.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "an overlap");
        let count =
            self.blocks.iter().filter(|(_, block)| block.mapped && !block.allocated).count();
        assert_eq!(free.iter().map(HashSet::len).sum::<usize>(), count);
        assert_eq!(reserved, self.totals.reserved);
        assert_eq!(allocated, self.totals.allocated);
    }
}

/// (block size, bytes reserved) of one request in an empty cache.
fn one(requested: u64) -> (u64, u64) {
    let mut cache = Cache::new(Conf::default(), None);
    let block = cache.alloc(requested, 0, 0).unwrap();
    cache.check();
    (cache.span(block).1, cache.totals().reserved)
}

#[test]
fn one_request_in_an_empty_cache() {
    assert_eq!(one(1), (512, 2 * MIB));
    assert_eq!(one(MIB), (MIB, 2 * MIB));
    assert_eq!(one(MIB + 1), (1_049_088, 20 * MIB));
    assert_eq!(one(10 * MIB - 512), (10 * MIB - 512, 20 * MIB));
    assert_eq!(one(10 * MIB), (10 * MIB, 10 * MIB));
    assert_eq!(one(19 * MIB + MIB / 2), (20 * MIB, 20 * MIB), "half a MiB is not split off");
    assert_eq!(one(21 * MIB + 1), (22 * MIB, 22 * MIB));
}

#[test]
fn an_expandable_segment_grows_by_pages() {
    let conf = Conf { expandable_segments: true, ..Conf::default() };
    let mut cache = Cache::new(conf, None);
    cache.alloc(3 * MIB, 0, 0).unwrap();
    assert_eq!(cache.totals().reserved, 20 * MIB);
    let second = cache.alloc(30 * MIB, 0, 0).unwrap();
    assert_eq!(cache.totals().reserved, 40 * MIB);
    assert_eq!(cache.span(second).1, 30 * MIB);
    cache.check();
}

#[test]
fn streams_and_private_pools_do_not_share() {
    let mut cache = Cache::new(Conf::default(), None);
    let block = cache.alloc(MIB, 0, 0).unwrap();
    cache.free(block);
    cache.alloc(MIB, 1, 0).unwrap();
    cache.alloc(MIB, 0, 7).unwrap();
    assert_eq!(cache.totals().reserved, 6 * MIB);
}

#[test]
fn at_the_limit_the_cache_is_emptied_once_then_it_is_out_of_memory() {
    let mut cache = Cache::new(Conf::default(), Some(40 * MIB));
    let first = cache.alloc(30 * MIB, 0, 0).unwrap();
    cache.free(first);
    cache.alloc(40 * MIB, 0, 0).unwrap();
    assert_eq!(cache.totals().retries, 1);
    assert_eq!(cache.alloc(1, 0, 0), Err(OutOfMemory));
    cache.check();
}

#[test]
fn a_private_pool_keeps_its_segments_while_a_graph_uses_it() {
    let mut cache = Cache::new(Conf::default(), Some(60 * MIB));
    for pool in [0, 7] {
        let block = cache.alloc(20 * MIB, 0, pool).unwrap();
        cache.free(block);
    }
    cache.alloc(40 * MIB, 0, 0).unwrap();
    assert_eq!((cache.totals().retries, cache.totals().reserved), (1, 60 * MIB));
    assert_eq!(cache.alloc(2 * MIB, 0, 0), Err(OutOfMemory), "its 20 MiB are not to be had");
    cache.pool_ends(7);
    cache.alloc(20 * MIB, 0, 0).unwrap();
    assert_eq!(cache.totals().reserved, 60 * MIB);
    cache.check();
}

#[test]
fn garbage_collection_ends_with_a_round_not_at_its_target() {
    let conf = "garbage_collection_threshold:0.5,per_process_memory_fraction:1";
    let mut cache = Cache::new(Conf::parse(conf).unwrap(), Some(1000 * MIB));
    let blocks: Vec<BlockId> =
        (0..4).map(|n| cache.alloc((100 + n) * MIB, 0, 0).unwrap()).collect();
    let stays = cache.alloc(150 * MIB, 0, 0).unwrap();
    blocks.into_iter().for_each(|block| cache.free(block));
    // All four are of one age, the average: 56 MiB are over the threshold, and 406 go.
    cache.alloc(200 * MIB, 0, 0).unwrap();
    assert_eq!(cache.totals().reserved, 350 * MIB);
    cache.free(stays);
    cache.check();
}

/// The sizes that requests of these bytes get, one after the other, none freed; and the bytes reserved.
fn sizes(conf: &str, requests: &[u64]) -> (Vec<u64>, u64) {
    let mut cache = Cache::new(Conf::parse(conf).unwrap(), None);
    let got = requests.iter().map(|bytes| cache.alloc(*bytes, 0, 0).unwrap());
    let blocks: Vec<BlockId> = got.collect();
    cache.check();
    (blocks.into_iter().map(|block| cache.span(block).1).collect(), cache.totals().reserved)
}

#[test]
fn a_block_is_split_if_the_rest_is_large_enough_for_its_pool() {
    const HALF: u64 = MIB / 2;
    // Large: more than 1 MiB must be left. 11 MiB are free in the segment for the second request.
    let first = 9 * MIB;
    assert_eq!(sizes("", &[first, 10 * MIB]), (vec![first, 11 * MIB], 20 * MIB));
    let less = 10 * MIB - 512;
    assert_eq!(sizes("", &[first, less]), (vec![first, less], 20 * MIB));
    // Small, and in expandable segments: 512 bytes.
    let small = [MIB, MIB - 512, 512];
    assert_eq!(sizes("", &small), (small.to_vec(), 2 * MIB));
    let expandable = [9 * MIB, 11 * MIB - 512, 512 + MIB];
    assert_eq!(sizes("expandable_segments:True", &expandable[..2]).0, expandable[..2]);
    // Oversize blocks are never split.
    let conf = "max_split_size_mb:32";
    assert_eq!(sizes(conf, &[30 * MIB + HALF]), (vec![30 * MIB + HALF], 32 * MIB));
    assert_eq!(sizes(conf, &[32 * MIB + HALF]), (vec![34 * MIB], 34 * MIB));
    let mut cache = Cache::new(Conf::parse(conf).unwrap(), None);
    let freed = cache.alloc(40 * MIB, 0, 0).unwrap();
    cache.free(freed);
    let again = cache.alloc(32 * MIB, 0, 0).unwrap();
    assert_eq!(cache.span(again).1, 40 * MIB, "32 MiB are oversize");
}

#[test]
fn oversize_blocks_are_released_before_the_whole_cache() {
    let run = |conf: &str, request| {
        let mut cache = Cache::new(Conf::parse(conf).unwrap(), Some(60 * MIB));
        let small = cache.alloc(MIB, 0, 0).unwrap();
        let large = cache.alloc(40 * MIB, 0, 0).unwrap();
        cache.free(small);
        cache.free(large);
        cache.alloc(request, 0, 0).unwrap();
        cache.check();
        (cache.totals().retries, cache.totals().reserved)
    };
    // The free block of 40 MiB is too large for 20 MiB, and goes; the small segment stays.
    assert_eq!(run("max_split_size_mb:20", 20 * MIB), (0, 22 * MIB));
    // Without that setting the cache is emptied.
    assert_eq!(run("", 50 * MIB), (1, 50 * MIB));
}

#[test]
fn garbage_is_collected_under_a_memory_fraction_alone() {
    let peak = |text: &str| {
        let mut cache = Cache::new(Conf::parse(text).unwrap(), Some(1000 * MIB));
        for size in [100 * MIB, 200 * MIB, 300 * MIB, 400 * MIB] {
            let block = cache.alloc(size, 0, 0).unwrap();
            cache.free(block);
            cache.check();
        }
        (cache.totals().peak_reserved, cache.totals().retries)
    };
    assert_eq!(peak("garbage_collection_threshold:0.4"), (1000 * MIB, 0));
    let both = "garbage_collection_threshold:0.4,per_process_memory_fraction:1";
    assert_eq!(peak(both), (700 * MIB, 0), "over 400 MiB, the oldest go first");
}

#[test]
fn what_others_hold_is_no_room() {
    let mut cache = Cache::new(Conf::default(), Some(100 * MIB));
    cache.set_outside(50 * MIB).unwrap();
    let block = cache.alloc(40 * MIB, 0, 0).unwrap();
    assert_eq!(cache.alloc(20 * MIB, 0, 0), Err(OutOfMemory));
    cache.set_outside(10 * MIB).unwrap();
    cache.alloc(20 * MIB, 0, 0).unwrap();
    assert_eq!(cache.set_outside(41 * MIB), Err(OutOfMemory), "their call fails, not ours");
    cache.free(block);
    let totals = cache.totals();
    assert_eq!((totals.peak_reserved, totals.peak_total), (60 * MIB, 101 * MIB));
    assert_eq!(totals.peak_needed, 101 * MIB);
}

#[test]
fn requests_beyond_all_devices_get_nothing_and_large_ones_are_served() {
    for text in ["", "expandable_segments:True", "max_split_size_mb:64"] {
        let mut cache = Cache::new(Conf::parse(text).unwrap(), None);
        for size in [1 << 46, 3 << 40, 20 << 40] {
            for _ in 0..5 {
                let block = cache.alloc(size, 0, 0).unwrap();
                cache.check();
                cache.free(block);
                cache.empty();
            }
        }
        let most: Vec<_> = (0..9).map(|_| cache.alloc(1 << 45, 0, 0)).collect();
        assert!(most[0].is_ok() && most[8].is_err(), "the sum has an end, too");
        for size in [1 << 48, u64::MAX] {
            assert_eq!(cache.alloc(size, 0, 0), Err(OutOfMemory));
        }
        cache.check();
    }
}

/// A segment of 20 MiB with blocks of 2 MiB at its places 0, 3 and 9; one of 2 MiB with a small
/// one; one that is free.
fn beginning(expandable: bool) -> Vec<LogSegment> {
    let segment = |address, size, blocks: &[(u64, u64)]| LogSegment {
        address,
        size,
        expandable,
        blocks: blocks.to_vec(),
        ..LogSegment::default()
    };
    let places = [0, 3, 9].map(|n| (1000 * MIB + n * 2 * MIB, 2 * MIB));
    vec![
        segment(1000 * MIB, 20 * MIB, &places),
        segment(2000 * MIB, 2 * MIB, &[(2001 * MIB, 512)]),
        segment(3000 * MIB, 40 * MIB, &[]),
    ]
}

#[test]
fn a_cache_begins_with_what_another_held() {
    for (text, expandable) in [("", false), ("", true), ("expandable_segments:True", true)] {
        let mut cache = Cache::new(Conf::parse(text).unwrap(), None);
        let taken = cache.adopt(&beginning(expandable));
        cache.check();
        let sizes: Vec<u64> = taken.iter().map(|block| cache.span(*block).1).collect();
        assert_eq!(sizes, [2 * MIB, 2 * MIB, 2 * MIB, 512], "{text} {expandable}");
        assert_eq!(cache.totals().reserved, 62 * MIB);
        assert_eq!(cache.totals().driver_allocations, 0);
        // The holes are of 4 and of 10 MiB.
        cache.alloc(4 * MIB, 0, 0).unwrap();
        cache.alloc(10 * MIB, 0, 0).unwrap();
        assert_eq!(cache.totals().reserved, 62 * MIB, "{text} {expandable}");
        cache.empty();
        cache.check();
        assert_eq!(cache.totals().reserved, 22 * MIB);
        for block in taken {
            cache.free(block);
            cache.check();
        }
    }
}

mod properties {
    use super::*;
    use proptest::prelude::*;

    fn confs() -> impl Strategy<Value = Conf> {
        prop_oneof![
            Just(""),
            Just("expandable_segments:True"),
            Just("max_split_size_mb:64"),
            Just("roundup_power2_divisions:4,max_split_size_mb:20"),
            Just("large_segment_size_mb:64"),
            Just("garbage_collection_threshold:0.6,per_process_memory_fraction:0.9"),
            Just("expandable_segments:True,roundup_power2_divisions:8"),
        ]
        .prop_map(|text| Conf::parse(text).unwrap())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

        #[test]
        fn blocks_tile_segments_and_all_merges_back(
            conf in confs(),
            limit in prop_oneof![Just(None), Just(Some(256 * MIB))],
            begun in prop_oneof![Just(None), any::<bool>().prop_map(Some)],
            steps in prop::collection::vec(
                (0u64..80 * MIB, 0u32..3, 0u16..2, any::<prop::sample::Index>(), 0u8..12),
                1..200,
            ),
        ) {
            let mut cache = Cache::new(conf, limit);
            let mut live = begun.map_or(Vec::new(), |wide| cache.adopt(&beginning(wide)));
            let mut outside = 0;
            for (size, stream, pool, which, choice) in steps {
                match choice {
                    0..6 => {
                        let size = if choice < 3 { size % (2 * MIB) } else { size };
                        if let Ok(block) = cache.alloc(size, stream, pool) {
                            prop_assert!(cache.span(block).1 >= size);
                            let of = cache.blocks.pool(block);
                            prop_assert_eq!(of.private, pool);
                            prop_assert_eq!(cache.pool_of[&(pool, stream, of.small)], cache.blocks.at(block).pool);
                            live.push(block);
                        }
                    }
                    6..10 if !live.is_empty() => {
                        cache.free(live.swap_remove(which.index(live.len())));
                    }
                    10 if limit.is_none_or(|limit| cache.totals().reserved + size <= limit) => {
                        outside = size;
                        cache.set_outside(size).unwrap();
                    }
                    _ => cache.empty(),
                }
                cache.check();
                if let Some(limit) = limit {
                    prop_assert!(cache.totals().reserved + outside <= limit);
                }
            }
            for block in live {
                cache.free(block);
            }
            cache.check();
            // Free neighbours are one: each segment is whole, and goes.
            for (id, block) in cache.blocks.iter() {
                prop_assert!(block.expandable || cache.blocks.is_whole_segment(id));
            }
            cache.pool_ends(1);
            cache.empty();
            cache.check();
            prop_assert_eq!(cache.totals().reserved, 0, "everything merges to whole segments");
        }
    }
}
