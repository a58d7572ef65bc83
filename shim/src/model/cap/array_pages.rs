//! Pages of 2 MiB that small arrays share. The driver does not say in which page an array lies. So this keeps an upper bound of
//! the pages that can be taken: a new array counts for none only where a hole is certain to be large enough.
//!
//! Measured on an H100 (driver 580): arrays share pages with arrays of the same context whose elements have the same
//! number of bytes, whatever their shape, format and size. A new page is taken only where no page has a hole that is large enough,
//! and a page is given back when its last array is destroyed.
//!
//! Only the cap counts the rest of these pages: the ledger and the report have the arrays' own bytes.

use crate::runtime::fallible_map::Map;
use crate::runtime::lock::Lock;
use vramtrace_format::ContextId;
use vramtrace_format::physical::PAGE;

/// Arrays that can share a page: their context, and the bytes of an element.
pub type Sharing = (ContextId, u64);

/// Of one device.
#[derive(Default)]
pub struct ArrayPages(Lock<Map<Sharing, Slabs>>);

#[derive(Clone, Copy, Debug, Default)]
struct Slabs {
    arrays: u64,
    bytes: u64,
    pages: u64,
    /// Arrays that were destroyed since there was none: each may have left a hole.
    destroyed: u64,
    /// The greatest common divisor of the sizes: arrays lie at multiples of it.
    grain: u64,
}

impl Slabs {
    fn came(&mut self, size: u64) {
        self.grain = gcd(self.grain, size);
        let usable = PAGE - PAGE % self.grain;
        let free = (self.pages * usable).saturating_sub(self.bytes);
        let holes = self.pages + self.destroyed.min(self.arrays);
        // If no hole is large enough, each has one grain less at most.
        if free <= holes * (size - self.grain) {
            self.pages += 1;
        }
        self.arrays += 1;
        self.bytes += size;
    }

    fn went(&mut self, size: u64) {
        self.arrays = self.arrays.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(size);
        self.destroyed += 1;
        // Each page has an array at least.
        self.pages = self.pages.min(self.arrays);
    }

    /// Bytes of the pages that are no array's.
    fn rest(&self) -> i64 {
        (self.pages * PAGE) as i64 - self.bytes as i64
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if a == 0 { b } else { gcd(b % a, a) }
}

impl ArrayPages {
    /// Before an array is created. `take` counts the bytes of a further page if they are granted, under the lock.
    pub fn comes<E>(
        &self,
        of: Sharing,
        size: u64,
        take: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut all = self.0.lock();
        // Without host memory it has a page to itself, which stays counted.
        let mut alone = Slabs::default();
        let slabs = all.get_or_insert(of, Slabs::default()).unwrap_or(&mut alone);
        let mut after = *slabs;
        after.came(size);
        take((after.pages - slabs.pages) * PAGE)?;
        *slabs = after;
        Ok(())
    }

    /// The driver has destroyed it, or has not created it. `give_back` is called with the bytes of pages.
    pub fn went(&self, of: Sharing, size: u64, give_back: impl FnOnce(u64)) {
        let mut all = self.0.lock();
        let Some(slabs) = all.get_mut(&of) else { return };
        let before = slabs.pages;
        slabs.went(size);
        give_back((before - slabs.pages) * PAGE);
        if slabs.arrays == 0 {
            all.remove(&of);
        }
    }

    /// The context has ended, with its arrays. Returns the bytes of its pages that were no array's.
    pub fn ended(&self, context: ContextId) -> i64 {
        let mut rest = 0;
        self.0.lock().retain(|(of, _), slabs| {
            rest += if *of == context { slabs.rest() } else { 0 };
            *of != context
        });
        rest
    }

