//! The simplest model of an address space: the state of each of its units. Tests of the recorder and of the
//! reader compare random programs with it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use vramtrace_format::address_space::AddressSpace;

/// One unit of addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unit {
    /// The mapped object, and the index of its unit.
    pub mapped: Option<(u64, u64)>,
    /// The owner of the memory that was unmapped here and mapped again.
    woken: Option<u64>,
    /// The owner of the memory that is unmapped here.
    asleep: Option<u64>,
    /// The last mapping, and its `woken`, while the unit is asleep.
    was: Option<((u64, u64), Option<u64>)>,
}

/// The stack that creates an object has the object's number.
#[derive(Clone, Debug)]
pub struct AddressModel {
    pub units: Vec<Unit>,
    pub reservations: Vec<Range<usize>>,
    /// Units of each object.
    sizes: BTreeMap<u64, u64>,
    placeholders: BTreeSet<u64>,
    /// The size of one unit.
    bytes: u64,
}

impl AddressModel {
    pub fn new(units: usize, bytes: u64) -> AddressModel {
        AddressModel {
            units: vec![Unit::default(); units],
            reservations: Vec::new(),
            sizes: BTreeMap::new(),
            placeholders: BTreeSet::new(),
            bytes,
        }
    }

    pub fn address(&self, unit: usize) -> u64 {
        // Nothing lies at 0.
        (unit as u64 + 1024) * self.bytes
    }

    pub fn created(&mut self, object: u64, units: u64) {
        self.sizes.insert(object, units);
    }

    pub fn ended(&mut self, object: u64) {
        self.placeholders.remove(&object);
        self.sizes.remove(&object);
    }

    pub fn shows(&self, object: u64) -> bool {
        self.units.iter().any(|unit| unit.mapped.is_some_and(|(shown, _)| shown == object))
    }

    pub fn is_mapped(&self, range: Range<usize>) -> bool {
        self.units[range].iter().any(|unit| unit.mapped.is_some())
    }

    pub fn reservation(&self, unit: usize) -> Option<Range<usize>> {
        self.reservations.iter().find(|range| range.contains(&unit)).cloned()
    }

    pub fn reserve(&mut self, range: Range<usize>) {
        assert!(range.clone().all(|unit| self.reservation(unit).is_none()));
        self.reservations.push(range);
    }

    pub fn free(&mut self, range: &Range<usize>) {
        self.reservations.retain(|known| known != range);
        for unit in &mut self.units[range.clone()] {
            (unit.asleep, unit.was) = (None, None);
        }
    }

    pub fn map(&mut self, at: usize, object: u64, offset: u64, units: u64) {
        self.unmap(at..at + units as usize);
        for n in 0..units {
            let unit = &mut self.units[at + n as usize];
            let shown = (object, offset + n);
            let was = unit.was.filter(|(was, _)| *was == shown);
            let woken = match (unit.asleep, was) {
                (Some(_), Some((_, woken))) => woken,
                (owner, _) => owner,
            };
            *unit = Unit { mapped: Some(shown), woken, asleep: None, was: None };
        }
        if let Some(reservation) = self.reservation(at) {
            let shown = |unit: &&Unit| unit.mapped.is_some_and(|(shown, _)| shown == object);
            let shown = self.units[reservation].iter().filter(shown).count() as u64;
            if shown > self.sizes[&object] {
                self.placeholders.insert(object);
            }
        }
    }

    pub fn unmap(&mut self, range: Range<usize>) {
        let whole: Vec<bool> = range.clone().map(|unit| self.is_whole(unit)).collect();
        for (at, whole) in range.zip(whole) {
            let unit = &mut self.units[at];
            let Some(shown) = unit.mapped.take() else { continue };
            let woken = unit.woken.take();
            let maker = (!self.placeholders.contains(&shown.0)).then_some(shown.0);
            let again = woken.is_some() && self.reservations.iter().any(|r| r.contains(&at));
            if let Some(owner) = woken.or(maker).filter(|_| whole || again) {
                (unit.asleep, unit.was) = (Some(owner), Some((shown, woken)));
            }
        }
    }

    /// Whether every unit of the reservation is mapped or asleep.
    fn is_whole(&self, unit: usize) -> bool {
        let covered = |unit: &Unit| unit.mapped.is_some() || unit.asleep.is_some();
        self.reservation(unit).is_some_and(|range| self.units[range].iter().all(covered))
    }

    /// Whether there is memory at this unit.
    pub fn is_backed(&self, unit: usize) -> bool {
        let mapped = self.units[unit].mapped;
        mapped.is_some_and(|(object, _)| !self.placeholders.contains(&object))
    }

    /// Panics if the address space differs from the model in any unit.
    #[track_caller]
    pub fn check(&self, space: &AddressSpace, what: &str) {
        for (at, unit) in self.units.iter().enumerate() {
            let address = self.address(at);
            let mapping = space.at(address);
            let shown = mapping.map(|mapping| {
                let offset = mapping.offset + (address - mapping.address);
                (mapping.object, offset / self.bytes)
            });
            assert_eq!(shown, unit.mapped, "{what}: unit {at}");
            let woken = mapping.and_then(|mapping| mapping.woken);
            let woken = woken.map(|woken| u64::from(woken.owner.stack.0));
            assert_eq!(woken, unit.woken, "{what}: owner of the memory mapped again in unit {at}");
            let asleep = space.asleep_in(address, self.bytes);
            let owners: Vec<u64> = asleep.iter().map(|p| u64::from(p.owner.stack.0)).collect();
            assert_eq!(
                owners,
                Vec::from_iter(unit.asleep),
                "{what}: owner of the unmapped memory in unit {at}"
            );
            let backed = mapping.is_some_and(|mapping| !space.is_placeholder(mapping.object));
            assert_eq!(backed, self.is_backed(at), "{what}: memory of unit {at}");
        }
        let mut reserved: Vec<(u64, u64)> = self
            .reservations
            .iter()
            .map(|range| (self.address(range.start), range.len() as u64 * self.bytes))
            .collect();
        reserved.sort_unstable();
        let known: Vec<(u64, u64)> =
            space.reservations().map(|known| (known.address, known.size)).collect();
        assert_eq!(known, reserved, "{what}: reservations");
    }
}
