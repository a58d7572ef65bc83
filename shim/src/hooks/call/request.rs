//! What a call asks for, and a request that gets nothing.

use crate::driver::api::Api;
use crate::driver::cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY, CUresult};
use crate::driver::depth;
use crate::hooks::process::refresh::{refresh_before_refusal, refresh_reserves};
use crate::hooks::process::stacks::stack;
use crate::hooks::process::state::Process;
use crate::model::cap::Refusal;
use crate::model::contexts::Target;
use crate::model::sites::SiteKey;
use crate::runtime::log::{self, Once};
use crate::runtime::reserve;
use vramtrace_format::physical::{PAGE, Physical, SMALL, physical};
use vramtrace_format::size::{AsGiven, Bytes};
use vramtrace_format::{DeviceId, Event, Kind, PoolId, Refused, RefusedBy, SiteId, Space};

/// What a call asks for.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub api: Api,
    pub kind: Kind,
    /// `kind.space()`, except for pools of managed or host memory.
    pub space: Space,
    pub target: Target,
    /// Bytes requested, as exactly as they can be known before the call; 0 where the driver is certain
    /// to refuse the call.
    pub size: u64,
    /// Of an array: the bytes of an element.
    pub element: u64,
}

impl Request {
    pub fn new(api: Api, kind: Kind, target: Target, size: u64) -> Request {
        Request { api, kind, space: kind.space(), target, size, element: 0 }
    }

    /// The most physical bytes that the request can take; 0 for memory that no cap counts.
    pub(super) fn upper_bound(&self) -> u64 {
        match physical(self.kind, self.size) {
            // They count by the pages that they share (`families/array.rs`).
            Physical::Own(1..=SMALL) if matches!(self.kind, Kind::Array | Kind::Mipmapped) => 0,
            Physical::Own(bytes) => bytes,
            Physical::Shared(_) => PAGE,
            Physical::Reserved | Physical::None => 0,
        }
    }

    pub fn site(&self, p: &'static Process) -> SiteId {
        site_at(p, self.api, Some(self.kind), self.target)
    }
}

/// The site of a call that is not on a stream, nor of a pool.
pub fn site_at(p: &'static Process, api: Api, kind: Option<Kind>, target: Target) -> SiteId {
    site(p, api, kind, target, PoolId(0), 0)
}

pub fn site(
    p: &'static Process,
    api: Api,
    kind: Option<Kind>,
    target: Target,
    pool: PoolId,
    stream: u64,
) -> SiteId {
    let Target { context, device } = target;
    if p.trace_writer.is_silent() {
        return SiteId(0);
    }
    let key = SiteKey { api: api as u16, kind, device, context, pool, stream };
    p.sites.get(&key, |definition| p.trace_writer.try_define(definition))
}

/// Why a request got no memory.
#[derive(Clone, Copy, Debug)]
pub enum Why {
    Driver(CUresult),
    /// The driver, of a call that takes no memory for the program.
    OtherCall(CUresult),
    Cap(Refusal),
    /// The cap only warns: the request goes to the driver all the same.
    Warned(Refusal),
    BadCap,
}

/// Counts and records a request that got no memory. Returns the result for the program.
#[cold]
pub fn refuse(p: &'static Process, request: &Request, why: Why) -> CUresult {
    refuse_at(p, request.target.device, request.site(p), request.size, why)
}

