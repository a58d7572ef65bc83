//! Virtual memory management: physical objects that live while a handle or a mapping refers to
//! them, reserved addresses, mappings.

use crate::abi::*;
use crate::aperture::{self, HOST, RESERVABLE};
use crate::device;
use crate::driver::driver;
use crate::error::{Done, Error};
use crate::pool::memory_of_location;
use crate::ranges::Ranges;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// What is known about a pointer.
pub(crate) struct Known {
    pub start: Pointer,
    pub size: u64,
    pub device: usize,
}

/// Physical memory, or a multicast object.
pub(crate) struct Object {
    pub size: u64,
    pub prop: AllocationProp,
    /// A device, or the host.
    pub place: usize,
    /// Where its bytes are: a place in the aperture; 0 for multicast.
    pub backing: Pointer,
    /// Bytes that the device is charged with: 0 for imported and host memory.
    charged: u64,
    /// References by handles.
    handles: u32,
    /// References by mappings and multicast bindings.
    mappings: u32,
    /// A file of its own, where it can be exported.
    pub fd: Option<i32>,
    pub multicast: Option<MulticastProp>,
    bound: BTreeMap<u64, (u64, u64)>,
}

impl Object {
    pub(crate) fn new(size: u64, prop: AllocationProp, place: usize, backing: Pointer) -> Object {
        Object {
            size,
            prop,
            place,
            backing,
            charged: 0,
            handles: 1,
            mappings: 0,
            fd: None,
            multicast: None,
            bound: BTreeMap::new(),
        }
    }
}

struct Mapping {
    size: u64,
    object: u64,
    access: i32,
}

pub(crate) struct Vmm {
    free: Option<Ranges>,
    reservations: BTreeMap<Pointer, u64>,
    mappings: BTreeMap<Pointer, Mapping>,
    /// Keyed by handle; freed numbers are used again, as the real driver does.
    pub objects: BTreeMap<u64, Object>,
}

static VMM: Mutex<Vmm> = Mutex::new(Vmm {
    free: None,
    reservations: BTreeMap::new(),
    mappings: BTreeMap::new(),
    objects: BTreeMap::new(),
});

const FIRST_HANDLE: u64 = 0x10_0000;

pub(crate) fn vmm() -> MutexGuard<'static, Vmm> {
    VMM.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Vmm {
    pub(crate) fn add(&mut self, object: Object) -> u64 {
        let mut handle = FIRST_HANDLE;
        for &used in self.objects.keys() {
            if used != handle {
                break;
            }
            handle += 0x10;
        }
        self.objects.insert(handle, object);
        handle
    }

    /// Only objects that still have a handle can be named.
    pub(crate) fn named(&mut self, handle: u64) -> Done<&mut Object> {
        self.objects
            .get_mut(&handle)
            .filter(|object| object.handles > 0)
            .ok_or(Error::INVALID_VALUE)
    }

    fn drop_if_unused(&mut self, handle: u64) {
        let Some(object) = self.objects.get(&handle) else { return };
        if object.handles > 0 || object.mappings > 0 {
            return;
        }
        let Some(object) = self.objects.remove(&handle) else { return };
        for (member, _) in object.bound.values() {
            self.unmap_reference(*member);
        }
        if object.backing != 0 {
            let memory = driver().memory(object.place);
            if let Some(fd) = object.fd {
                memory.aperture.restore(object.backing, object.size);
                crate::system::close(fd);
            }
            memory.lock().give_pages(object.backing, object.size);
            memory.release(object.charged, object.charged);
        }
    }

    fn unmap_reference(&mut self, handle: u64) {
        if let Some(object) = self.objects.get_mut(&handle) {
            object.mappings -= 1;
            self.drop_if_unused(handle);
        }
    }

    /// The mapping that holds an address.
    fn mapping(&self, address: Pointer) -> Done<(Pointer, &Mapping)> {
        let (&start, mapping) =
            self.mappings.range(..=address).next_back().ok_or(Error::INVALID_VALUE)?;
        if address - start < mapping.size {
            Ok((start, mapping))
        } else {
            Err(Error::INVALID_VALUE)
        }
    }

    /// The reservation that holds all of a range.
    fn reserved(&self, address: Pointer, size: u64) -> bool {
        self.reservations.range(..=address).next_back().is_some_and(|(&start, &length)| {
            address.checked_add(size).is_some_and(|end| end <= start + length)
        })
    }

    fn overlaps(&self, address: Pointer, size: u64) -> bool {
        self.mappings
            .range(..address + size)
            .next_back()
            .is_some_and(|(&start, mapping)| start + mapping.size > address)
    }
}

fn check_prop(prop: In<AllocationProp>) -> Done<AllocationProp> {
    let prop = prop.get()?;
    // Pinned memory, no handle type or the POSIX one.
    if prop.kind != 1 || prop.handle_types & !0xf != 0 {
        return Err(Error::INVALID_VALUE);
    }
    if prop.handle_types & !1 != 0 {
        return Err(Error::NOT_SUPPORTED);
    }
    Ok(prop)
}

