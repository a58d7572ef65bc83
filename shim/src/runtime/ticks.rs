//! CLOCK_MONOTONIC computed from the processor's time-stamp counter (x86-64). For calls made millions
//! of times a second, reading the real clock would cost as much as all other work.
//!
//! Once a millisecond the real clock is read and becomes the new anchor; in between, time is the anchor
//! plus ticks at the rate of the last interval. A processor without an invariant counter, or a counter
//! that once differs too much from the real clock, is not used.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Longest use of an anchor; also how far apart two must lie to give a rate.
const WINDOW_NS: u64 = 1_000_000;
/// No rate from anchors further apart: the machine may have slept.
const LONGEST_NS: u64 = 1_000_000_000;
/// A reading of the real clock that takes longer was interrupted.
const INTERRUPTED_TICKS: u64 = 20_000;
/// A counter that is off by more than this is no longer used.
const ASTRAY_NS: u64 = 20_000;

const UNTRIED: u32 = 0;
const GOOD: u32 = 1;
const BAD: u32 = 2;

pub struct Ticks {
    state: AtomicU32,
    /// Odd while the anchor is being written.
    version: AtomicU32,
    tick: AtomicU64,
    ns: AtomicU64,
    /// Nanoseconds a tick, 32 bits after the point; 0 = not known yet.
    rate: AtomicU64,
    /// The anchor is used for fewer ticks than these; 0 while the rate is not known, or the counter is not used.
    most: AtomicU64,
}

impl Ticks {
    #[allow(clippy::new_without_default, reason = "it is made in constants alone")]
    pub const fn new() -> Ticks {
        Ticks {
            state: AtomicU32::new(UNTRIED),
            version: AtomicU32::new(0),
            tick: AtomicU64::new(0),
            ns: AtomicU64::new(0),
            rate: AtomicU64::new(0),
            most: AtomicU64::new(0),
        }
    }

    /// Stops using the counter.
    pub fn leave(&self) {
        self.state.store(BAD, Ordering::Relaxed);
        // An exchange, as in `write`: the later one of both sees the other.
        self.most.swap(0, Ordering::AcqRel);
    }

    /// The time now; `real` reads the real clock.
    #[inline]
    pub fn now(&self, real: fn() -> u64) -> u64 {
        let version = self.version.load(Ordering::Acquire);
        let tick = self.tick.load(Ordering::Relaxed);
        let ns = self.ns.load(Ordering::Relaxed);
        let rate = self.rate.load(Ordering::Relaxed);
        let most = self.most.load(Ordering::Relaxed);
        if most == 0 {
            return self.unanchored(real);
        }
        fence(Ordering::Acquire);
        let ticks = counter().wrapping_sub(tick);
        if ticks < most && version & 1 == 0 && self.version.load(Ordering::Relaxed) == version {
            // `most` times the rate is a millisecond.
            return ns + (ticks.wrapping_mul(rate) >> 32);
        }
        self.unanchored(real)
    }

    #[cold]
    #[inline(never)]
    fn unanchored(&self, real: fn() -> u64) -> u64 {
        if self.state.load(Ordering::Relaxed) == BAD { real() } else { self.anchor(real) }
    }

    #[inline(never)]
    fn anchor(&self, real: fn() -> u64) -> u64 {
        if self.state.load(Ordering::Relaxed) == UNTRIED {
            let state = if is_invariant() { GOOD } else { BAD };
            self.state.store(state, Ordering::Relaxed);
        }
        let before = counter();
        let ns = real();
        let after = counter();
        if after.wrapping_sub(before) > INTERRUPTED_TICKS {
            return ns;
        }
        let version = self.version.load(Ordering::Relaxed);
        let odd = version | 1;
        if version & 1 == 1
            || self
                .version
                .compare_exchange(version, odd, Ordering::Acquire, Ordering::Relaxed)
                .is_err()
        {
            // Another thread is updating the anchor.
            return ns;
        }
        fence(Ordering::Release);
        self.write(before + (after - before) / 2, ns);
        self.version.store(version.wrapping_add(2), Ordering::Release);
        ns
    }

    /// Writes the anchor. The version is odd, so no other thread writes.
    fn write(&self, tick: u64, ns: u64) {
        let (old_tick, old_ns) =
            (self.tick.load(Ordering::Relaxed), self.ns.load(Ordering::Relaxed));
        let (ticks, passed) = (tick.wrapping_sub(old_tick), ns.saturating_sub(old_ns));
        let rate = self.rate.load(Ordering::Relaxed);
        if old_tick != 0 && passed < WINDOW_NS / 2 {
            return;
        }
        if old_tick != 0 && passed < LONGEST_NS && ticks < 1 << 40 {
            let seen = (ticks as u128 * u128::from(rate)) >> 32;
            if rate != 0
                && passed < 4 * WINDOW_NS
                && seen.abs_diff(passed.into()) > ASTRAY_NS.into()
            {
                self.state.store(BAD, Ordering::Relaxed);
            }
            let rate = ((u128::from(passed) << 32) / u128::from(ticks.max(1))) as u64;
            self.rate.store(rate, Ordering::Relaxed);
            self.most.swap((WINDOW_NS << 32) / rate.max(1), Ordering::AcqRel);
            if self.state.load(Ordering::Relaxed) == BAD {
                self.leave();
            }
        }
        self.tick.store(tick, Ordering::Relaxed);
        self.ns.store(ns, Ordering::Relaxed);
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Whether the counter runs at one rate in all states of the processor.
#[cfg(target_arch = "x86_64")]
fn is_invariant() -> bool {
    use std::arch::x86_64::__cpuid;
    let leaf = 0x8000_0007;
    __cpuid(0x8000_0000).eax >= leaf && __cpuid(leaf).edx & (1 << 8) != 0
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn counter() -> u64 {
    0
}

/// The counter of aarch64 may have steps of 40 ns: the C library's clock is as fast, and exact.
#[cfg(target_arch = "aarch64")]
fn is_invariant() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::clock::real_mono_ns;

    #[test]
    fn it_stays_with_the_real_clock() {
        static TICKS: Ticks = Ticks::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let end = real_mono_ns() + 60_000_000;
                    loop {
                        let before = real_mono_ns();
                        let now = TICKS.now(real_mono_ns);
                        let after = real_mono_ns();
                        assert!(now + 30_000 >= before, "{} behind", before - now);
                        assert!(now <= after + 30_000, "{} ahead", now - after);
                        if after > end {
                            break;
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn a_counter_that_strays_is_left() {
        let ticks = Ticks::new();
        ticks.state.store(GOOD, Ordering::Relaxed);
        ticks.write(1_000, 1_000_000);
        ticks.write(1_001_000, 2_000_000);
        ticks.write(2_001_000, 3_000_000);
        assert_eq!(ticks.state.load(Ordering::Relaxed), GOOD);
        ticks.write(2_501_000, 4_000_000);
        assert_eq!(ticks.state.load(Ordering::Relaxed), BAD);
    }
}
