//! Contexts: creation, retain, reset and destruction; the memory that they take, and the allocations
//! that end with them.

use super::prelude::*;
use super::{launch, torch_calls};
use crate::hooks::call::attribution::{TrackedCall, sharing};
use crate::hooks::call::request::{answered, ask_again, refuse_at};
use crate::hooks::process::nvml_reading::FigureBefore;
use crate::hooks::process::nvml_reading::reader::NvmlReader;
use crate::hooks::process::oom::keep_exit_status;
use crate::hooks::process::refresh::refresh_usage;
use crate::hooks::process::state;
use crate::hooks::process::target::{announce, arrival, is_inactive, known_device, record_created};
use crate::model::attribution::driver_internal::DriverActivity;
use crate::model::cap::{Reservation, Turn};
use crate::model::contexts::{By, Ending, Reference, Step};
use crate::model::devices::Device;
use crate::model::ledger::ContextTotals;
use crate::model::stream_captures::Ending as Captures;

/// cuInit. It fails where the cap cannot be parsed: such a cap must not become no cap.
pub fn init(call: Call<impl Row>) -> CUresult {
    call.p.cap.join_early();
    if call.p.cap.is_bad() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    torch_calls::find_reports();
    let result = call.forward();
    // NVML is opened even without a cap: one may be set later.
    if result == CUDA_SUCCESS {
        call.p.nvml.open();
        keep_exit_status();
    }
    result
}

/// cuCtxCreate.
pub fn create(call: Call<impl Row>, ctx: Out<Ctx>, device: i32) -> CUresult {
    let p = call.p;
    let came = || {
        let handle = ctx.get()? as u64;
        // The driver returned a handle that the model holds as live: that context was destroyed by a
        // call that was not seen.
        if let Step::Ends(stale) = p.contexts.begin_destroy(handle) {
            ended_unseen(p, &stale);
        }
        let arrival = arrival(p, handle, device_id(device));
        Some(p.contexts.arrive(arrival, By::Creation, |context| announce(p, context)).target)
    };
    // The driver refuses NULL, whatever the cap.
    making(call, device, || ctx.is_null(), came)
}

pub fn primary_retain(call: Call<impl Row>, ctx: Out<Ctx>, device: i32) -> CUresult {
    let (p, id) = (call.p, device_id(device));
    let came = || {
        let arrival = arrival(p, ctx.get()? as u64, id);
        let seen = p.contexts.arrive(arrival, By::Retain, |context| announce(p, context));
        seen.new.then_some(seen.target)
    };
    making(call, device, || ctx.is_null() || p.contexts.has_primary(id), came)
}

/// A call that makes a context unless `is_made`. After it `came` returns the new one.
fn making(
    call: Call<impl Row>,
    device: i32,
    is_made: impl FnOnce() -> bool,
    came: impl FnOnce() -> Option<Target>,
) -> CUresult {
    let p = call.p;
    let taking = match Taking::begin_context(call, before_any(device), is_made) {
        Ok(taking) => taking,
        Err(refused) => return refused,
    };
    let result = call.forward();
    if result == CUDA_SUCCESS
        && let (Some(target), Some(taking)) = (came(), taking)
    {
        if p.launched_kernels.context_seen() {
            state::hot().launches.forget();
        }
        let bytes = taking.taken(p);
        p.cap.making(target.device).measured(bytes);
        p.contexts.set_bytes(target.context, bytes);
        taking.settle(call, target);
    }
    answered(p, call.api(), before_any(device), 0, result)
}

/// A green context retains the primary context, and creates it if it does not exist.
pub fn green_create(call: Call<impl Row>, ctx: Out<GreenCtx>, device: i32) -> CUresult {
    let (p, target) = (call.p, before_any(device));
    let is_made = || ctx.is_null() || p.contexts.has_primary(target.device);
    let taking = Taking::begin_context(call, target, is_made).and_then(|taking| match taking {
        Some(taking) => Ok(taking),
        None => Taking::begin(call, target, DriverActivity::Context, 0, None),
    });
    let taking = match taking {
        Ok(taking) => taking,
        Err(refused) => return refused,
    };
    gave(call.forward(), ctx, |ctx| {
        taking.settle(call, target);
        p.contexts.refer(Reference::Green(ctx as u64, target.device));
    })
}

pub fn green_destroy(call: Call<impl Row>, ctx: GreenCtx) -> CUresult {
    end(call, call.p.contexts.begin_green_destroy(ctx as u64))
}

pub fn destroy(call: Call<impl Row>, ctx: Ctx) -> CUresult {
    end(call, call.p.contexts.begin_destroy(ctx as u64))
}

