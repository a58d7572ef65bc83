use super::*;

const DEVICE: DeviceId = DeviceId(0);
use vramtrace_format::physical::{KIB, MIB};

fn sampling_of(seed: u64) -> BlockSampling {
    let at = crate::runtime::hash_table::pages(size_of::<BlockFigures>()).unwrap();
    // SAFETY: fresh zero pages that are never unmapped, page-aligned and large enough; zero bytes are a valid value.
    BlockSampling::new(unsafe { &*at.cast::<BlockFigures>() }, seed, 20_000)
}

/// The sizes of a program's blocks: many small ones, some of about the rate, few large ones.
fn sizes() -> Vec<u64> {
    let small = std::iter::repeat_n(512, 4_000).chain(std::iter::repeat_n(20 * KIB, 2_000));
    let others = std::iter::repeat_n(900 * KIB, 100).chain(std::iter::repeat_n(40 * MIB, 5));
    small.chain(others).collect()
}

/// An estimate of sums, and of its variance.
#[derive(Default)]
struct Estimate {
    bytes: f64,
    blocks: f64,
    variance: f64,
}

impl Estimate {
    fn add(&mut self, size: u64, chosen: Chosen) {
        let weight = match chosen {
            Chosen::No => return,
            Chosen::Always => 1.0,
            Chosen::Sample(rate) => sampling::weight(size, 1 << rate),
        };
        self.bytes += size as f64 * weight;
        self.blocks += weight;
        self.variance += sampling::variance(size, weight);
    }
}

/// Estimates of these blocks with different seeds; `before` is called before each block.
fn estimates(runs: u64, sizes: &[u64], before: impl Fn(&BlockSampling, usize)) -> Vec<Estimate> {
    let run = |seed| {
        let sampling = sampling_of(seed);
        let mut estimate = Estimate::default();
        for (number, size) in sizes.iter().enumerate() {
            before(&sampling, number);
            estimate.add(*size, sampling.allocated(DEVICE, 1 << 40, *size));
        }
        estimate
    };
    (0..runs).map(run).collect()
}

/// The mean, and its standard error.
fn mean(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let count = values.clone().count() as f64;
    let mean = values.clone().sum::<f64>() / count;
    let variance = values.map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, (variance / count).sqrt())
}

fn assert_unbiased(estimates: &[Estimate], sizes: &[u64]) {
    let bytes: f64 = sizes.iter().map(|size| *size as f64).sum();
    let (found, error) = mean(estimates.iter().map(|estimate| estimate.bytes));
    assert!((found - bytes).abs() < 4.0 * error, "{found} +- {error}, not {bytes}");
    let (found, error) = mean(estimates.iter().map(|estimate| estimate.blocks));
    assert!((found - sizes.len() as f64).abs() < 4.0 * error, "{found} +- {error} blocks");
    let is_near =
        |estimate: &&Estimate| (estimate.bytes - bytes).abs() < 2.0 * estimate.variance.sqrt();
    let near = estimates.iter().filter(is_near).count() as f64 / estimates.len() as f64;
    assert!((0.92..0.98).contains(&near), "{near} within two standard errors");
}

#[test]
#[cfg_attr(miri, ignore = "takes long there")]
fn the_estimates_are_unbiased_and_have_the_stated_error() {
    let sizes = sizes();
    let estimates = estimates(1_000, &sizes, |_, _| ());
    assert_unbiased(&estimates, &sizes);
    // Of the stated error: sum of size^2 (1 - p) / p.
    let of_all = |size: &u64| {
        let p = sampling::probability(*size, 1 << LEAST);
        (*size as f64).powi(2) * (1.0 - p) / p
    };
    let expected: f64 = sizes.iter().map(of_all).sum();
    let (found, error) = mean(estimates.iter().map(|estimate| estimate.variance));
    assert!((found - expected).abs() < 4.0 * error, "{found} +- {error}, not {expected}");
}

#[test]
#[cfg_attr(miri, ignore = "takes long there")]
fn a_change_of_the_rate_keeps_them_unbiased() {
    let sizes = sizes();
    let estimates = estimates(1_000, &sizes, |sampling, number| {
        let rate = [LEAST, LEAST + 3, LEAST + 1, LEAST][number / 7 % 4];
        sampling.rate.store(rate, Relaxed);
    });
    assert_unbiased(&estimates, &sizes);
}

