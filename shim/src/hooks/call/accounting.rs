//! The steps of every allocation and every free: cap, driver, ledger, trace file.

use crate::driver::api::Api;
use crate::driver::cuda::CUresult;
use crate::hooks::call::after_call::stop_without_host_memory;
use crate::hooks::call::request::{Request, Why, refuse, refuse_unrecordable, site};
use crate::hooks::call::{Call, Function};
use crate::hooks::process::pool_reserves;
use crate::hooks::process::refresh::refresh_before_refusal;
use crate::hooks::process::state::Process;
use crate::model::cap::{Refusal, Reservation};
use crate::model::contexts::Target;
use crate::model::ledger::{Entry, Ledger, Removed, Sink};
use crate::model::pools::Pool;
use crate::runtime::hash_table::{CROWDED, NoMemory};
use crate::runtime::thread_slot;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::Relaxed;
use vramtrace_format::{Drift, Event, Kind, PoolId, SiteId, Space};

/// How a request's bytes are counted under a cap: by themselves ([`Single`]), or as the growth of a pool
/// (`families/ordered.rs`). [`take`] calls the methods in this order. `wanted`: the entry as far as it is known before
/// the driver's call.
pub(in crate::hooks) trait Account {
    /// Bytes that are counted while the driver is asked for them.
    type Promise;
    /// What of them is to be settled once the memory is in the ledger.
    type Given;
    fn promise(&self, wanted: &Entry) -> Result<Self::Promise, Refusal>;
    /// The same, whatever the limit: the cap only warns.
    fn promise_anyway(&self, wanted: &Entry) -> Self::Promise;
    /// The driver gave no memory.
    fn withdraw(&self, promise: Self::Promise);
    /// The driver gave memory, which the ledger does not have yet.
    fn given(&self, promise: Self::Promise) -> Self::Given;
    /// Enters the memory in the ledger, and counts what it took. `Break`: it is not recorded; the result
    /// for the program.
    fn enter(&mut self, entry: &Entry, given: Self::Given) -> ControlFlow<CUresult>;
    /// The event is in the trace.
    fn recorded(&self, entry: &Entry);
    /// Counts and records that the request got no memory. Returns the result for the program.
    fn refuse(&self, wanted: &Entry, why: Why) -> CUresult;
}

/// The steps of every allocation but nodes of graphs: promise, driver, ledger, trace file. `real` calls the
/// driver, which writes directly to the program's outputs; `complete` reads them.
///
/// The entry is made before the driver's call, where it stays: what would be kept for it across the call is stored once.
#[inline(always)]
pub(in crate::hooks) fn take<A: Account>(
    p: &'static Process,
    mut account: A,
    mut entry: Entry,
    real: impl FnOnce() -> CUresult,
    complete: impl FnOnce(&mut Entry),
) -> CUresult {
    let promise = match account.promise(&entry) {
        Ok(promise) => promise,
        Err(refusal) if p.cap.only_warns() => {
            account.refuse(&entry, Why::Warned(refusal));
            account.promise_anyway(&entry)
        }
        Err(refusal) => return account.refuse(&entry, Why::Cap(refusal)),
    };
    let result = real();
    if result != 0 {
        account.withdraw(promise);
        return account.refuse(&entry, Why::Driver(result));
    }
    let given = account.given(promise);
    complete(&mut entry);
    entry.time_ns = match p.trace_writer.is_silent() && p.cap.is_set() {
        false => p.clock.now_ns(),
        // Nothing is recorded: the time at the call's begin, which was read for the cap, will do.
        true => thread_slot::last_ns(),
    };
    entry.stack = crate::hooks::process::stacks::stack(p);
    if let ControlFlow::Break(result) = account.enter(&entry, given) {
        return result;
    }
    p.trace_writer.record_entry(&entry);
    if let Some(sampling) = &p.block_sampling
        && entry.space == Space::Device
    {
        sampling.memory_came(entry.device, entry.key, entry.size);
    }
    account.recorded(&entry);
    result
}

/// A request whose bytes are counted by themselves.
struct Single<'r, U> {
    p: &'static Process,
    request: &'r Request,
    /// Frees the memory and restores the outputs.
    undo: Option<U>,
}

impl<U: FnOnce(u64)> Account for Single<'_, U> {
    type Promise = Reservation<'static>;
    type Given = Reservation<'static>;

    #[inline]
    fn promise(&self, _: &Entry) -> Result<Reservation<'static>, Refusal> {
        let mut reservation = promise(self.p, self.request)?;
        // A thread that is cancelled in the driver does not say whether the driver has given the memory.
        reservation.taken();
        Ok(reservation)
    }

    #[cold]
    fn promise_anyway(&self, _: &Entry) -> Reservation<'static> {
        let Request { kind, target, .. } = *self.request;
        let bytes = self.request.upper_bound();
        let mut reservation = self.p.cap.reserve_anyway(target.device, kind, bytes);
        reservation.taken();
        reservation
    }

    fn withdraw(&self, reservation: Reservation<'static>) {
        reservation.withdrawn();
    }

    #[inline]
    fn given(&self, reservation: Reservation<'static>) -> Reservation<'static> {
        reservation
    }

    #[inline]
    fn enter(
        &mut self,
        entry: &Entry,
        mut reservation: Reservation<'static>,
    ) -> ControlFlow<CUresult> {
        let p = self.p;
        let growth = match p.ledger.insert_or_not(&p.trace_writer, entry) {
            Ok(growth) => growth,
            Err(NoMemory) => return ControlFlow::Break(self.not_entered(entry.key, reservation)),
        };
        if let Err(refusal) = reservation.commit(growth) {
            let undo = || self.undo(entry.key);
            undo_allocation(&p.ledger, &p.trace_writer, entry, growth, undo, reservation);
            return ControlFlow::Break(self.refuse(entry, Why::Cap(refusal)));
        }
        ControlFlow::Continue(())
    }

    #[inline]
    fn recorded(&self, _: &Entry) {}

    #[inline(always)]
    fn refuse(&self, _: &Entry, why: Why) -> CUresult {
        // A copy: what has its address taken is kept in memory.
        let request = *self.request;
        refuse(self.p, &request, why)
    }
}

