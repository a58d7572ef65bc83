//! The steps of every allocation and every free: cap, driver, ledger, trace file.

use crate::driver::api::Api;
use crate::driver::cuda::CUresult;
use crate::hooks::call::after_call::stop_without_host_memory;
use crate::hooks::call::request::{
    Request, Why, ask_again, refuse, refuse_unrecordable, site, site_at,
};
use crate::hooks::call::{Call, Row};
use crate::hooks::process::pool_reserves;
use crate::hooks::process::stacks::stack;
use crate::hooks::process::state::Process;
use crate::model::cap::{Refusal, Reservation};
use crate::model::contexts::Target;
use crate::model::ledger::{Entry, Ledger, Removed, Sink};
use crate::model::pools::Pool;
use crate::runtime::hash_table::{CROWDED, NoMemory};
use crate::runtime::thread_slot;
use std::sync::atomic::Ordering::Relaxed;
use vramtrace_format::{Drift, Event, Kind, PoolId, SiteId, Space};

/// After the driver's call: the time and the stack of what it gave.
#[inline(always)]
pub(in crate::hooks) fn came(p: &'static Process, entry: &mut Entry) {
    entry.time_ns = match p.trace_writer.is_silent() && p.cap.is_set() {
        false => p.clock.now_ns(),
        // Nothing is recorded: the time at the call's begin, which was read for the cap, will do.
        true => thread_slot::last_ns(),
    };
    entry.stack = stack(p);
}

/// Records what the ledger has.
#[inline(always)]
pub(in crate::hooks) fn record(p: &'static Process, entry: &Entry) {
    p.trace_writer.record_entry(entry);
    if let Some(sampling) = &p.block_sampling
        && entry.space == Space::Device
    {
        sampling.memory_came(entry.device, entry.key, entry.size);
    }
}

/// Makes an allocation that is neither a block of a pool (`families/ordered.rs`) nor a node of a graph: promise, driver, ledger,
/// trace file.
///
/// The driver writes directly to the program's outputs. `taken` reads the ledger
/// key and the real size from them. `undo` frees the memory and restores the outputs; it is called if
/// the real size, known only after the call, does not fit under the cap.
#[inline]
pub fn allocate(
    call: Call<impl Row>,
    request: &Request,
    taken: impl FnOnce() -> (u64, u64),
    undo: impl FnOnce(u64),
) -> CUresult {
    let p = call.p;
    if p.cap.is_bad() {
        return refuse(p, request, Why::BadCap);
    }
    if CROWDED.load(Relaxed)
        && let Some(refused) = refuse_without_room(p, request)
    {
        return refused;
    }
    // Made before the driver's call, where it stays: what would be kept for it across the call is stored once.
    let mut entry = Entry {
        space: request.space,
        context: request.target.context,
        stream: request.element,
        ..Entry::new(request.kind, 0, request.size, request.target.device)
    };
    // Below by a copy of the request: what has its address taken is kept in memory.
    let mut reservation = match promise(p, request) {
        Ok(reservation) => reservation,
        Err(_) => match promise_again(p, *request) {
            Ok(reservation) => reservation,
            Err(refused) => return refused,
        },
    };
    // A thread that is cancelled in the driver does not say whether the driver has given the memory.
    reservation.taken();
    let result = call.forward();
    if result != 0 {
        reservation.withdrawn();
        return refuse(p, &{ *request }, Why::Driver(result));
    }
    (entry.key, entry.size) = taken();
    entry.site = request.site(p);
    came(p, &mut entry);
    let undo = || undo(entry.key);
    let Ok(growth) = p.ledger.insert_or_not(&p.trace_writer, &entry) else {
        return not_entered(p, *request, undo, reservation);
    };
    if let Err(refusal) = reservation.commit(growth) {
        undo_allocation(&p.ledger, &p.trace_writer, &entry, growth, undo, reservation);
        return refuse(p, &{ *request }, Why::Cap(refusal));
    }
    record(p, &entry);
    0
}