/// The same of a request for this device's memory; of host memory the device is not known.
#[cold]
pub(in crate::hooks) fn refuse_at(
    p: &'static Process,
    device: DeviceId,
    site: SiteId,
    size: u64,
    why: Why,
) -> CUresult {
    if matches!(why, Why::Driver(CUDA_ERROR_OUT_OF_MEMORY)) {
        // A full card has taken back what its pools and graphs did not use.
        refresh_reserves(p, device);
    }
    let counted = p.cap.counted(device);
    let limit = p.cap.limit(device).unwrap_or(0);
    let (result, by, counted, limit) = match why {
        Why::Driver(result) | Why::OtherCall(result) => (result, RefusedBy::Driver, counted, limit),
        Why::Cap(refusal) => {
            let by = if refusal.of_group { RefusedBy::Group } else { RefusedBy::Cap };
            (CUDA_ERROR_OUT_OF_MEMORY, by, refusal.counted, refusal.limit)
        }
        Why::Warned(refusal) => (0, RefusedBy::Warned, refusal.counted, refusal.limit),
        Why::BadCap => (CUDA_ERROR_INVALID_VALUE, RefusedBy::BadCap, counted, 0),
    };
    let is_out_of_memory = result == CUDA_ERROR_OUT_OF_MEMORY;
    let stack = stack(p);
    // If the recorder itself has no host memory, the refusal need not be of device memory: no post-mortem.
    let is_examined = is_out_of_memory && device != DeviceId::UNKNOWN && !reserve::is_used();
    let look = || p.oom.look(p, device, by).unwrap_or(0);
    let driver_free = if is_examined { look() } else { 0 };
    let cache = p.torch_totals.of(device);
    let refused = Refused { site, stack, size, result, by, counted, limit, driver_free, cache };
    let record = || p.trace_writer.record(&Event::Refused(refused));
    if by == RefusedBy::Driver && !is_out_of_memory {
        // Another error than out of memory: it is recorded, and not counted as a refusal.
        record();
    } else {
        p.ledger.refused(device, by, record);
    }
    if result != 0 {
        depth::note_refusal();
    }
    if let Why::Warned(refusal) = why {
        say_that_it_only_warns(device, size, refusal);
    }
    if by == RefusedBy::Group {
        p.cap.name_unchecked();
    }
    if is_examined {
        p.oom.refused(p, device, &refused, matches!(why, Why::OtherCall(_)));
    } else if is_out_of_memory {
        p.oom.aftermath.host_refused();
    }
    result
}

/// What the driver answered to a call that enters nothing into the ledger: out of memory is a refusal of `size` bytes; 0 where
/// the call does not say how many. Returns the result.
pub fn answered(
    p: &'static Process,
    api: Api,
    target: Target,
    size: u64,
    result: CUresult,
) -> CUresult {
    match result {
        CUDA_ERROR_OUT_OF_MEMORY => {
            let site = site_at(p, api, None, target);
            refuse_at(p, target.device, site, size, Why::OtherCall(result))
        }
        _ => result,
    }
}

/// What the cap has refused, by another try after a look at what is in use now. Where the cap only warns, it is taken all the
/// same, by `anyway`. `Err`: the result for the program, by `refuse`.
#[cold]
pub(in crate::hooks) fn ask_again<T>(
    p: &'static Process,
    device: DeviceId,
    ask: impl FnOnce() -> Result<T, Refusal>,
    anyway: impl FnOnce() -> T,
    refuse: impl Fn(Why) -> CUresult,
) -> Result<T, CUresult> {
    refresh_before_refusal(p, device);
    ask().or_else(|refusal| {
        if !p.cap.only_warns() {
            return Err(refuse(Why::Cap(refusal)));
        }
        refuse(Why::Warned(refusal));
        Ok(anyway())
    })
}

fn say_that_it_only_warns(device: DeviceId, size: u64, refusal: Refusal) {
    if !Once::OnlyWarns.begins() {
        return;
    }
    let Refusal { counted, limit, .. } = refusal;
    log::line(format_args!(
        "cuda:{}: a request of {} exceeds the cap of {} ({} counted); the cap only warns, so the \
         request is granted; this line is printed once, the trace records every such request",
        device.0,
        Bytes(size),
        AsGiven(limit),
        Bytes(counted)
    ));
}

/// Refuses a request for which the ledger has no room.
#[cold]
pub(in crate::hooks) fn refuse_unrecordable(p: &'static Process, request: &Request) -> CUresult {
    let device = request.target.device;
    let limit = p.cap.enforced(device).next().map_or(0, |(limit, _)| limit);
    let counted = p.cap.counted(device);
    refuse(p, request, Why::Cap(Refusal { counted, limit, of_group: false }))
}