    /// Bytes of all pages that are no array's.
    pub fn rest(&self) -> u64 {
        let rest: i64 = self.0.lock().values().map(|slabs| slabs.rest()).sum();
        rest.max(0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use vramtrace_format::physical::{KIB, MIB};

    /// Pages of 64 arrays, as measured.
    #[test]
    fn the_measured_pages() {
        for (size, pages) in
            [(4, 1), (32, 1), (64, 2), (200, 7), (256, 8), (768, 32), (800, 32), (1024, 32)]
        {
            let mut slabs = Slabs::default();
            (0..64).for_each(|_| slabs.came(size * KIB));
            assert_eq!(slabs.pages, pages, "{size} KiB");
            // One in four stays, and keeps its page.
            (0..48).for_each(|_| slabs.went(size * KIB));
            assert_eq!(slabs.pages, pages.min(16), "{size} KiB");
            (0..16).for_each(|_| slabs.went(size * KIB));
            assert_eq!((slabs.pages, slabs.rest()), (0, 0));
        }
    }

    /// Against pages that are filled first fit, last fit and at random, in units of 64 KiB: never fewer than they take.
    #[test]
    fn never_fewer_pages_than_any_allocator_takes() {
        const UNITS: usize = 32;
        for (most, policy) in
            [1, 3, 5, 16].into_iter().flat_map(|most| [(most, 0), (most, 1), (most, 2)])
        {
            let mut random = 88_172_645_463_325_252 + most as u64;
            let mut next = |below: usize| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                (random >> 20) as usize % below
            };
            let mut pages: Vec<u32> = Vec::new();
            let (mut live, mut slabs) = (Vec::new(), Slabs::default());
            for step in 0..3000 {
                let grows = step / 750 % 2 == 0;
                if next(8) < if grows { 6 } else { 2 } {
                    let units = if most == 5 { 5 } else { 1 + next(most) };
                    slabs.came(units as u64 * 64 * KIB);
                    let of = |at: usize| (u32::MAX >> (UNITS - units)) << at;
                    // At an end of a hole, of a page that is taken.
                    let is_end = |page: u32, at: usize| {
                        let free = |at: usize| at < UNITS && page >> at & 1 == 0;
                        at == 0 || !free(at - 1) || !free(at + units)
                    };
                    let taken = (0..pages.len()).filter(|number| pages[*number] != 0);
                    let places =
                        taken.flat_map(|number| (0..=UNITS - units).map(move |at| (number, at)));
                    let holes: Vec<(usize, usize)> = places
                        .filter(|(number, at)| {
                            pages[*number] & of(*at) == 0 && is_end(pages[*number], *at)
                        })
                        .collect();
                    let place = match policy {
                        0 => holes.first().copied(),
                        1 => holes.last().copied(),
                        _ => holes.get(next(holes.len().max(1))).copied(),
                    };
                    let (number, at) = place.unwrap_or((pages.len(), 0));
                    if number == pages.len() {
                        pages.push(0);
                    }
                    pages[number] |= of(at);
                    live.push((number, of(at), units));
                } else if !live.is_empty() {
                    let (number, of, units) = live.swap_remove(next(live.len()));
                    pages[number] &= !of;
                    slabs.went(units as u64 * 64 * KIB);
                    pages.truncate(
                        pages.iter().rposition(|page| *page != 0).map_or(0, |last| last + 1),
                    );
                }
                let used = pages.iter().filter(|page| **page != 0).count() as u64;
                assert!(used <= slabs.pages, "{most} {policy} {step}: {used} {slabs:?}");
            }
        }
    }

    #[test]
    fn arrays_of_another_context_or_element_share_nothing_and_a_context_takes_its_own() {
        let (pages, mut counted) = (ArrayPages::default(), 0);
        for of in [(1, 4), (1, 4), (1, 16), (2, 4)] {
            let take = |bytes| {
                counted += bytes;
                Ok::<_, ()>(())
            };
            pages.comes((ContextId(of.0), of.1), MIB, take).unwrap();
        }
        assert_eq!((counted, pages.rest()), (6 * MIB, 2 * MIB));
        assert_eq!(pages.ended(ContextId(1)), MIB as i64);
        let of = (ContextId(2), 4);
        let take = |bytes| if bytes > 0 { Err(()) } else { Ok(()) };
        assert!(pages.comes(of, MIB, take).is_ok(), "there is room in the page");
        assert!(pages.comes(of, MIB, take).is_err());
        pages.went(of, MIB, |bytes| assert_eq!(bytes, 0));
        pages.went(of, MIB, |bytes| assert_eq!(bytes, 2 * MIB));
        pages.went(of, MIB, |_| panic!("it is not known"));
        assert_eq!(pages.rest(), 0);
    }
}
