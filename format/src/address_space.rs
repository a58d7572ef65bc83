//! The device address space: reservations, mappings, and ranges that were unmapped and may be mapped
//! again ("asleep").
//!
//! Allocators with a sleep mode (vLLM, torch_memory_saver, TensorRT-LLM) unmap physical memory and later map other
//! memory at the same address. No driver call says so. Recorder and reader derive it by these rules:
//!
//! * A reservation is **whole** if every byte of it is mapped or asleep. A range that is unmapped in a whole
//!   reservation falls asleep: it keeps its owner, the stack that created the first object there. So does a range that has been
//!   asleep before. Any other unmapped range (in an expandable segment of PyTorch, for example) is freed.
//! * A mapping over a sleeping range wakes it: the owner stays the same.
//! * An object is a **placeholder** if a reservation maps more bytes of it than it has (kvcached maps one zero page
//!   wherever it has no memory). A placeholder backs nothing. When it is unmapped, only ranges that had been asleep
//!   before are asleep again.
//! * When a reservation is freed, the sleeping ranges in it end.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{DeviceId, SiteId, StackId};

/// The owner of a range: the stack that allocated it, and its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    pub stack: StackId,
    pub device: DeviceId,
}

/// How a sleeping range was mapped again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Woken {
    pub owner: Owner,
    /// The stack of the call that mapped it; 0 = not known.
    pub by: StackId,
}

/// A range of addresses to which `[offset, offset + size)` of an object is mapped. All in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub address: u64,
    pub size: u64,
    pub offset: u64,
    /// Number of the physical object ([`crate::Space::Vmm`]).
    pub object: u64,
    /// `None`: the owner is the stack that created the object.
    pub woken: Option<Woken>,
}

/// A range of a reservation that was unmapped and may be mapped again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asleep {
    pub address: u64,
    pub size: u64,
    pub owner: Owner,
    /// The earlier mapping. If the same object is mapped there again at the same offset, the range has the state that
    /// it had before the unmap.
    pub was: Option<Mapping>,
}

/// A range of reserved addresses (cuMemAddressReserve), in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    pub address: u64,
    pub size: u64,
    pub site: SiteId,
    pub stack: StackId,
    /// Bytes that are mapped or asleep.
    covered: u64,
}

/// The mappings that an unmap removed. [`AddressSpace::put_back`] undoes the unmap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// The mappings before the unmap.
    pub whole: Vec<Mapping>,
    /// The parts of them that remain mapped.
    pub rest: Vec<Mapping>,
    /// The removed parts, by address: `whole` without `rest`.
    pub cut: Vec<Mapping>,
    /// The removed parts that fell asleep.
    pub slept: Vec<Asleep>,
}

/// The effect of a mapping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Put {
    /// The new mappings, by address: several if the mapping woke ranges.
    pub pieces: Vec<Mapping>,
    /// The ranges that were asleep there.
    pub woke: Vec<Asleep>,
    /// The object has become a placeholder with this mapping: its earlier mappings back nothing any more.
    pub is_placeholder_now: bool,
}

/// A reservation that was freed, with its sleeping ranges. [`AddressSpace::restore`] undoes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Freed {
    pub reservation: Reservation,
    pub asleep: Vec<Asleep>,
}

/// Mappings, reservations and sleeping ranges by address. No two mappings overlap, no two reservations and no two
/// sleeping ranges; no range is both mapped and asleep.
#[derive(Clone, Debug, Default)]
pub struct AddressSpace {
    mappings: BTreeMap<u64, Mapping>,
    reservations: BTreeMap<u64, Reservation>,
    asleep: BTreeMap<u64, Asleep>,
    /// Sleeping bytes by device: the sums over `asleep`.
    asleep_bytes: BTreeMap<DeviceId, u64>,
    /// Whether there has been a sleeping range.
    pub ever_slept: bool,
    /// Mapped bytes, by object and address of the reservation.
    shown: BTreeMap<(u64, u64), u64>,
    placeholders: BTreeSet<u64>,
    /// Whether there has been a reservation.
    pub was_used: bool,
}

/// The end of a range, at most `u64::MAX`.
fn end(address: u64, size: u64) -> u64 {
    address.saturating_add(size)
}

impl Mapping {
    pub fn new(address: u64, size: u64, offset: u64, object: u64) -> Mapping {
        Mapping { address, size, offset, object, woken: None }
    }

    pub fn end(&self) -> u64 {
        end(self.address, self.size)
    }

