//! Events into the trace file.

use crate::config::Config;
use crate::process::Process;
use vramtrace_format::{ContextId, Definition, DeviceId, Event, Kind, PoolId, SiteId, StopReason};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SiteKey {
    pub api: u16,
    pub kind: Option<Kind>,
    pub device: DeviceId,
    pub context: ContextId,
    pub pool: PoolId,
    pub stream: u64,
}

pub struct Recorder;

impl Recorder {
    pub fn new(_: &Config) -> Recorder {
        Recorder
    }

    pub fn record(&self, _: &Event) {}

    pub fn record_at(&self, _: u64, _: &Event) {}

    pub fn now_ns(&self) -> u64 {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: room for the answer.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }

    pub fn site(&self, _: SiteKey) -> SiteId {
        SiteId(0)
    }

    pub fn define(&self, _: &Definition) {}

    pub fn stop(&self, _: StopReason, _: i32) {}

    pub fn after_call(&self, _: &'static Process) {}
}
