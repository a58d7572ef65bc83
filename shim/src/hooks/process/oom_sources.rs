//! The parts of the process state that a post-mortem reads.

use crate::hooks::process::nvml_reading::reader::NvmlReader;
use crate::hooks::process::state::Process;
use crate::model::devices::Device;
use crate::oom::sources::{CardReader, Sources};
use vramtrace_format::{Cause, DeviceId};

pub fn sources(p: &'static Process) -> Sources {
    Sources {
        config: &p.config,
        clock: p.clock,
        trace_writer: &p.trace_writer,
        capture: &p.capture,
        ledger: &p.ledger,
        cap: &p.cap,
        contexts: &p.contexts,
        devices: &p.devices,
        torch_totals: &p.torch_totals,
        vmm: &p.vmm,
        exports: &p.exports,
        patchers: &p.patchers,
        card: &p.nvml,
    }
}

impl CardReader for NvmlReader {
    fn free_bytes(&self, device: &Device) -> Option<u64> {
        self.memory(device).map(|memory| memory.free)
    }

    fn neighbours(&self, device: &Device) -> Vec<(u32, Option<u64>)> {
        self.others_on(device)
    }

    fn driver_internal(&self, device: DeviceId) -> [u64; Cause::COUNT] {
        self.taken(device)
    }
}
