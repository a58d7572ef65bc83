//! The way of every request and every free through cap, driver, ledger and file.

use crate::cap::{Refusal, Reservation};
use crate::contexts::Place;
use crate::entry::Api;
use crate::entry::cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY, CUresult};
use crate::ledger::{Entry, Removed};
use crate::postmortem;
use crate::process::Process;
use crate::recorder::SiteKey;
use crate::say;
use vramtrace_format::physical::{PAGE, Physical, physical};
use vramtrace_format::size::Bytes;
use vramtrace_format::{DeviceId, Drift, Event, Kind, PoolId, Refused, RefusedBy, SiteId, Space};

/// What a call asks for.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub api: Api,
    pub kind: Kind,
    /// `kind.space()`, but for pools of other memory than a device's.
    pub space: Space,
    pub place: Place,
    /// As near to the ledger's size as can be known before the call; 0 where the driver can only
    /// refuse.
    pub size: u64,
}

impl Request {
    pub fn new(api: Api, kind: Kind, place: Place, size: u64) -> Request {
        Request { api, kind, space: kind.space(), place, size }
    }

    /// The most physical bytes that it can take; 0 where none count.
    fn upper_bound(&self) -> u64 {
        match physical(self.kind, self.size) {
            Physical::Own(bytes) => bytes,
            Physical::Shared(_) => PAGE,
            Physical::Reserved | Physical::None => 0,
        }
    }

    pub fn site(&self, p: &'static Process) -> SiteId {
        site(p, self.api, Some(self.kind), self.place, PoolId(0), 0)
    }
}

pub fn site(
    p: &'static Process,
    api: Api,
    kind: Option<Kind>,
    place: Place,
    pool: PoolId,
    stream: u64,
) -> SiteId {
    let Place { context, device } = place;
    p.recorder.site(SiteKey { api: api as u16, kind, device, context, pool, stream })
}

/// Why a request got no memory.
#[derive(Clone, Copy, Debug)]
pub enum Why {
    Driver(CUresult),
    Cap(Refusal),
    /// The cap only warns: the request goes to the driver all the same.
    Warned(Refusal),
    BadCap,
}

/// Counts and records a request that got no memory; returns what the program gets.
#[cold]
pub fn refuse(p: &'static Process, request: &Request, why: Why) -> CUresult {
    let site = request.site(p);
    let Place { device, .. } = request.place;
    match request.kind.is_host() {
        // What the device has left says nothing of it.
        true => record_refusal(p, device, site, request.size, why, |_| 0).result,
        false => refuse_at(p, device, site, request.size, why),
    }
}

#[cold]
pub(super) fn refuse_at(
    p: &'static Process,
    device: DeviceId,
    site: SiteId,
    size: u64,
    why: Why,
) -> CUresult {
    let look = |refused: &Refused| match is_of_memory(refused) {
        true => p.post_mortems.look(p, device, refused.by).unwrap_or(0),
        false => 0,
    };
    let refused = record_refusal(p, device, site, size, why, look);
    if is_of_memory(&refused) {
        p.post_mortems.refused(p, device, &refused);
    }
    refused.result
}

/// The device's memory is what the program did not get.
fn is_of_memory(refused: &Refused) -> bool {
    match refused.by {
        RefusedBy::Driver => refused.result == CUDA_ERROR_OUT_OF_MEMORY,
        RefusedBy::Cap | RefusedBy::Group => true,
        RefusedBy::BadCap | RefusedBy::Warned => false,
    }
}