pub(crate) fn create(out: Out<u64>, size: usize, prop: In<AllocationProp>, flags: u64) -> Done {
    let prop = check_prop(prop)?;
    let size = size as u64;
    if out.is_null() || flags != 0 || size == 0 || !size.is_multiple_of(PAGE) {
        return Err(Error::INVALID_VALUE);
    }
    let memory = memory_of_location(prop.location)?;
    memory.charge(size, size)?;
    let pages = memory.lock().take_pages(size, PAGE);
    let backing = pages.inspect_err(|_| memory.release(size, size))?;
    let mut object = Object::new(size, prop, memory.index, backing);
    object.charged = if memory.index == HOST { 0 } else { size };
    if prop.handle_types & 1 != 0 {
        object.fd = crate::shared_file::own_file(&memory.aperture, backing, size, &prop);
    }
    // Mapped memory can be written to directly.
    memory.aperture.mark_dirty(backing, size);
    out.put(vmm().add(object))
}

pub(crate) fn release(handle: u64) -> Done {
    let mut vmm = vmm();
    vmm.named(handle)?.handles -= 1;
    vmm.drop_if_unused(handle);
    Ok(())
}

pub(crate) fn retain(out: Out<u64>, address: Handle) -> Done {
    out.check()?;
    let address = address as Pointer;
    let mut vmm = vmm();
    let handle = vmm.mapping(address)?.1.object;
    vmm.objects.get_mut(&handle).ok_or(Error::INVALID_VALUE)?.handles += 1;
    out.put(handle)
}

pub(crate) fn address_reserve(
    out: Out<Pointer>,
    size: usize,
    align: usize,
    wanted: Pointer,
    _flags: u64,
) -> Done {
    let (size, align) = (size as u64, (align as u64).max(PAGE));
    if out.is_null() || size == 0 || !size.is_multiple_of(PAGE) || !align.is_power_of_two() {
        return Err(Error::INVALID_VALUE);
    }
    let mut vmm = vmm();
    let free = vmm.free.get_or_insert_with(|| {
        let mut all = Ranges::new(0);
        all.give(RESERVABLE.0, RESERVABLE.1);
        all
    });
    // A wish, which the driver may ignore.
    let wish = wanted.is_multiple_of(align) && wanted != 0;
    let address = if wish && free.take_at(wanted, size) {
        wanted
    } else {
        free.take(size, align).ok_or(Error::OUT_OF_MEMORY)?
    };
    if !aperture::reserve_at(address, size, false) {
        free.give(address, size);
        return Err(Error::OUT_OF_MEMORY);
    }
    vmm.reservations.insert(address, size);
    out.put(address)
}

pub(crate) fn address_free(address: Pointer, size: usize) -> Done {
    let mut vmm = vmm();
    let size = size as u64;
    if vmm.reservations.get(&address) != Some(&size) || vmm.overlaps(address, size) {
        return Err(Error::INVALID_VALUE);
    }
    vmm.reservations.remove(&address);
    aperture::unreserve(address, size);
    if let Some(free) = &mut vmm.free {
        free.give(address, size);
    }
    Ok(())
}

pub(crate) fn map(address: Pointer, size: usize, offset: usize, handle: u64, flags: u64) -> Done {
    let (size, offset) = (size as u64, offset as u64);
    let mut vmm = vmm();
    let (object_size, backing) = {
        let object = vmm.named(handle)?;
        (object.size, object.backing)
    };
    let fits = offset.checked_add(size).is_some_and(|end| end <= object_size);
    let aligned = [address, size, offset].iter().all(|number| number.is_multiple_of(PAGE));
    if flags != 0 || size == 0 || !fits || !aligned || !vmm.reserved(address, size) {
        return Err(Error::INVALID_VALUE);
    }
    if vmm.overlaps(address, size) {
        return Err(Error::INVALID_VALUE);
    }
    // A multicast object has no bytes of its own: what is stored through it is kept nowhere.
    if backing != 0 && !aperture::map_again(backing + offset, size, address) {
        return Err(Error::MAP_FAILED);
    }
    vmm.named(handle)?.mappings += 1;
    vmm.mappings.insert(address, Mapping { size, object: handle, access: 0 });
    Ok(())
}

pub(crate) fn unmap(address: Pointer, size: usize) -> Done {
    let mut vmm = vmm();
    let end = address.checked_add(size as u64).ok_or(Error::INVALID_VALUE)?;
    let inside: Vec<(Pointer, u64, u64)> = vmm
        .mappings
        .range(address..end)
        .map(|(&start, mapping)| (start, mapping.size, mapping.object))
        .collect();
    // Several whole mappings, with or without gaps between them, or none; but no part of one.
    let parts = inside.iter().any(|&(start, size, _)| start + size > end)
        || vmm.mapping(address).is_ok_and(|(start, _)| start < address);
    if parts || !vmm.reserved(address, size as u64) {
        return Err(Error::INVALID_VALUE);
    }
    for (start, size, object) in inside {
        vmm.mappings.remove(&start);
        aperture::reserve_at(start, size, true);
        vmm.unmap_reference(object);
    }
    Ok(())
}