/// The cap refuses. `Err`: the result for the program.
#[cold]
fn promise_again(p: &'static Process, request: Request) -> Result<Reservation<'static>, CUresult> {
    let (device, bytes) = (request.target.device, request.upper_bound());
    let anyway = || p.cap.reserve_anyway(device, request.kind, bytes);
    ask_again(p, device, || promise(p, &request), anyway, |why| refuse(p, &request, why))
}

/// The ledger had no host memory for the entry.
#[cold]
fn not_entered(
    p: &'static Process,
    request: Request,
    undo: impl FnOnce(),
    reservation: Reservation<'static>,
) -> CUresult {
    stop_without_host_memory(p);
    if p.cap.must_count(request.target.device) && request.upper_bound() != 0 {
        undo();
        reservation.withdrawn();
        return refuse_unrecordable(p, &request);
    }
    // The allocation is not in the ledger, so its free will not be recognised: its bytes stay
    // counted.
    0
}

/// Under a cap every granted byte must be counted. So the ledger makes room for the entry before the
/// driver is called; if it cannot, the request is refused.
#[cold]
fn refuse_without_room(p: &'static Process, request: &Request) -> Option<CUresult> {
    if !p.cap.is_set() {
        CROWDED.store(false, Relaxed);
    }
    let is_counted = request.size != 0 && request.upper_bound() != 0;
    if !is_counted || !p.cap.must_count(request.target.device) {
        return None;
    }
    // Cleared before `make_room`: a table that fails to grow in another thread meanwhile sets it again.
    CROWDED.store(false, Relaxed);
    match p.ledger.make_room() {
        Ok(()) => None,
        Err(NoMemory) => {
            CROWDED.store(true, Relaxed);
            stop_without_host_memory(p);
            Some(refuse_unrecordable(p, request))
        }
    }
}

/// Undoes an allocation whose `growth` in bytes did not fit under the cap. Its bytes were not counted
/// yet. But other threads may meanwhile have placed small allocations in its pages, which were charged
/// nothing for them: those pages stay charged.
#[cold]
fn undo_allocation(
    ledger: &Ledger,
    sink: &impl Sink,
    entry: &Entry,
    growth: i64,
    undo: impl FnOnce(),
    reservation: Reservation<'_>,
) {
    let Entry { key, space, .. } = *entry;
    let now_ns = sink.now_ns();
    let taken = ledger.remove(sink, space, key);
    if taken.as_ref().is_some_and(Removed::is_in_checkpoint) {
        sink.emit_at(now_ns, &Event::Free { key, space, site: SiteId(0) });
    }
    undo();
    let still = taken.map_or(0, |removed| {
        u64::try_from(growth).unwrap_or(0).saturating_sub(ledger.left(&removed))
    });
    reservation.undone(still);
}

#[inline]
fn promise(p: &'static Process, request: &Request) -> Result<Reservation<'static>, Refusal> {
    // The driver refuses a request for 0 bytes.
    let bytes = if request.size == 0 { 0 } else { request.upper_bound() };
    if bytes == 0 {
        return Ok(Reservation::none());
    }
    p.cap.reserve(request.target.device, request.kind, bytes)
}

/// A free, by any entry point. The driver is always called.
#[inline(always)]
pub fn free(call: Call<impl Row>, (space, key): (Space, u64), stream: u64) -> CUresult {
    let (p, now) = (call.p, call.now_ns());
    // Used by reference: the value is large, and copying words that were stored a moment ago stalls the
    // processor (failed store forwarding).
    let taken = p.ledger.remove(&p.trace_writer, space, key);
    let Some(removed) = &taken else {
        return free_unknown(call, key);
    };
    let site = freeing_site(p, call.api(), &removed.entry, stream);
    p.trace_writer.record_driver_free(now, key, space, site);
    let result = call.forward();
    if result == 0 {
        commit_free(p, removed, now);
    } else {
        free_failed(p, removed);
    }
    result
}

/// Removes what a call is going to free, if `wanted`, and records the free. Off the usual path.
pub(in crate::hooks) fn begin_free(
    p: &'static Process,
    api: Api,
    (space, key): (Space, u64),
    wanted: impl FnOnce(&Entry) -> bool,
) -> Option<Removed> {
    let now = p.clock.now_ns();
    let removed = p.ledger.remove_if(&p.trace_writer, space, key, wanted)?;
    let site = freeing_site(p, api, &removed.entry, 0);
    p.trace_writer.record_at(now, &Event::Free { key, space, site });
    Some(removed)
}

/// The driver refused the free: what was removed is there again.
#[cold]
pub(in crate::hooks) fn free_failed(p: &'static Process, removed: &Removed) {
    let Entry { key, space, device, .. } = removed.entry;
    let now = p.clock.now_ns();
    p.cap.grow(device, p.ledger.restore(&p.trace_writer, removed));
    p.trace_writer.record_at(now, &Event::FreeFailed { key, space });
}

/// What a call has given, which no cap limits.
pub(in crate::hooks) fn given(
    p: &'static Process,
    api: Api,
    kind: Kind,
    (space, key): (Space, u64),
    size: u64,
    target: Target,
) -> Entry {
    Entry {
        space,
        context: target.context,
        site: site_at(p, api, Some(kind), target),
        stack: stack(p),
        time_ns: p.clock.now_ns(),
        ..Entry::new(kind, key, size, target.device)
    }
}

/// Enters it in the ledger and the trace.
pub(in crate::hooks) fn enter(p: &'static Process, entry: &Entry) {
    p.ledger.insert(&p.trace_writer, entry);
    p.trace_writer.record_entry(entry);
}

/// A free of what the ledger does not have.
#[cold]
fn free_unknown(call: Call<impl Row>, key: u64) -> CUresult {
    let result = call.forward();
    if result == 0 && key != 0 {
        call.p.ledger.drift(&call.p.trace_writer, Drift::UnknownFree, key);
    }
    result
}

/// After the driver has freed the allocation: subtracts its bytes from the cap's count.
#[inline(always)]
pub(in crate::hooks) fn commit_free(p: &'static Process, removed: &Removed, now: u64) {
    let entry = &removed.entry;
    match entry.kind {
        Kind::Pool => pool_reserves::block_freed(p, entry, now),
        kind => {
            let bytes = p.ledger.left(removed);
            if bytes != 0 {
                p.cap.went(entry.device, kind, bytes);
            }
        }
    }
}

/// The site to record for a free. 0 stands for the usual one: the free function that belongs to the
/// kind, on the allocation's own stream.
#[inline(always)]
pub(in crate::hooks) fn freeing_site(
    p: &'static Process,
    api: Api,
    entry: &Entry,
    stream: u64,
) -> SiteId {
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
    let target = Target { context: entry.context, device: entry.device };
    let pool = p.pools.by_number(entry.pool).map_or(PoolId(0), Pool::id);
    site(p, api, Some(entry.kind), target, pool, stream)
}

#[cfg(test)]
mod tests;
