//! The sum that leads from allocations to what nvidia-smi shows, and who made the driver take what
//! no allocation call shows.

use std::collections::BTreeMap;

use serde::Serialize;
use vramtrace_format::Cause;
use vramtrace_format::physical::MIB;

use super::holders::{FrameFacts, frame_facts};
use super::layout::{BOLD, DIM, PLAIN, Table, clean, paint, shorten};
use super::process::Shown;
use super::{torch, words};
use crate::analysis::{Basis, Process, Reading, Reconciled, TakenBy, reconcile, taken_by};
use crate::replay::DeviceState;
use crate::symbols::demangle;
use crate::units::{gib, seconds, size};

/// Names of kernels may be thousands of characters long.
const NAME_WIDTH: usize = 60;

/// Of `report --json`: memory that the driver took after calls from one line.
#[derive(Debug, Serialize)]
pub struct TakenFacts {
    pub bytes: u64,
    /// As in `driver_bytes`.
    pub cause: &'static str,
    /// Of the call that took the most of it, as are `name`, `lead` and `caller`.
    pub api: String,
    /// The kernel, variable or file that it was for.
    pub name: Option<String>,
    pub library: Option<String>,
    /// As in `holders`.
    pub lead: Option<FrameFacts>,
    pub caller: Option<FrameFacts>,
}

/// By what it was taken for; what has no name is `unknown`, and may be below 0.
pub fn driver_bytes(sum: &Reconciled) -> BTreeMap<&'static str, i64> {
    let of = |cause: Cause| i64::try_from(sum.driver_bytes[cause as usize]).unwrap_or(i64::MAX);
    let named = Cause::ALL.into_iter().map(|cause| (cause.name(), of(cause)));
    named.chain([("unknown", sum.unknown_bytes())]).collect()
}

pub fn taken_facts(process: &Process, device: &DeviceState, top: usize) -> Vec<TakenFacts> {
    let reading = process.who.as_ref().map(|who| Reading::new(&who.symbols, &process.header));
    let all = taken_by(device, reading.as_ref());
    let facts = |taken: &TakenBy| {
        let said = reading.as_ref().map(|reading| (reading, reading.read(taken.stack)));
        let frame = |at: fn(&crate::analysis::Said) -> Option<usize>| {
            let (reading, said) = said.as_ref()?;
            reading.frame(taken.stack, at(said)).map(frame_facts)
        };
        TakenFacts {
            bytes: taken.bytes,
            cause: taken.cause.name(),
            api: process.definitions.site_api_name(taken.site),
            name: name(process, taken),
            library: said
                .as_ref()
                .and_then(|(reading, said)| reading.library_name(said))
                .map(str::to_string),
            lead: frame(|said| said.lead),
            caller: frame(|said| said.caller),
        }
    };
    all.iter().take(top).map(facts).collect()
}

fn name(process: &Process, taken: &TakenBy) -> Option<String> {
    process.definitions.text(taken.name).map(demangle)
}

fn spoken(cause: Cause, sum: &Reconciled) -> String {
    let what = match cause {
        Cause::Modules => "modules: code of kernels, and its variables",
        Cause::LocalMemory if !sum.causes_told => {
            return "local memory and heaps: larger limits (cuCtxSetLimit)".into();
        }
        Cause::LocalMemory => "local memory: stacks and spilled registers of kernels' threads",
        Cause::Heap => "heap: for kernels that call malloc, and other limits",
        Cause::Streams => "streams and events",
        Cause::Graphs => "graphs, without the memory of their nodes",
        Cause::Sharing => "sharing: peer access, imports, multicast",
        Cause::Context => "contexts, after they were made",
        Cause::Other => "the driver's own, after several calls at once",
    };
    what.into()
}

