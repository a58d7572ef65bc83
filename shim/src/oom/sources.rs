//! The parts of the process that a post-mortem reads.

use crate::capture::Capture;
use crate::config::Config;
use crate::model::attribution::patchers::Patchers;
use crate::model::cap::Cap;
use crate::model::contexts::Contexts;
use crate::model::devices::{Device, Devices};
use crate::model::exports::Exports;
use crate::model::ledger::Ledger;
use crate::model::torch_totals::TorchTotals;
use crate::model::vmm::Vmm;
use crate::runtime::clock::ProcessClock;
use crate::trace_writer::TraceWriter;
use vramtrace_format::{Cause, DeviceId};

/// Parts of the process's state, which lives as long as the process.
#[derive(Clone, Copy)]
pub struct Sources {
    pub config: &'static Config,
    pub clock: ProcessClock,
    pub trace_writer: &'static TraceWriter,
    pub capture: &'static Capture,
    pub ledger: &'static Ledger,
    pub cap: &'static Cap,
    pub contexts: &'static Contexts,
    pub devices: &'static Devices,
    pub torch_totals: &'static TorchTotals,
    pub vmm: &'static Vmm,
    pub exports: &'static Exports,
    pub patchers: &'static Patchers,
    pub card: &'static dyn CardReader,
}

/// Figures of a card beyond the process's own calls.
pub trait CardReader {
    /// The card's free bytes, all processes together. `None`: NVML is not open, or gives none.
    fn free_bytes(&self, device: &Device) -> Option<u64>;
    /// The other processes on a card, with their bytes where NVML gives them.
    fn neighbours(&self, device: &Device) -> Vec<(u32, Option<u64>)>;
    /// Bytes that the driver holds for itself, without contexts; indexed by `Cause as usize`.
    fn driver_internal(&self, device: DeviceId) -> [u64; Cause::COUNT];
}