/// `driver_free` tells what the driver has left of the device; 0: nobody knows.
fn record_refusal(
    p: &'static Process,
    device: DeviceId,
    site: SiteId,
    size: u64,
    why: Why,
    driver_free: impl FnOnce(&Refused) -> u64,
) -> Refused {
    let counted = p.cap.counted(device, p.ledger.live(device));
    let limit = p.cap.limit(device).unwrap_or(0);
    let (result, by, counted, limit) = match why {
        Why::Driver(result) => (result, RefusedBy::Driver, counted, limit),
        Why::Cap(refusal) => {
            let by = if refusal.of_group { RefusedBy::Group } else { RefusedBy::Cap };
            (CUDA_ERROR_OUT_OF_MEMORY, by, refusal.counted, refusal.limit)
        }
        Why::Warned(refusal) => (0, RefusedBy::Warned, refusal.counted, refusal.limit),
        Why::BadCap => (CUDA_ERROR_INVALID_VALUE, RefusedBy::BadCap, counted, 0),
    };
    let stack = crate::capture::stack(p);
    let cache = postmortem::cache_of(p, device);
    let mut refused =
        Refused { site, stack, size, result, by, counted, limit, driver_free: 0, cache };
    refused.driver_free = driver_free(&refused);
    let record = || p.recorder.record(&Event::Refused(refused));
    if by == RefusedBy::Driver && result != CUDA_ERROR_OUT_OF_MEMORY {
        // A failure, not a refusal of memory: told, not counted.
        record();
    } else {
        p.ledger.refused(device, by, record);
    }
    refused
}

/// Counts and records a request that a cap which only warns would have refused.
#[cold]
pub(super) fn warn(
    p: &'static Process,
    device: DeviceId,
    site: SiteId,
    size: u64,
    refusal: Refusal,
) {
    refuse_at(p, device, site, size, Why::Warned(refusal));
    if p.cap.warns_first() {
        let Refusal { counted, limit, .. } = refusal;
        say::line(format_args!(
            "cuda:{}: {} more would pass the cap of {} ({} counted); the cap only warns, so they \
             are given; said once, the trace has all",
            device.0,
            Bytes(size),
            Bytes(limit),
            Bytes(counted)
        ));
    }
}

/// Reads afresh what the driver may have given back or taken on its own: before a refusal, and now
/// and then under a cap. Pools and graphs are read on both sides of NVML's figure: one that shrank
/// in between would make hidden bytes look fewer than they are.
#[cold]
pub fn look_again(p: &'static Process, device: DeviceId) {
    let reserves = || look_at_reserves(p, device);
    match p.devices.known(device) {
        Some(device) => p.observe.read(p, device, reserves, None),
        None => reserves(),
    }
}

/// Reads what pools and graphs reserve.
pub(super) fn look_at_reserves(p: &'static Process, device: DeviceId) {
    super::pool::look_at_all(p, device);
    super::graph::look(p, device);
}

/// As `look_again`, and at who is left of the group.
#[cold]
pub fn look_before_refusal(p: &'static Process, device: DeviceId) {
    p.cap.take_out_dead();
    match p.observe.is_fresh(p, device) {
        true => look_at_reserves(p, device),
        false => look_again(p, device),
    }
}

/// Before each call: see [`crate::observe::Observer::due`]. Not while anything is captured: the
/// driver is asked no more than it must be then.
#[inline]
pub fn look_if_due(p: &'static Process) {
    super::control::obey(p);
    if let Some(device) = p.observe.due(p)
        && !p.captures.any()
    {
        look_again(p, device.id);
    }
}

/// The program's call for memory that is its own (not a pool's or a graph's).
///
/// `real` asks the driver, which writes straight to the program's outputs. `taken` reads them:
/// the key, and the size now known. `undo` is for the rare case in which the real size, known
/// only now, does not fit under the cap: it frees the memory and restores the outputs.
#[inline]
pub fn take(
    p: &'static Process,
    request: &Request,
    real: impl FnOnce() -> CUresult,
    taken: impl FnOnce() -> (u64, u64),
    undo: impl FnOnce(u64),
) -> CUresult {
    if p.cap.is_bad() {
        return refuse(p, request, Why::BadCap);
    }
    let mut reservation = match reserve(p, request) {
        Ok(reservation) => reservation,
        Err(refusal) if p.cap.only_warns() => {
            warn(p, request.place.device, request.site(p), request.size, refusal);
            p.cap.reserve_anyway(request.place.device, request.kind, request.upper_bound())
        }
        Err(refusal) => return refuse(p, request, Why::Cap(refusal)),
    };
    let result = real();
    if result != 0 {
        drop(reservation);
        return refuse(p, request, Why::Driver(result));
    }
    reservation.taken();
    let (key, size) = taken();
    let entry = Entry {
        space: request.space,
        context: request.place.context,
        site: request.site(p),
        stack: crate::capture::stack(p),
        time_ns: p.recorder.now_ns(),
        ..Entry::new(request.kind, key, size, request.place.device)
    };
    let growth = p.ledger.insert(&p.recorder, &entry);
    if let Err(refusal) = reservation.commit(growth) {
        let taken = p.ledger.remove(&p.recorder, entry.space, key);
        if taken.as_ref().is_some_and(Removed::is_in_checkpoint) {
            p.recorder.record(&Event::Free { key, space: entry.space, site: SiteId(0) });
        }
        undo(key);
        // Its bytes were never counted: none are given back.
        let _ = taken.map(|removed| p.ledger.left(&removed));
        return refuse(p, request, Why::Cap(refusal));
    }
    p.recorder.record_at(entry.time_ns, &Event::Alloc(entry.alloc()));
    result
}