pub fn attach(call: Call<impl Row>, ctx: Out<Ctx>) -> CUresult {
    gave(call.forward(), ctx, |ctx| call.p.contexts.refer(Reference::Attached(ctx as u64)))
}

pub fn detach(call: Call<impl Row>, ctx: Ctx) -> CUresult {
    end(call, call.p.contexts.begin_detach(ctx as u64))
}

pub fn primary_release(call: Call<impl Row>, device: i32) -> CUresult {
    let (p, id) = (call.p, device_id(device));
    let result = end(call, p.contexts.begin_release(id));
    // The driver may have destroyed it although by our count it is still retained.
    if result == CUDA_SUCCESS
        && is_inactive(device)
        && let Step::Ends(ending) = p.contexts.begin_reset(id)
    {
        ended_unseen(p, &ending);
        refresh_usage(p, id);
    }
    result
}

pub fn primary_reset(call: Call<impl Row>, device: i32) -> CUresult {
    let (p, id) = (call.p, device_id(device));
    let handle_and_bytes = p.contexts.primary_on(id);
    let result = end(call, p.contexts.begin_reset(id));
    // Some drivers make it again at once, at the same handle, for those who retained it; driver 580 at the
    // next cuDevicePrimaryCtxRetain.
    if result == CUDA_SUCCESS
        && let Some((handle, bytes)) = handle_and_bytes
        && !is_inactive(device)
    {
        let seen =
            p.contexts.arrive(arrival(p, handle, id), By::Use, |context| announce(p, context));
        if seen.new {
            p.contexts.set_bytes(seen.target.context, bytes);
        }
    }
    result
}

/// The target of a call that makes a context on this device.
fn before_any(device: i32) -> Target {
    Target { context: ContextId(0), device: device_id(device) }
}

/// Makes the call that ends the context, or only releases it, according to `step`. The context's
/// allocations leave the model before the call: while it runs, another thread may be given their
/// addresses.
///
/// If the driver refuses, the context is restored in the model. Its allocations are not: they count as
/// unattributed bytes. (Destruction fails for broken contexts only.)
fn end(call: Call<impl Row>, step: Step) -> CUresult {
    let p = call.p;
    let Step::Ends(ending) = &step else {
        let result = call.forward();
        if result != CUDA_SUCCESS {
            p.contexts.put_back(step);
        }
        return result;
    };
    let target = ending.context.target();
    let captures = captures_of(p, ending);
    let freed = take_all(p, ending);
    let result = call.forward();
    if result == CUDA_SUCCESS {
        has_ended(p, ending, captures);
    } else {
        record_created(p, &ending.context);
        p.contexts.put_back(step);
    }
    uncount(p, freed, target);
    refresh_usage(p, target.device);
    result
}

/// The captures that began in streams of the context, and end with it.
fn captures_of(p: &Process, ending: &Ending) -> Captures {
    p.stream_captures.ending(|origin| ending.handles().any(|handle| handle == origin.context))
}

/// A context has ended by a call that was not seen.
fn ended_unseen(p: &'static Process, ending: &Ending) {
    let captures = captures_of(p, ending);
    let freed = take_all(p, ending);
    has_ended(p, ending, captures);
    uncount(p, freed, ending.context.target());
}

/// After the driver has destroyed a context and its memory has left the model.
fn has_ended(p: &Process, ending: &Ending, captures: Captures) {
    p.stream_captures.ended(captures);
    let Target { context, device } = ending.context.target();
    p.launched_kernels.context_ended(context);
    p.nvml.context_ended(p, device, context);
    p.contexts.retire(ending);
}

/// Removes a context that ends, and what belonged to it, from the model.
fn take_all(p: &Process, ending: &Ending) -> ContextTotals {
    // Its streams end with it, and its handle may be given out again.
    p.stream_targets.forget();
    let freed = p.ledger.remove_context(&p.trace_writer, ending.context.id);
    p.trace_writer.record(&Event::ContextDestroyed { context: ending.context.id });
    freed
}

fn uncount(p: &Process, freed: ContextTotals, Target { context, device }: Target) {
    p.cap.arrays_ended(device, context);
    p.cap.went(device, Kind::Device, freed.bytes.saturating_sub(freed.managed));
    p.cap.went(device, Kind::Managed, freed.managed);
}