    /// The part of the mapping inside `[from, to)`, if any.
    fn cut(&self, from: u64, to: u64) -> Option<Mapping> {
        let start = self.address.max(from);
        let end = self.end().min(to);
        (start < end).then(|| Mapping {
            address: start,
            size: end - start,
            offset: self.offset.saturating_add(start - self.address),
            ..*self
        })
    }

    /// Whether both map each address to the same byte of the same object.
    fn shows_the_same(&self, other: &Mapping) -> bool {
        let place = |mapping: &Mapping| mapping.offset.wrapping_sub(mapping.address);
        self.object == other.object && place(self) == place(other)
    }
}

impl Asleep {
    pub fn end(&self) -> u64 {
        end(self.address, self.size)
    }

    fn cut(&self, from: u64, to: u64) -> Option<Asleep> {
        let start = self.address.max(from);
        let end = self.end().min(to);
        let was = self.was.and_then(|was| was.cut(from, to));
        (start < end).then(|| Asleep { address: start, size: end - start, was, ..*self })
    }
}

impl Reservation {
    pub fn end(&self) -> u64 {
        end(self.address, self.size)
    }

    /// Whether every byte is mapped or asleep.
    pub fn is_whole(&self) -> bool {
        self.covered >= self.size
    }
}

/// The start address of the range that holds `address`; `address` if there is none.
macro_rules! first_touching {
    ($map:expr, $address:expr) => {
        match $map.range(..=$address).next_back() {
            Some((start, piece)) if piece.end() > $address => *start,
            _ => $address,
        }
    };
}

impl AddressSpace {
    /// Number of mappings, reservations and sleeping ranges.
    pub fn ranges(&self) -> usize {
        self.mappings.len() + self.reservations.len() + self.asleep.len()
    }

    /// The reservation that contains `address`.
    pub fn reservation_at(&self, address: u64) -> Option<&Reservation> {
        let (_, found) = self.reservations.range(..=address).next_back()?;
        (address < found.end()).then_some(found)
    }

    /// The mapping that contains `address`.
    pub fn at(&self, address: u64) -> Option<Mapping> {
        let (_, mapping) = self.mappings.range(..=address).next_back()?;
        (address < mapping.end()).then_some(*mapping)
    }

    /// All mappings that overlap `[address, address + size)`, by address.
    pub fn touching(&self, address: u64, size: u64) -> impl Iterator<Item = &Mapping> {
        let first = first_touching!(self.mappings, address);
        self.mappings.range(first..end(address, size).max(first)).map(|(_, mapping)| mapping)
    }

    /// All mappings, by address.
    pub fn mappings(&self) -> impl Iterator<Item = &Mapping> {
        self.mappings.values()
    }

    /// All reservations, by address.
    pub fn reservations(&self) -> impl Iterator<Item = &Reservation> {
        self.reservations.values()
    }

    /// All sleeping ranges, by address.
    pub fn asleep(&self) -> impl Iterator<Item = &Asleep> {
        self.asleep.values()
    }

    /// Sleeping bytes of a device.
    pub fn asleep_on(&self, device: DeviceId) -> u64 {
        self.asleep_bytes.get(&device).copied().unwrap_or(0)
    }

    fn keep_asleep(&mut self, piece: Asleep) {
        self.ever_slept = true;
        let bytes = self.asleep_bytes.entry(piece.owner.device).or_default();
        *bytes = bytes.saturating_add(piece.size);
        if let Some(before) = self.asleep.insert(piece.address, piece) {
            self.subtract_asleep(&before);
        }
    }

    fn drop_asleep(&mut self, address: u64) -> Option<Asleep> {
        let piece = self.asleep.remove(&address)?;
        self.subtract_asleep(&piece);
        Some(piece)
    }

    fn subtract_asleep(&mut self, piece: &Asleep) {
        if let Some(bytes) = self.asleep_bytes.get_mut(&piece.owner.device) {
            *bytes = bytes.saturating_sub(piece.size);
        }
    }

    /// The parts of sleeping ranges inside `[address, address + size)`, by address.
    pub fn asleep_in(&self, address: u64, size: u64) -> Vec<Asleep> {
        let to = end(address, size);
        let first = first_touching!(self.asleep, address);
        let touching = self.asleep.range(first..to.max(first));
        touching.filter_map(|(_, piece)| piece.cut(address, to)).collect()
    }