impl<U: FnOnce(u64)> Single<'_, U> {
    fn undo(&mut self, key: u64) {
        if let Some(undo) = self.undo.take() {
            undo(key);
        }
    }

    /// The ledger had no host memory for the entry.
    #[cold]
    fn not_entered(&mut self, key: u64, reservation: Reservation<'static>) -> CUresult {
        stop_without_host_memory(self.p);
        if self.p.cap.must_count(self.request.target.device) && self.request.upper_bound() != 0 {
            self.undo(key);
            reservation.withdrawn();
            return refuse_unrecordable(self.p, self.request);
        }
        // The allocation is not in the ledger, so its free will not be recognised: its bytes stay
        // counted.
        0
    }
}

/// Makes an allocation that is neither a block of a pool nor a node of a graph.
///
/// `real` calls the driver, which writes directly to the program's outputs. `taken` reads the ledger
/// key and the real size from them. `undo` frees the memory and restores the outputs; it is called if
/// the real size, known only after the call, does not fit under the cap.
#[inline]
pub fn allocate(
    p: &'static Process,
    request: &Request,
    real: impl FnOnce() -> CUresult,
    taken: impl FnOnce() -> (u64, u64),
    undo: impl FnOnce(u64),
) -> CUresult {
    if p.cap.is_bad() {
        return refuse(p, request, Why::BadCap);
    }
    if CROWDED.load(Relaxed)
        && let Some(refused) = refuse_without_room(p, request)
    {
        return refused;
    }
    let entry = Entry {
        space: request.space,
        context: request.target.context,
        stream: request.element,
        ..Entry::new(request.kind, 0, request.size, request.target.device)
    };
    take(p, Single { p, request, undo: Some(undo) }, entry, real, |entry| {
        (entry.key, entry.size) = taken();
        entry.site = request.site(p);
    })
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
    let device = request.target.device;
    p.cap.reserve(device, request.kind, bytes, || refresh_before_refusal(p, device))
}

/// A free, by any entry point. The driver is always called. `api`: the call's, as the hook names it, so that it is known
/// where this is compiled.
#[inline(always)]
pub fn free(
    p: &'static Process,
    call: &Call<impl Function>,
    api: Api,
    (space, key): (Space, u64),
    stream: u64,
) -> CUresult {
    let now = call.now_ns(p);
    // Used by reference: the value is large, and copying words that were stored a moment ago stalls the
    // processor (failed store forwarding).
    let taken = p.ledger.remove(&p.trace_writer, space, key);
    let Some(removed) = &taken else {
        return free_unknown(p, key, || call.forward());
    };
    let site = freeing_site(p, api, &removed.entry, stream);
    p.trace_writer.record_driver_free(now, key, space, site);
    let result = call.forward();
    if result == 0 {
        commit_free(p, removed, now);
    } else {
        free_failed(p, removed, site, result);
    }
    result
}

/// Removes what a call is going to free, if `wanted`, and records the free. Off the usual path.
pub(in crate::hooks) fn begin_free(
    p: &'static Process,
    api: Api,
    (space, key): (Space, u64),
    wanted: impl FnOnce(&Entry) -> bool,
) -> Option<(Removed, SiteId)> {
    let now = p.clock.now_ns();
    let removed = p.ledger.remove_if(&p.trace_writer, space, key, wanted)?;
    let site = freeing_site(p, api, &removed.entry, 0);
    p.trace_writer.record_at(now, &Event::Free { key, space, site });
    Some((removed, site))
}

/// The driver refused the free: what was removed is there again.
#[cold]
pub(in crate::hooks) fn free_failed(
    p: &'static Process,
    removed: &Removed,
    site: SiteId,
    result: CUresult,
) {
    let Entry { key, space, device, .. } = removed.entry;
    let now = p.clock.now_ns();
    p.cap.grow(device, p.ledger.restore(&p.trace_writer, removed));
    p.trace_writer.record_at(now, &Event::FreeFailed { key, space, site, result });
}

/// Enters what no cap limits in the ledger and the trace.
pub(in crate::hooks) fn enter(p: &'static Process, entry: &Entry) {
    p.ledger.insert(&p.trace_writer, entry);
    p.trace_writer.record_entry(entry);
}

/// A free of what the ledger does not have.
#[cold]
fn free_unknown(p: &'static Process, key: u64, real: impl FnOnce() -> CUresult) -> CUresult {
    let result = real();
    if result == 0 && key != 0 {
        p.ledger.drift(&p.trace_writer, Drift::UnknownFree, key);
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
