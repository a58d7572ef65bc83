//! Contexts: creation, retain, reset and destruction; the memory that they take, and the allocations
//! that end with them.

use super::launch;
use crate::driver::api::Api;
use crate::driver::cuda::*;
use crate::driver::param::Out;
use crate::hooks::call::attribution::{TrackedCall, nameless, sharing, watched};
use crate::hooks::call::request::{Why, refuse_at, site};
use crate::hooks::call::{Call, Function, gave, hooks};
use crate::hooks::families::torch_calls;
use crate::hooks::process::nvml_reading::FigureBefore;
use crate::hooks::process::nvml_reading::reader::{self, NvmlReader};
use crate::hooks::process::oom::keep_exit_status;
use crate::hooks::process::refresh::{refresh_before_refusal, refresh_usage};
use crate::hooks::process::state::{self, Process};
use crate::hooks::process::target::current_target;
use crate::hooks::process::target::{
    announce, arrival, device_id, is_inactive, known_device, record_created,
};
use crate::model::attribution::driver_internal::DriverActivity;
use crate::model::cap::{Reservation, Turn};
use crate::model::contexts::{Ending, Step, Target};
use crate::model::devices::Device;
use crate::model::ledger::ContextTotals;
use crate::model::stream_captures::Ending as Captures;
use vramtrace_format::{ContextId, Event, Kind, PoolId};

/// cuInit. It fails where the cap cannot be parsed: such a cap must not become no cap.
pub fn init(p: &'static Process, call: &Call<impl Function>, _flags: u32) -> CUresult {
    p.cap.join_early();
    if p.cap.is_bad() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    torch_calls::find_library();
    let result = call.forward();
    // NVML is opened even without a cap: one may be set later.
    if result == CUDA_SUCCESS {
        reader::open();
        keep_exit_status();
    }
    result
}

hooks! { p, call:
    /// cuCtxCreate.
    create(ctx: Out<Ctx>, flags: u32, device: i32) = created(p, call, ctx, device);
    /// cuCtxCreate_v3.
    create_v3(ctx: Out<Ctx>, params: *mut CUexecAffinityParam, count: i32, flags: u32, device: i32) =
        created(p, call, ctx, device);
    /// cuCtxCreate_v4.
    create_v4(ctx: Out<Ctx>, params: *mut CUctxCreateParams, flags: u32, device: i32) =
        created(p, call, ctx, device);
    /// cuGreenCtxDestroy.
    green_destroy(ctx: GreenCtx) =
        end(p, p.contexts.begin_green_destroy(ctx as u64), || call.forward());
    /// cuCtxDestroy.
    destroy(ctx: Ctx) = end(p, p.contexts.begin_destroy(ctx as u64), || call.forward());
    /// cuCtxAttach.
    attach(ctx: Out<Ctx>, flags: u32) =
        gave(call.forward(), ctx, |ctx| p.contexts.attached(ctx as u64));
    /// cuCtxDetach.
    detach(ctx: Ctx) = end(p, p.contexts.begin_detach(ctx as u64), || call.forward());
    /// cuCtxEnablePeerAccess: maps the peer's memory in this context.
    enable_peer_access(peer: Ctx, flags: u32) = share_with(p, call.api, peer, || call.forward());
    /// cuCtxDisablePeerAccess.
    disable_peer_access(peer: Ctx) = share_with(p, call.api, peer, || call.forward());
}

fn created(
    p: &'static Process,
    call: &Call<impl Function>,
    ctx: Out<Ctx>,
    device: i32,
) -> CUresult {
    // The driver refuses NULL, whatever the cap.
    let making = match Making::begin(p, call.api, device, || ctx.is_null()) {
        Ok(making) => making,
        Err(refused) => return refused,
    };
    gave(call.forward(), ctx, |ctx| {
        let handle = ctx as u64;
        // The driver returned a handle that the model holds as live: that context was destroyed by a
        // call that was not seen.
        if let Step::Ends(stale) = p.contexts.begin_destroy(handle) {
            let freed = take_all(p, &stale);
            has_ended(p, &stale);
            uncount(p, freed, stale.context.target());
        }
        let arrival = arrival(p, handle, device_id(device));
        let seen = p.contexts.created(arrival, |context| announce(p, context));
        if let Some(making) = making {
            making.made(p, call.api, seen.target);
        }
    })
}

/// cuDevicePrimaryCtxRetain.
pub fn primary_retain(
    p: &'static Process,
    call: &Call<impl Function>,
    ctx: Out<Ctx>,
    device: i32,
) -> CUresult {
    let id = device_id(device);
    let is_made = || ctx.is_null() || p.contexts.has_primary(id);
    let making = match Making::begin(p, call.api, device, is_made) {
        Ok(making) => making,
        Err(refused) => return refused,
    };
    gave(call.forward(), ctx, |ctx| {
        let arrival = arrival(p, ctx as u64, id);
        let seen = p.contexts.retained(arrival, |context| announce(p, context));
        if let Some(making) = making.filter(|_| seen.new) {
            making.made(p, call.api, seen.target);
        }
    })
}

