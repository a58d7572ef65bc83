//! The sum from live allocations to the figure of nvidia-smi.

use vramtrace_format::Cause;
use vramtrace_format::physical::MIB;

use super::layout::{BOLD, DIM, PLAIN, Table, paint};
use super::options::ReportOptions;
use crate::analysis::{Basis, Moment, Process, Reconciled, reconcile, taken_by};
use crate::replay::DeviceState;
use crate::report::wording;
use crate::symbols::base_name;
use crate::units::{clean, gib, seconds, shorten, size};

/// The most characters of a name. Names of kernels may have thousands.
const NAME_WIDTH: usize = 60;

/// What the driver allocated memory for, as text of a row.
fn cause_text(cause: Cause, sum: &Reconciled) -> String {
    let what = match cause {
        Cause::Modules => "modules: code of kernels, and its variables",
        Cause::LocalMemory if !sum.has_causes => {
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

/// The sum for one device: live allocations, contexts, the driver's own allocations, the rest.
pub(super) fn of_device(process: &Process, device: &DeviceState, shown: ReportOptions) -> String {
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
    let parts = &sum.parts;
    let is_known = shown.moment != Moment::Peak
        && sum.basis == Basis::Now
        && process.state.live_is_known()
        && device.cache.outside == 0
        && device.cache.reserved > 0;
    match parts.cache.filter(|cache| is_known && cache.reserved <= parts.live) {
        Some(cache) => {
            table.row(["".into(), gib(parts.allocated()), "tensors".into()]);
            let unused = gib(parts.free_in_cache());
            table.row(["+".into(), unused, "unused in PyTorch's cache".into()]);
            let others = gib(parts.live - cache.reserved);
            table.row(["+".into(), others, "other allocations".into()]);
        }
        None => table.row(["".into(), gib(parts.live), "live allocations".into()]),
    }
    if parts.managed > 0 {
        table.row(["-".into(), gib(parts.managed), "managed: nvidia-smi leaves it out".into()]);
    }
    table.row(["+".into(), gib(parts.contexts), "contexts".into()]);
    for cause in Cause::ALL {
        let bytes = parts.driver_own[cause as usize];
        if bytes > 0 {
            table.row(["+".into(), gib(bytes), cause_text(cause, &sum)]);
        }
    }
    let rest = sum.unknown_bytes();
    let what = match sum.has_causes {
        true => "unattributed: no call was seen to make the driver take it",
        false => "unattributed: kernels, heaps, what libraries took past the driver's calls",
    };
    let sign = if rest < 0 { "-" } else { "+" };
    table.row([sign.into(), gib(rest.unsigned_abs()), what.into()]);
    let ago = process.state.time_ns.saturating_sub(sum.sampled_ns);
    let asked = match sum.basis {
        Basis::Now if ago >= 1_000_000_000 => {
            format!("this process in nvidia-smi (NVML was asked {} earlier)", wording::age(ago))
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

/// The stacks whose calls made the driver allocate memory for itself: at least 1 MiB each, at most
/// `top` rows.
fn takers(process: &Process, device: &DeviceState, top: usize) -> String {
    let names = process.classifier();
    let mut large = taken_by(device, &process.definitions, names.as_ref(), top);
    large.retain(|taken| taken.bytes >= MIB);
    if large.is_empty() {
        return String::new();
    }
    let mut table = Table::new(4, "lrllll");
    table.head(&["taken by the driver", "bytes", "for", "library", "by", ""]);
    for taken in large {
        let place = taken.line.lead.map(|frame| match frame.line {
            Some(line) => format!("{}:{line}", base_name(&frame.file)),
            None => shorten(&clean(&frame.function), NAME_WIDTH),
        });
        let name = taken.name.map(|name| shorten(&clean(&name), NAME_WIDTH));
        let what = [place, name].into_iter().flatten().collect::<Vec<_>>().join("  ");
        table.styled([
            (String::new(), PLAIN),
            (size(taken.bytes), PLAIN),
            (taken.cause.replace('_', " "), PLAIN),
            (clean(taken.library.as_deref().unwrap_or("?")), PLAIN),
            (taken.api, PLAIN),
            (what, BOLD),
        ]);
    }
    format!("\n{}", table.render())
}