pub fn set_limit(call: Call<impl Row>, limit: u32, value: usize) -> CUresult {
    let (p, target, value) = (call.p, current_target(call.p), value as u64);
    let (doing, growth) = match limit {
        CU_LIMIT_STACK_SIZE => (DriverActivity::StackLimit, stack_growth(target, value)),
        _ => (DriverActivity::OtherLimit, 0),
    };
    let taking = match Taking::begin(call, target, doing, growth, None) {
        Ok(taking) => taking,
        Err(refused) => return refused,
    };
    let result = call.forward();
    if result == CUDA_SUCCESS {
        let grown = taking.taken(p);
        p.contexts.add_growth(target.context, grown);
        if limit == CU_LIMIT_STACK_SIZE {
            // A kernel may have taken more local memory before, which a smaller stack limit frees.
            let held = p.launched_kernels.local(target.context, || value);
            p.launched_kernels
                .set_local(target.context, if grown > 0 { held.max(value) } else { value });
        }
        taking.settle(call, target);
        p.trace_writer.record(&Event::Limit { context: target.context, grown });
    }
    result
}

/// Bytes of local memory that a larger stack limit takes at once: the driver allocates it for every
/// thread that can be resident.
fn stack_growth(target: Target, value: u64) -> u64 {
    let Some(now) = launch::limit(CU_LIMIT_STACK_SIZE) else { return 0 };
    launch::resident_threads(target).saturating_mul(value.saturating_sub(now))
}

/// cuCtxEnablePeerAccess, which maps the peer's memory in this context, and cuCtxDisablePeerAccess.
pub fn change_peer_access(call: Call<impl Row>, peer: Ctx) -> CUresult {
    let (p, result) = (call.p, sharing(call));
    if result == CUDA_SUCCESS
        && let Some(target) = p.contexts.find(peer as u64)
    {
        p.nvml.wait_for(target.device, DriverActivity::Sharing.into());
    }
    result
}

/// A call by which the driver takes memory for itself: what is expected is reserved before it, and what it took is measured
/// after it.
struct Taking {
    promise: Reservation<'static>,
    forecast: u64,
    before: Option<(&'static Device, FigureBefore)>,
    tracked: TrackedCall,
    /// Last: it ends when the rest is done.
    _turn: Option<Turn<'static>>,
}

impl Taking {
    /// Before the call. `Err`: the result for the program.
    fn begin(
        call: Call<impl Row>,
        target: Target,
        doing: DriverActivity,
        forecast: u64,
        turn: Option<Turn<'static>>,
    ) -> Result<Taking, CUresult> {
        let (p, id) = (call.p, target.device);
        let reserve = || p.cap.reserve(id, Kind::Device, forecast);
        let reserve_again = |_| {
            let anyway = || p.cap.reserve_anyway(id, Kind::Device, forecast);
            ask_again(p, id, reserve, anyway, |why| refuse_taking(call, target, forecast, why))
        };
        let promise = match forecast {
            // A call that needs no more memory is never refused, even while the count is over the cap.
            0 => Reservation::none(),
            _ => reserve().or_else(reserve_again)?,
        };
        let device = known_device(p, id).filter(|_| NvmlReader::is_wanted(p));
        let before = device.map(|device| (device, p.nvml.before(p, device)));
        let tracked = TrackedCall::start(p, target, doing);
        Ok(Taking { promise, forecast, before, tracked, _turn: turn })
    }

    /// The same for a call that makes a context. `None`: it makes none, by `is_made`.
    fn begin_context(
        call: Call<impl Row>,
        target: Target,
        is_made: impl FnOnce() -> bool,
    ) -> Result<Option<Taking>, CUresult> {
        let p = call.p;
        // No context is made under a cap that cannot be understood.
        if p.cap.is_bad() {
            return Err(refuse_taking(call, target, 0, Why::BadCap));
        }
        let making = p.cap.making(target.device);
        let turn = p.cap.limited(target.device).map(|_| making.turn());
        if is_made() {
            return Ok(None);
        }
        let forecast = if turn.is_some() { making.forecast() } else { 0 };
        Taking::begin(call, target, DriverActivity::Context, forecast, turn).map(Some)
    }

    /// After the call: the bytes that it took. Without a measurement the forecast counts.
    fn taken(&self, p: &Process) -> u64 {
        let before = self.before.as_ref();
        let measured = before.and_then(|(device, before)| p.nvml.taken_since(p, device, before));
        measured.unwrap_or(self.forecast)
    }

    /// The bytes move from the reservation to the driver's own: charged first, then released, so
    /// that no other thread sees a count that is too low. The reading corrects it.
    fn settle(self, call: Call<impl Row>, target: Target) {
        call.p.cap.charge(target.device, self.forecast as i64);
        drop(self.promise);
        self.tracked.end(call, target);
    }
}

#[cold]
fn refuse_taking(call: Call<impl Row>, target: Target, bytes: u64, why: Why) -> CUresult {
    let site = site_at(call.p, call.api(), None, target);
    refuse_at(call.p, target.device, site, bytes, why)
}