/// A green context retains the primary context, and creates it if it does not exist.
pub fn green_create(
    p: &'static Process,
    call: &Call<impl Function>,
    ctx: Out<GreenCtx>,
    _descriptor: CUdevResourceDesc,
    device: i32,
    _flags: u32,
) -> CUresult {
    let id = device_id(device);
    let is_made = || ctx.is_null() || p.contexts.has_primary(id);
    let making = match Making::begin(p, call.api, device, is_made) {
        Ok(making) => making,
        Err(refused) => return refused,
    };
    let target = before_any(device);
    let result = match making {
        None => watched(p, call.api, target, DriverActivity::Context, nameless, || call.forward()),
        Some(making) => {
            let result = call.forward();
            if result == CUDA_SUCCESS {
                making.settle(p, call.api, target);
            }
            result
        }
    };
    gave(result, ctx, |ctx| p.contexts.green_created(ctx as u64, id))
}

/// cuDevicePrimaryCtxRelease.
pub fn primary_release(p: &'static Process, call: &Call<impl Function>, device: i32) -> CUresult {
    let step = p.contexts.begin_release(device_id(device));
    let result = end(p, step, || call.forward());
    if result == CUDA_SUCCESS && is_inactive(device) {
        // The driver destroyed it although by our count it is still retained.
        if let Step::Ends(ending) = p.contexts.begin_reset(device_id(device)) {
            let captures = captures_of(p, &ending);
            let freed = take_all(p, &ending);
            p.stream_captures.ended(captures);
            has_ended(p, &ending);
            return_to_cap(p, freed, ending.context.target());
        }
    }
    result
}