/// How allocations become what nvidia-smi shows.
pub fn of_device(process: &Process, device: &DeviceState, shown: Shown) -> String {
    let title = |text: &str| format!("\n    {}\n", paint(DIM, text));
    let Some(sum) = reconcile(device) else {
        let mut out = title("from allocations to what nvidia-smi shows");
        if device.context_bytes > 0 {
            out.push_str(&format!("      context {}; ", gib(device.context_bytes)));
        } else {
            out.push_str("      ");
        }
        out.push_str("NVML was not asked or does not know this process\n");
        return out;
    };
    let mut out = match sum.basis {
        Basis::Now => title("from allocations to what nvidia-smi shows"),
        Basis::LastSample => title(&format!(
            "from allocations to what nvidia-smi showed at {} (the contexts ended since)",
            seconds(sum.sampled_ns)
        )),
    };
    let mut table = Table::new(6, "lrl");
    let parts = torch::parts(process, device, shown.moment);
    match parts.filter(|_| sum.basis == Basis::Now) {
        Some(parts) => {
            for (index, (bytes, what)) in parts.into_iter().enumerate() {
                let sign = if index == 0 { "" } else { "+" };
                table.row([sign.into(), gib(bytes), what.into()]);
            }
        }
        None => table.row(["".into(), gib(sum.live_bytes), "live allocations".into()]),
    }
    if sum.managed_bytes > 0 {
        table.row(["-".into(), gib(sum.managed_bytes), "managed: nvidia-smi leaves it out".into()]);
    }
    table.row(["+".into(), gib(sum.context_bytes), "contexts".into()]);
    for cause in Cause::ALL {
        let bytes = sum.driver_bytes[cause as usize];
        if bytes > 0 {
            table.row(["+".into(), gib(bytes), spoken(cause, &sum)]);
        }
    }
    let rest = sum.unknown_bytes();
    let what = match sum.causes_told {
        true => "unattributed: no call was seen to make the driver take it",
        false => "unattributed: kernels, heaps, what libraries took past the driver's calls",
    };
    let sign = if rest < 0 { "-" } else { "+" };
    table.row([sign.into(), gib(rest.unsigned_abs()), what.into()]);
    let ago = process.state.time_ns.saturating_sub(sum.sampled_ns);
    let asked = match sum.basis {
        Basis::Now if ago >= 1_000_000_000 => {
            format!("this process in nvidia-smi (NVML was asked {} earlier)", words::age(ago))
        }
        _ => "this process in nvidia-smi".to_string(),
    };
    table.styled([("=".into(), BOLD), (gib(sum.process_bytes), BOLD), (asked, PLAIN)]);
    if let Some(peak) = device.peak_sample
        && let Some(bytes) = peak.sample.process_bytes
        && bytes > sum.process_bytes
    {
        let text = format!("the highest that was seen, at {}", seconds(peak.time_ns));
        table.styled([("".into(), PLAIN), (gib(bytes), DIM), (text, DIM)]);
    }
    out.push_str(&table.render());
    out.push_str(&takers(process, device, shown.top));
    out
}

/// Who made the driver take it.
fn takers(process: &Process, device: &DeviceState, top: usize) -> String {
    let facts = taken_facts(process, device, top);
    let large: Vec<&TakenFacts> = facts.iter().filter(|taken| taken.bytes >= MIB).collect();
    if large.is_empty() {
        return String::new();
    }
    let mut table = Table::new(4, "lrllll");
    table.head(&["taken by the driver", "bytes", "for", "library", "by", ""]);
    for taken in large {
        let place = taken.lead.as_ref().map(|frame| match frame.line {
            Some(line) => format!("{}:{line}", crate::symbols::base_name(&frame.file)),
            None => shorten(&clean(&frame.function), NAME_WIDTH),
        });
        let name = taken.name.as_deref().map(|name| shorten(&clean(name), NAME_WIDTH));
        let what = [place, name].into_iter().flatten().collect::<Vec<_>>().join("  ");
        table.styled([
            (String::new(), PLAIN),
            (size(taken.bytes), PLAIN),
            (taken.cause.replace('_', " "), PLAIN),
            (clean(taken.library.as_deref().unwrap_or("?")), PLAIN),
            (taken.api.clone(), PLAIN),
            (what, BOLD),
        ]);
    }
    format!("\n{}", table.render())
}