#[test]
fn the_first_block_in_new_memory_is_recorded() {
    let sampling = sampling_of(3);
    sampling.rate.store(MOST, Relaxed);
    let other = sampling.allocated(DEVICE, 1 << 40, 512);
    sampling.memory_came(DEVICE, 2 << 40, 20 * MIB);
    assert_eq!(sampling.allocated(DEVICE, 1 << 40, 512), other, "elsewhere");
    assert_eq!(sampling.allocated(DeviceId(1), 2 << 40, 512), other, "another device");
    assert_eq!(sampling.allocated(DEVICE, 2 << 40, 512), Chosen::Always);
    assert_eq!(sampling.allocated(DEVICE, (2 << 40) + 512, 512), other, "the second");
    // A segment that grows: its block begins before the new part.
    sampling.memory_came(DEVICE, (2 << 40) + 20 * MIB, 2 * MIB);
    assert_eq!(sampling.allocated(DEVICE, (2 << 40) + 4 * MIB, 17 * MIB), Chosen::Always);
    assert_eq!(other, Chosen::No);
}

fn allocated(bytes: u64) -> CacheBytes {
    CacheBytes { allocated: bytes, reserved: 4 << 30 }
}

/// One call as the hook makes it; the second figure: whether the block is to be recorded or may have been.
fn call(sampling: &BlockSampling, address: u64, size: i64, totals: CacheBytes) -> (Chosen, bool) {
    let chosen = match size > 0 {
        true => sampling.allocated(DEVICE, address, size as u64),
        false => {
            sampling.freed(DEVICE);
            Chosen::No
        }
    };
    sampling.note(DEVICE, totals);
    (chosen, chosen != Chosen::No || sampling.may_be_recorded(address))
}

/// The same calls of two recorders, of which one passes what it can.
#[test]
fn what_passes_is_what_is_not_recorded() {
    let samplings = [11, 11].map(sampling_of);
    samplings[1].may_pass(DEVICE);
    let (mut random, mut held, mut passed, mut recorded) = (3, Vec::new(), 0, 0);
    let mut below = |limit: u64| {
        let (next, bits) = sampling::random(random);
        random = next;
        bits % limit
    };
    for turn in 0..if cfg!(miri) { 200 } else { 20_000u64 } {
        if turn % 1_000 == 0 {
            let address = (turn / 1_000 + 1) << 32;
            samplings.iter().for_each(|sampling| sampling.memory_came(DEVICE, address, MIB));
        }
        let (address, size) = match below(2) == 0 && !held.is_empty() {
            true => held.swap_remove(below(held.len() as u64) as usize),
            false => {
                let (address, size) =
                    (((turn / 1_000 + 1) << 32) + ((turn % 1_000) << 13), 512 + below(64 * KIB));
                held.push((address, -(size as i64)));
                (address, size as i64)
            }
        };
        let totals = allocated(below(1 << 30));
        samplings[0].may_pass(DEVICE);
        let (chosen, is_known) = call(&samplings[0], address, size, totals);
        let figures = samplings[1].figures();
        match figures.pass(figures.device(0).unwrap(), address, size, totals) {
            true => {
                passed += 1;
                assert!(chosen == Chosen::No && !is_known, "{turn}");
            }
            false => {
                recorded += 1;
                samplings[1].may_pass(DEVICE);
                assert_eq!(
                    call(&samplings[1], address, size, totals),
                    (chosen, is_known),
                    "{turn}"
                );
            }
        }
        for sampling in &samplings {
            match size > 0 {
                true if chosen != Chosen::No => sampling.is_recorded(address),
                false if is_known => sampling.is_removed(address),
                _ => {}
            }
        }
        assert_eq!(samplings[0].counts(DEVICE), samplings[1].counts(DEVICE));
        let [one, other] = samplings.each_ref().map(|sampling| sampling.figures().totals(DEVICE));
        assert_eq!((one, other), (totals, totals));
    }
    assert!(passed > 4 * recorded && recorded > 0, "{passed} {recorded}");
}

#[test]
fn nothing_passes_before_it_may_and_after_totals_are_asked_for() {
    let sampling = sampling_of(5);
    // The first draw.
    sampling.allocated(DEVICE, 1 << 40, 1);
    let figures = sampling.figures();
    let passes = |index, address, size| {
        let device = figures.device(index);
        device.is_some_and(|device| figures.pass(device, address, size, allocated(1)))
    };
    assert!(!passes(0, 1 << 40, 1));
    for device in [DEVICE, DeviceId(62), DeviceId(63), DeviceId::UNKNOWN] {
        sampling.may_pass(device);
    }
    assert!(passes(0, 1 << 40, 1) && passes(0, 1 << 40, -1) && passes(62, 1 << 40, -1));
    for (index, address, size) in
        [(1, 1, 1), (64, 1, -1), (255, 1, -1), (0, 0, 1), (0, 0, -1), (0, 1, 0)]
    {
        assert!(!passes(index, address, size), "{index} {address} {size}");
    }
    assert!(!passes(0, 1 << 40, i64::MAX), "a point lies in it");
    sampling.ask();
    assert!(!passes(0, 1 << 40, 1) && !passes(62, 1 << 40, -1));
    sampling.may_pass(DEVICE);
    assert!(passes(0, 1 << 40, 1) && !passes(62, 1 << 40, -1));
}