    /// Ranges of reservations that no physical memory backs, as (start, end), by address. Sleeping ranges are included.
    pub fn unbacked(&self) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        for reservation in self.reservations.values() {
            let mut from = reservation.address;
            let touching = self.touching(from, reservation.size);
            let backing = touching.filter(|mapping| !self.is_placeholder(mapping.object));
            let ends = backing.map(|mapping| (mapping.address, mapping.end()));
            for (start, end) in ends.chain([(reservation.end(), reservation.end())]) {
                if from < start {
                    all.push((from, start));
                }
                from = from.max(end);
            }
        }
        all
    }

    /// Whether the mapping has physical memory. False if it maps a placeholder in a reservation.
    pub fn backs(&self, mapping: &Mapping) -> bool {
        !self.is_placeholder(mapping.object) || self.reservation_at(mapping.address).is_none()
    }

    /// Whether the object is a placeholder: it is mapped where the program has no memory, and backs nothing.
    pub fn is_placeholder(&self, object: u64) -> bool {
        self.placeholders.contains(&object)
    }

    /// Forgets an object that was released.
    pub fn forget_object(&mut self, object: u64) {
        self.placeholders.remove(&object);
    }

    /// Adds a reservation. Removes and returns overlapping ones: the driver must have freed them by calls that were not
    /// recorded.
    pub fn reserve(&mut self, address: u64, size: u64, site: SiteId, stack: StackId) -> Vec<Freed> {
        let to = end(address, size);
        let first = first_touching!(self.reservations, address);
        let stale: Vec<u64> =
            self.reservations.range(first..to.max(first)).map(|(start, _)| *start).collect();
        let stale = stale.into_iter().filter_map(|start| self.free(start)).collect();
        // A mapping may be recorded before its reservation.
        let covered = self.touching(address, size).filter_map(|mapping| mapping.cut(address, to));
        let covered: Vec<Mapping> = covered.collect();
        let reservation = Reservation { address, size, site, stack, covered: 0 };
        self.reservations.insert(address, reservation);
        for mapping in &covered {
            self.cover(mapping.address, mapping.size, true);
            self.show(mapping, true);
        }
        self.was_used = true;
        stale
    }

    /// Removes the reservation that begins at `address`, with its sleeping ranges. `None`: none begins there.
    pub fn free(&mut self, address: u64) -> Option<Freed> {
        let reservation = self.reservations.remove(&address)?;
        let (from, to) = (reservation.address, reservation.end());
        let asleep: Vec<Asleep> =
            self.asleep.range(from..to.max(from)).map(|(_, piece)| *piece).collect();
        for piece in &asleep {
            self.drop_asleep(piece.address);
        }
        let shown: Vec<u64> = self.touching(from, reservation.size).map(|m| m.object).collect();
        for object in shown {
            self.shown.remove(&(object, from));
        }
        Some(Freed { reservation, asleep })
    }

    /// Undoes [`AddressSpace::free`].
    pub fn restore(&mut self, freed: &Freed) {
        let Reservation { address, size, site, stack, .. } = freed.reservation;
        let _ = self.reserve(address, size, site, stack);
        for piece in &freed.asleep {
            self.fall_asleep(*piece);
        }
    }

    /// Adds a sleeping range, from a checkpoint or after a refused free. Does nothing if the range overlaps a mapping
    /// or another sleeping range.
    pub fn fall_asleep(&mut self, piece: Asleep) {
        if self.touching(piece.address, piece.size).next().is_some()
            || !self.asleep_in(piece.address, piece.size).is_empty()
        {
            return;
        }
        self.cover(piece.address, piece.size, true);
        self.keep_asleep(piece);
    }

    /// Adds the bytes of a mapping or sleeping range to the covered bytes of its reservation, or subtracts them.
    fn cover(&mut self, address: u64, size: u64, add: bool) {
        let before = self.reservations.range_mut(..=address).next_back();
        if let Some((_, reservation)) = before.filter(|(_, found)| address < found.end()) {
            reservation.covered = match add {
                true => reservation.covered.saturating_add(size),
                false => reservation.covered.saturating_sub(size),
            };
        }
    }

    fn show(&mut self, mapping: &Mapping, add: bool) {
        let Some(reservation) = self.reservation_at(mapping.address).map(|found| found.address)
        else {
            return;
        };
        let key = (mapping.object, reservation);
        if add {
            let shown = self.shown.entry(key).or_default();
            *shown = shown.saturating_add(mapping.size);
        } else if let Some(shown) = self.shown.get_mut(&key) {
            *shown = shown.saturating_sub(mapping.size);
            if *shown == 0 {
                self.shown.remove(&key);
            }
        }
    }

    fn insert(&mut self, mapping: Mapping) {
        self.cover(mapping.address, mapping.size, true);
        self.show(&mapping, true);
        self.mappings.insert(mapping.address, mapping);
    }

    fn remove(&mut self, mapping: &Mapping) {
        if self.mappings.remove(&mapping.address).is_some() {
            self.cover(mapping.address, mapping.size, false);
            self.show(mapping, false);
        }
    }

    /// Maps an object. The caller has removed earlier mappings there. `by`: the stack of the call. `bytes`: size of the
    /// object; 0 = not known.
    pub fn put(&mut self, mapping: Mapping, by: StackId, bytes: u64) -> Put {
        let (from, to) = (mapping.address, mapping.end());
        let mut put = Put::default();
        let mut at = from;
        for asleep in self.asleep_in(from, mapping.size) {
            self.wake(&asleep);
            put.pieces.extend(mapping.cut(at, asleep.address));
            at = asleep.end();
            let Some(piece) = mapping.cut(asleep.address, at) else { continue };
            let woken = match asleep.was {
                Some(was) if was.shows_the_same(&piece) => was.woken,
                _ => Some(Woken { owner: asleep.owner, by }),
            };
            put.pieces.push(Mapping { woken, ..piece });
            put.woke.push(asleep);
        }
        put.pieces.extend(mapping.cut(at, to));
        for piece in &put.pieces {
            self.insert(*piece);
        }
        let shown = self.reservation_at(from).map(|found| (mapping.object, found.address));
        let shown = shown.and_then(|key| self.shown.get(&key)).copied().unwrap_or(0);
        if bytes > 0 && shown > bytes {
            put.is_placeholder_now = self.placeholders.insert(mapping.object);
        }
        put
    }

    /// Removes a part of a sleeping range; the rest stays asleep.
    fn wake(&mut self, part: &Asleep) {
        let first = first_touching!(self.asleep, part.address);
        let Some(whole) = self.drop_asleep(first) else { return };
        self.cover(part.address, part.size, false);
        let rests = [whole.cut(0, part.address), whole.cut(part.end(), u64::MAX)];
        for rest in rests.into_iter().flatten() {
            self.keep_asleep(rest);
        }
    }

    /// Unmaps `[address, address + size)`. The parts of mappings outside of it stay. `maker` returns the owner of an
    /// object: the stack that created it.
    pub fn take(&mut self, address: u64, size: u64, maker: impl Fn(u64) -> Owner) -> Taken {
        let to = end(address, size);
        let mut taken = Taken::default();
        taken.whole.extend(self.touching(address, size));
        // Determined before the first removal, which may be that of a placeholder. A range that was mapped again once
        // may be mapped again once more.
        let is_whole = |mapping: &Mapping| {
            let reservation = self.reservation_at(mapping.address);
            reservation.is_some_and(|one| one.is_whole() || mapping.woken.is_some())
        };
        let whole: Vec<bool> = taken.whole.iter().map(is_whole).collect();
        for (mapping, whole) in taken.whole.iter().zip(whole) {
            self.remove(mapping);
            let rests = [mapping.cut(0, address), mapping.cut(to, u64::MAX)];
            for rest in rests.into_iter().flatten() {
                self.insert(rest);
                taken.rest.push(rest);
            }
            let Some(cut) = mapping.cut(address, to) else { continue };
            taken.cut.push(cut);
            let owner = match cut.woken {
                Some(woken) => Some(woken.owner),
                None if self.is_placeholder(cut.object) => None,
                None => Some(maker(cut.object)),
            };
            if let Some(owner) = owner.filter(|_| whole) {
                let Mapping { address, size, .. } = cut;
                let piece = Asleep { address, size, owner, was: Some(cut) };
                self.cover(address, size, true);
                self.keep_asleep(piece);
                taken.slept.push(piece);
            }
        }
        taken
    }

    /// Undoes [`AddressSpace::take`].
    pub fn put_back(&mut self, taken: &Taken) {
        for piece in &taken.slept {
            if self.asleep.get(&piece.address) == Some(piece) {
                self.wake(piece);
            }
        }
        for mapping in &taken.rest {
            self.remove(mapping);
        }
        for mapping in &taken.whole {
            self.insert(*mapping);
        }
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        *self = AddressSpace::default();
    }
}

#[cfg(test)]
mod tests;