pub(crate) fn set_access(
    address: Pointer,
    size: usize,
    list: In<AccessDesc>,
    count: usize,
) -> Done {
    if list.is_null() || count == 0 || size == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let list = list.list(count)?;
    for desc in &list {
        memory_of_location(desc.location)?;
        if !matches!(desc.flags, 0 | 1 | 3) {
            return Err(Error::INVALID_VALUE);
        }
    }
    let end = address.checked_add(size as u64).ok_or(Error::INVALID_VALUE)?;
    let mut vmm = vmm();
    // Every byte of the range must be mapped.
    let mut at = address;
    while at < end {
        let (start, mapping) = vmm.mapping(at)?;
        at = start + mapping.size;
    }
    let access = list.iter().map(|desc| desc.flags).max().unwrap_or(0);
    for (&start, mapping) in vmm.mappings.range_mut(..end).rev() {
        if start + mapping.size <= address {
            break;
        }
        mapping.access = access;
    }
    Ok(())
}

pub(crate) fn granularity(out: Out<usize>, prop: In<AllocationProp>, option: i32) -> Done {
    let prop = check_prop(prop)?;
    memory_of_location(prop.location)?;
    if out.is_null() || !matches!(option, 0 | 1) {
        return Err(Error::INVALID_VALUE);
    }
    out.put(PAGE as usize)
}

pub(crate) fn properties(out: Out<AllocationProp>, handle: u64) -> Done {
    out.check()?;
    let prop = vmm().named(handle)?.prop;
    out.put(prop)
}

pub(crate) fn find_mapping(address: Pointer) -> Option<Known> {
    let vmm = vmm();
    let (start, mapping) = vmm.mapping(address).ok()?;
    let device = vmm.objects.get(&mapping.object)?.place;
    Some(Known { start, size: mapping.size, device })
}

/// Is every byte of a range mapped, and may the device use it?
pub(crate) fn is_usable(address: Pointer, size: u64) -> bool {
    let vmm = vmm();
    let Some(end) = address.checked_add(size) else { return false };
    let mut at = address;
    while at < end {
        let Ok((start, mapping)) = vmm.mapping(at) else { return false };
        let is_multicast = vmm.objects.get(&mapping.object).is_none_or(|o| o.backing == 0);
        if mapping.access == 0 || is_multicast {
            return false;
        }
        at = start + mapping.size;
    }
    true
}

/// Does an address lie where reservations are made?
pub(crate) fn is_reservable(address: Pointer) -> bool {
    address >= RESERVABLE.0 && address - RESERVABLE.0 < RESERVABLE.1
}

// Multicast objects: handles and references, without the switch that multiplies stores.

pub(crate) fn multicast_create(out: Out<u64>, prop: In<MulticastProp>) -> Done {
    out.check()?;
    let prop = prop.get()?;
    let size = prop.size as u64;
    if prop.flags != 0 || prop.devices == 0 || size == 0 || !size.is_multiple_of(PAGE) {
        return Err(Error::INVALID_VALUE);
    }
    let none = AllocationProp {
        kind: 1,
        handle_types: prop.handle_types as i32,
        location: Location::default(),
        win32: 0,
        flags: [0; 8],
    };
    let mut object = Object::new(size, none, HOST, 0);
    object.multicast = Some(prop);
    out.put(vmm().add(object))
}

pub(crate) fn multicast_add_device(handle: u64, ordinal: i32) -> Done {
    device::by_ordinal(ordinal)?;
    let mut vmm = vmm();
    vmm.named(handle)?.multicast.map(|_| ()).ok_or(Error::INVALID_VALUE)
}

pub(crate) fn multicast_bind(
    handle: u64,
    at: usize,
    member: u64,
    offset: usize,
    size: usize,
    flags: u64,
) -> Done {
    let mut vmm = vmm();
    let whole = vmm.named(handle)?;
    let place = at as u64;
    let fits = place.checked_add(size as u64).is_some_and(|end| end <= whole.size);
    if whole.multicast.is_none() || flags != 0 || size == 0 || !fits {
        return Err(Error::INVALID_VALUE);
    }
    if whole.bound.contains_key(&place) {
        return Err(Error::INVALID_VALUE);
    }
    let part = vmm.named(member)?;
    let inside = (offset as u64).checked_add(size as u64).is_some_and(|end| end <= part.size);
    if part.multicast.is_some() || !inside {
        return Err(Error::INVALID_VALUE);
    }
    part.mappings += 1;
    vmm.named(handle)?.bound.insert(place, (member, size as u64));
    Ok(())
}

pub(crate) fn multicast_unbind(handle: u64, ordinal: i32, at: usize, size: usize) -> Done {
    device::by_ordinal(ordinal)?;
    let mut vmm = vmm();
    let whole = vmm.named(handle)?;
    match whole.bound.get(&(at as u64)) {
        Some(&(member, bytes)) if bytes == size as u64 => {
            whole.bound.remove(&(at as u64));
            vmm.unmap_reference(member);
            Ok(())
        }
        _ => Err(Error::INVALID_VALUE),
    }
}