/// Until a block lies in it, or for some calls: it may not be the framework's.
#[test]
fn new_memory_stops_calls_for_a_while() {
    let sampling = sampling_of(5);
    sampling.allocated(DEVICE, 1 << 40, 1);
    let passes = || {
        let figures = sampling.figures();
        figures.pass(figures.device(0).unwrap(), 1 << 40, 1, allocated(1))
    };
    let next = |address, size: u64| {
        sampling.may_pass(DEVICE);
        sampling.allocated(DEVICE, address, size)
    };
    next(1 << 40, 1);
    assert!(passes());
    sampling.memory_came(DEVICE, 2 << 40, MIB);
    assert!(!passes());
    next(1 << 40, 1);
    assert!(!passes(), "the block may still come");
    assert_eq!(next(2 << 40, 512), Chosen::Always);
    next(1 << 40, 1);
    assert!(passes());
    sampling.memory_came(DEVICE, 2 << 40, MIB);
    for call in 0..NEW_CALLS {
        assert!(!passes(), "{call}");
        next(1 << 40, 1);
    }
    next(1 << 40, 1);
    assert!(passes());
    assert_ne!(next(2 << 40, 512), Chosen::Always);
}

/// One in so many calls of a device, whoever makes them; those that do not pass too.
#[test]
fn calls_are_timed_at_equal_distances() {
    let sampling = sampling_of(5);
    let [one, other] = [0, 1].map(|index| sampling.figures().device(index).unwrap());
    let timed = |device: &DeviceBlocks| !device.is_untimed() && device.is_timed(256);
    assert!(timed(one) && timed(other), "the first call");
    let distances: Vec<_> = (1..=1024).filter(|_| timed(one)).collect();
    assert_eq!(distances, [256, 512, 768, 1024]);
    assert_eq!((1..=256).filter(|_| timed(other)).collect::<Vec<_>>(), [256]);
}

#[test]
fn counts_are_exact() {
    let sampling = sampling_of(5);
    for number in 0..100 {
        sampling.allocated(DEVICE, number << 20, 2 * MIB);
        sampling.note(DEVICE, allocated((number + 1) * 2 * MIB));
    }
    for number in 0..40 {
        sampling.freed(DEVICE);
        sampling.note(DEVICE, allocated((99 - number) * 2 * MIB));
    }
    sampling.freed(DeviceId(1));
    let counts = Event::BlockCounts { device: DEVICE, live: 60, allocations: 100, peak: 200 * MIB };
    let rate = Event::Sampling { rate: 4 * MIB, least: 4 * MIB, cost: 0, bound: 20_000 };
    assert!(sampling.events().eq([rate, counts]));
}

#[test]
fn counts_are_due_from_time_to_time() {
    let sampling = sampling_of(5);
    let due = (0..3 * RECORDS).filter(|_| sampling.are_counts_due(DEVICE)).count();
    assert_eq!(due, 3);
}

#[test]
fn no_recorded_address_is_missed() {
    let sampling = sampling_of(7);
    let addresses: Vec<u64> = (0..2_000).map(|n| (1 << 40) + n * 3 * 512).collect();
    assert!(!addresses.iter().any(|address| sampling.may_be_recorded(*address)));
    addresses.iter().for_each(|address| sampling.is_recorded(*address));
    assert!(addresses.iter().all(|address| sampling.may_be_recorded(*address)));
    let others = (0..2_000).filter(|n| sampling.may_be_recorded((3 << 39) + n * 512)).count();
    assert!(others < 200, "{others} of 2,000 other addresses");
    addresses.iter().for_each(|address| sampling.is_removed(*address));
    assert!(!addresses.iter().any(|address| sampling.may_be_recorded(*address)));
    // A full count stays.
    (0..300).for_each(|_| sampling.is_recorded(1 << 40));
    (0..300).for_each(|_| sampling.is_removed(1 << 40));
    assert!(sampling.may_be_recorded(1 << 40));
}

#[test]
fn the_rate_follows_the_cost_within_its_limits() {
    let sampling = sampling_of(9);
    let judged = |took_ns, since_ns| (0..128).any(|_| sampling.timed(took_ns, 64, since_ns));
    let rate = || match sampling.rate() {
        Event::Sampling { rate, cost, .. } => (rate, cost),
        other => panic!("{other:?}"),
    };
    assert!(!judged(1_000, 1 << 30), "no more samples than at the start");
    // 4 % of the time.
    assert!(judged(1_000, 1_600_000));
    assert_eq!(rate(), (8 * MIB, 40_000));
    assert!(!judged(1_000, 4_000_000));
    (0..40).for_each(|_| assert!(judged(10_000, 640_000) || rate().0 == 1 << MOST));
    assert_eq!(rate(), (1 << MOST, 1_000_000));
    (0..MOST - LEAST).for_each(|_| assert!(judged(1_000, 1 << 30)));
    assert_eq!(rate().0, 4 * MIB);
}