#[inline]
fn reserve(p: &'static Process, request: &Request) -> Result<Reservation<'static>, Refusal> {
    // A request for nothing is the driver's to refuse.
    let bytes = if request.size == 0 { 0 } else { request.upper_bound() };
    if bytes == 0 {
        return Ok(Reservation::none());
    }
    let device = request.place.device;
    match request.kind {
        Kind::Managed => p.cap.reserve_managed(device, bytes, || look_before_refusal(p, device)),
        _ => p.cap.reserve(device, bytes, || look_before_refusal(p, device)),
    }
}

/// The program's free, by whatever call. It always reaches the driver.
#[inline]
pub fn give_back(
    p: &'static Process,
    api: Api,
    space: Space,
    key: u64,
    stream: u64,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    // Looked at where it is: it is large, and a copy of what was just stored makes the processor
    // wait.
    let taken = p.ledger.remove(&p.recorder, space, key);
    let Some(removed) = &taken else {
        let result = real();
        if result == 0 && key != 0 {
            p.ledger.drift(&p.recorder, Drift::UnknownFree, key);
        }
        return result;
    };
    let site = freeing_site(p, api, &removed.entry, stream);
    let now = p.recorder.now_ns();
    p.recorder.record_at(now, &Event::Free { key, space, site });
    let result = real();
    if result == 0 {
        settle(p, removed, now);
    } else {
        let entry = &removed.entry;
        p.cap.grow(entry.device, p.ledger.restore(&p.recorder, removed));
        p.recorder.record(&Event::FreeFailed { key, space, site, result });
    }
    result
}

/// The driver has freed it: its bytes leave the count.
#[inline]
pub(super) fn settle(p: &'static Process, removed: &Removed, now: u64) {
    let entry = &removed.entry;
    match entry.kind {
        Kind::Pool => super::ordered::block_freed(p, entry, now),
        kind => {
            let bytes = p.ledger.left(removed);
            if bytes != 0 {
                p.cap.went(entry.device, kind, bytes);
            }
        }
    }
}

/// 0 for the natural call on the allocation's own stream.
#[inline]
pub(super) fn freeing_site(p: &'static Process, api: Api, entry: &Entry, stream: u64) -> SiteId {
    let natural = match entry.kind {
        Kind::Device | Kind::Pitched | Kind::Managed => {
            matches!(api, Api::cuMemFree_v2 | Api::cuMemFree)
        }
        Kind::Pool => {
            stream == entry.stream && matches!(api, Api::cuMemFreeAsync | Api::cuMemFreeAsync_ptsz)
        }
        Kind::Array => api == Api::cuArrayDestroy,
        Kind::Mipmapped => api == Api::cuMipmappedArrayDestroy,
        Kind::HostPinned => matches!(api, Api::cuMemFreeHost | Api::cuMemRelease),
        Kind::HostRegistered => api == Api::cuMemHostUnregister,
        Kind::Vmm => api == Api::cuMemRelease,
        Kind::Imported => api == Api::cuIpcCloseMemHandle,
        Kind::Graph | Kind::Block => false,
    };
    if natural {
        return SiteId(0);
    }
    let place = Place { context: entry.context, device: entry.device };
    site(p, api, Some(entry.kind), place, entry.pool, stream)
}