/// cuDevicePrimaryCtxReset.
pub fn primary_reset(p: &'static Process, call: &Call<impl Function>, device: i32) -> CUresult {
    let id = device_id(device);
    let handle_and_bytes = p.contexts.primary_on(id);
    let step = p.contexts.begin_reset(id);
    let result = end(p, step, || call.forward());
    // Some drivers make it again at once, at the same handle, for those who retained it; driver 580 at the
    // next cuDevicePrimaryCtxRetain.
    if result == CUDA_SUCCESS
        && let Some((handle, bytes)) = handle_and_bytes
        && !is_inactive(device)
    {
        let seen = p.contexts.register(arrival(p, handle, id), |context| announce(p, context));
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
fn end(p: &'static Process, step: Step, real: impl FnOnce() -> CUresult) -> CUresult {
    let Step::Ends(ending) = &step else {
        let result = real();
        if result != CUDA_SUCCESS {
            p.contexts.put_back(step);
        }
        return result;
    };
    let target = ending.context.target();
    let captures = captures_of(p, ending);
    let freed = take_all(p, ending);
    let result = real();
    if result == CUDA_SUCCESS {
        p.stream_captures.ended(captures);
        has_ended(p, ending);
    } else {
        record_created(p, &ending.context);
        p.contexts.put_back(step);
    }
    return_to_cap(p, freed, target);
    result
}

/// The captures that began in streams of the context, and end with it.
fn captures_of(p: &Process, ending: &Ending) -> Captures {
    p.stream_captures.ending(|origin| ending.handles().any(|handle| handle == origin.context))
}

/// After the driver has destroyed a context and its memory has left the model.
fn has_ended(p: &Process, ending: &Ending) {
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

/// After the driver's answer.
fn return_to_cap(p: &'static Process, freed: ContextTotals, target: Target) {
    uncount(p, freed, target);
    refresh_usage(p, target.device);
}

/// cuCtxSetLimit.
pub fn set_limit(
    p: &'static Process,
    call: &Call<impl Function>,
    limit: CUlimit,
    value: usize,
) -> CUresult {
    let target = current_target(p);
    let growth = match limit {
        CU_LIMIT_STACK_SIZE => stack_growth(target, value as u64),
        _ => 0,
    };
    // A limit that needs no more memory is never refused, even while the count is over the cap.
    let promise = match reserve(p, call.api, target, growth) {
        Ok(promise) => promise,
        Err(refused) => return refused,
    };
    let doing = match limit {
        CU_LIMIT_STACK_SIZE => DriverActivity::StackLimit,
        _ => DriverActivity::OtherLimit,
    };
    let watch = Measured::start(p, target, doing);
    let result = call.forward();
    if result == CUDA_SUCCESS {
        // The bytes move from the reservation to the driver's own: charged first, then released, so
        // that no other thread sees a count that is too low.
        p.cap.charge(target.device, growth as i64);
        drop(promise);
        // Without a measurement the forecast counts.
        let grown = watch.taken(p).unwrap_or(growth);
        p.contexts.add_growth(target.context, grown);
        let value = value as u64;
        if limit == CU_LIMIT_STACK_SIZE {
            // A kernel may have taken more local memory before, which a smaller stack limit frees.
            let held = p.launched_kernels.local(target.context, || value);
            p.launched_kernels
                .set_local(target.context, if grown > 0 { held.max(value) } else { value });
        }
        watch.tracked.end(p, call.api, target, nameless);
        p.trace_writer.record(&Event::Limit { context: target.context, limit, value, grown });
    }
    result
}

/// Reserves what the driver is going to take for itself. `Err`: the result for the program.
fn reserve(
    p: &'static Process,
    api: Api,
    target: Target,
    bytes: u64,
) -> Result<Reservation<'static>, CUresult> {
    if bytes == 0 {
        return Ok(Reservation::none());
    }
    let device = target.device;
    let refuse = |why| {
        let site = site(p, api, None, target, PoolId(0), 0);
        refuse_at(p, device, site, bytes, why)
    };
    match p.cap.reserve(device, Kind::Device, bytes, || refresh_before_refusal(p, device)) {
        Err(refusal) if p.cap.only_warns() => {
            refuse(Why::Warned(refusal));
            Ok(p.cap.reserve_anyway(device, Kind::Device, bytes))
        }
        reserved => reserved.map_err(|refusal| refuse(Why::Cap(refusal))),
    }
}

/// Bytes of local memory that a larger stack limit takes at once: the driver allocates it for every
/// thread that can be resident.
fn stack_growth(target: Target, value: u64) -> u64 {
    let Some(now) = launch::limit(CU_LIMIT_STACK_SIZE) else { return 0 };
    launch::resident_threads(target).saturating_mul(value.saturating_sub(now))
}

fn share_with(
    p: &'static Process,
    api: Api,
    peer: Ctx,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let result = sharing(p, api, real);
    if result == CUDA_SUCCESS
        && let Some(target) = p.contexts.find(peer as u64)
    {
        p.nvml.wait_for(target.device, DriverActivity::Sharing.into());
    }
    result
}

/// Measures what the driver takes during a call, and tracks it.
struct Measured {
    before: Option<(&'static Device, FigureBefore)>,
    tracked: TrackedCall,
}

impl Measured {
    fn start(p: &'static Process, target: Target, doing: DriverActivity) -> Measured {
        let device = known_device(p, target.device).filter(|_| NvmlReader::is_wanted(p));
        let before = device.map(|device| (device, p.nvml.before(p, device)));
        Measured { before, tracked: TrackedCall::start(p, target, doing) }
    }

    /// `None`: it cannot be measured.
    fn taken(&self, p: &Process) -> Option<u64> {
        let (device, before) = self.before.as_ref()?;
        p.nvml.taken_since(p, device, before)
    }
}

/// A context that is being made.
struct Making {
    promise: Reservation<'static>,
    forecast: u64,
    watch: Measured,
    /// Last: it ends when the rest is done.
    _turn: Option<Turn<'static>>,
}

impl Making {
    /// Before the call. `None`: it makes none, by `is_made`. `Err`: the result for the program.
    fn begin(
        p: &'static Process,
        api: Api,
        device: i32,
        is_made: impl FnOnce() -> bool,
    ) -> Result<Option<Making>, CUresult> {
        let target = before_any(device);
        // No context is made under a cap that cannot be understood.
        if p.cap.is_bad() {
            let site = site(p, api, None, target, PoolId(0), 0);
            return Err(refuse_at(p, target.device, site, 0, Why::BadCap));
        }
        let making = p.cap.making(target.device);
        let turn = p.cap.limited(target.device).map(|_| making.turn());
        if is_made() {
            return Ok(None);
        }
        let forecast = if turn.is_some() { making.forecast() } else { 0 };
        let promise = reserve(p, api, target, forecast)?;
        let watch = Measured::start(p, target, DriverActivity::Context);
        Ok(Some(Making { promise, forecast, watch, _turn: turn }))
    }

    /// It was made: charges and samples the bytes that it took.
    fn made(self, p: &'static Process, api: Api, target: Target) {
        if p.launched_kernels.context_seen() {
            state::hot().launches.forget();
        }
        let bytes = self.watch.taken(p).unwrap_or(self.forecast);
        p.cap.making(target.device).measured(bytes);
        p.contexts.set_bytes(target.context, bytes);
        self.settle(p, api, target);
    }

    fn settle(self, p: &'static Process, api: Api, target: Target) {
        // As in `set_limit`: charged first, then released. The reading corrects it.
        p.cap.charge(target.device, self.forecast as i64);
        drop(self.promise);
        self.watch.tracked.end(p, api, target, nameless);
    }
}
