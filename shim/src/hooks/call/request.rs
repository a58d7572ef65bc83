//! What a call asks for, and a request that gets nothing.

use crate::driver::api::Api;
use crate::driver::cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY, CUresult};
use crate::hooks::process::stacks::stack;
use crate::hooks::process::state::Process;
use crate::model::cap::Refusal;
use crate::model::contexts::Target;
use crate::model::sites::SiteKey;
use crate::runtime::log;
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
    Cap(Refusal),
    /// The cap only warns: the request goes to the driver all the same.
    Warned(Refusal),
    BadCap,
}

/// Counts and records a request that got no memory. Returns the result for the program.
#[cold]
pub fn refuse(p: &'static Process, request: &Request, why: Why) -> CUresult {
    let site = request.site(p);
    let Target { device, .. } = request.target;
    match request.kind.is_host() {
        // Host memory: the free bytes of the device do not explain the refusal.
        true => record_refusal(p, device, site, request.size, why, |_| 0).result,
        false => refuse_at(p, device, site, request.size, why),
    }
}

#[cold]
pub(in crate::hooks) fn refuse_at(
    p: &'static Process,
    device: DeviceId,
    site: SiteId,
    size: u64,
    why: Why,
) -> CUresult {
    let look = |refused: &Refused| match is_of_memory(refused) {
        // If the recorder itself has no host memory, the refusal need not be of device memory: no
        // post-mortem.
        true if !reserve::is_used() => p.oom.look(p, device, refused.by).unwrap_or(0),
        _ => 0,
    };
    let refused = record_refusal(p, device, site, size, why, look);
    if let Why::Warned(refusal) = why {
        say_that_it_only_warns(p, device, size, refusal);
    }
    if refused.by == RefusedBy::Group {
        p.cap.name_unchecked();
    }
    if is_of_memory(&refused) && !reserve::is_used() {
        p.oom.refused(p, device, &refused);
    }
    refused.result
}

fn say_that_it_only_warns(p: &'static Process, device: DeviceId, size: u64, refusal: Refusal) {
    if !p.cap.warns_first() {
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

/// Whether the request was refused for want of device memory.
fn is_of_memory(refused: &Refused) -> bool {
    match refused.by {
        RefusedBy::Driver => refused.result == CUDA_ERROR_OUT_OF_MEMORY,
        RefusedBy::Cap | RefusedBy::Group => true,
        RefusedBy::BadCap | RefusedBy::Warned => false,
    }
}

/// `driver_free` returns the device's free bytes as the driver sees them; 0: not known.
fn record_refusal(
    p: &'static Process,
    device: DeviceId,
    site: SiteId,
    size: u64,
    why: Why,
    driver_free: impl FnOnce(&Refused) -> u64,
) -> Refused {
    let counted = p.cap.counted(device);
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
    let stack = stack(p);
    let cache = p.torch_totals.of(device);
    let mut refused =
        Refused { site, stack, size, result, by, counted, limit, driver_free: 0, cache };
    refused.driver_free = driver_free(&refused);
    let record = || p.trace_writer.record(&Event::Refused(refused));
    if by == RefusedBy::Driver && result != CUDA_ERROR_OUT_OF_MEMORY {
        // Another error than out of memory: it is recorded, and not counted as a refusal.
        record();
    } else {
        p.ledger.refused(device, by, record);
    }
    refused
}

/// Refuses a request for which the ledger has no room.
#[cold]
pub(in crate::hooks) fn refuse_unrecordable(p: &'static Process, request: &Request) -> CUresult {
    let device = request.target.device;
    let of_group = || p.cap.enforced_by_group(device).map(|(limit, _)| limit);
    let limit = p.cap.enforced(device).or_else(of_group).unwrap_or(0);
    let counted = p.cap.counted(device);
    refuse(p, request, Why::Cap(Refusal { counted, limit, of_group: false }))
}
