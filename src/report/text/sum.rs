//! Sums of bytes: from live allocations to the figure of nvidia-smi, and on one line.

use std::borrow::Cow;

use vramtrace_format::DriverCause;
use vramtrace_format::physical::MIB;

use super::layout::{BOLD, DIM, Table, line, paint, section};
use super::process::ReportOptions;
use crate::analysis::{Basis, Moment, Process, reconcile, taken_by};
use crate::replay::DeviceState;
use crate::report::wording;
use crate::symbols::base_name;
use crate::units::{clean, seconds, shorten, size};

/// Maximum length of a name in characters. Names of kernels may have thousands.
const NAME_WIDTH: usize = 60;

/// The sum for one device: live allocations, contexts, the driver's own allocations, the rest.
pub(super) fn of_device(process: &Process, device: &DeviceState, shown: ReportOptions) -> String {
    let Some(sum) = reconcile(device) else {
        let context = match device.context_bytes {
            0 => String::new(),
            bytes => format!("context {}; ", size(bytes)),
        };
        return format!(
            "\n{}      {context}NVML was not asked or does not know this process\n",
            line(4, DIM, "from allocations to what nvidia-smi shows")
        );
    };
    let parts = &sum.parts;
    let mut rows: Vec<(&str, u64, String)> = Vec::new();
    let is_known = shown.moment != Moment::Peak
        && sum.basis == Basis::Now
        && process.state.live_is_known()
        && device.cache.outside == 0
        && device.cache.reserved > 0;
    match parts
        .cache
        .filter(|cache| is_known && cache.reserved <= parts.live.saturating_sub(parts.managed))
    {
        Some(_) => rows.extend([
            ("", parts.allocated(), "allocated".into()),
            ("+", parts.free_in_cache(), "free in cache".into()),
            ("+", parts.beside_cache(), "other allocations".into()),
        ]),
        None if parts.managed > 0 => rows.extend([
            ("", parts.live, "live allocations".into()),
            ("-", parts.managed, "managed: nvidia-smi leaves it out".into()),
        ]),
        None => rows.push(("", parts.live, "live allocations".into())),
    }
    rows.push(("+", parts.contexts, "context".into()));
    // Without the calls of the driver only those of cuCtxSetLimit are known.
    let words = |cause: DriverCause| match cause {
        DriverCause::LocalMemory if !sum.has_causes => {
            "local memory and heaps (cuCtxSetLimit)".into()
        }
        cause => format!("driver's {}", cause.words()),
    };
    let causes =
        DriverCause::ALL.into_iter().map(|cause| (cause, parts.driver_own[cause as usize]));
    let causes = causes.filter(|(_, bytes)| *bytes > 0);
    rows.extend(causes.map(|(cause, bytes)| ("+", bytes, words(cause))));
    let rest = sum.unknown_bytes();
    let what = match sum.has_causes {
        true => "unattributed: no call was seen to make the driver take it",
        false => "unattributed: kernels, heaps, what libraries took past the driver's calls",
    };
    rows.push((if rest < 0 { "-" } else { "+" }, rest.unsigned_abs(), what.into()));
    let mut table = Table::new(6, "lrl");
    for (sign, bytes, what) in rows {
        table.row([sign.into(), size(bytes), what]);
    }
    let ago = process.state.time_ns.saturating_sub(sum.sampled_ns);
    let asked = match sum.basis {
        Basis::Now if ago >= 1_000_000_000 => {
            format!(" (NVML was asked {} earlier)", wording::age(ago))
        }
        _ => String::new(),
    };
    let asked = format!("this process in nvidia-smi{asked}");
    table.row([paint(BOLD, "="), paint(BOLD, &size(sum.process_bytes)), asked]);
    if let Some(peak) = device.peak_sample
        && let Some(bytes) = peak.sample.process_bytes
        && bytes > sum.process_bytes
    {
        let text = format!("the highest that was seen, at {}", seconds(peak.time_ns));
        table.row([String::new(), paint(DIM, &size(bytes)), paint(DIM, &text)]);
    }
    let title = match sum.basis {
        Basis::Now => "from allocations to what nvidia-smi shows".to_string(),
        Basis::LastSample => format!(
            "from allocations to what nvidia-smi showed at {} (the contexts ended since)",
            seconds(sum.sampled_ns)
        ),
    };
    let takers = takers(process, device, shown.top);
    format!("\n{}{}{takers}", line(4, DIM, &title), table.render())
}

/// The stacks whose calls made the driver allocate memory for itself: at least 1 MiB each, at most
/// `top` rows.
fn takers(process: &Process, device: &DeviceState, top: usize) -> String {
    let names = process.classifier();
    let mut large = taken_by(device, &process.definitions, names.as_ref(), top);
    large.retain(|taken| taken.bytes >= MIB);
    let titles = ["taken by the driver", "for", "library", "by", ""];
    let mut table = Table::titled(4, "rlllL", &titles);
    for taken in large {
        let place = taken.stack.lead().map(|frame| match frame.line {
            Some(line) => format!("{}:{line}", base_name(&frame.file)),
            None => shorten(&clean(&frame.function), NAME_WIDTH),
        });
        let name = taken.needed_for.map(|name| shorten(&clean(&name), NAME_WIDTH));
        let what = [place, name].into_iter().flatten().collect::<Vec<_>>().join("  ");
        let library = clean(taken.library.as_deref().unwrap_or("?"));
        table.row([size(taken.bytes), taken.cause.replace('_', " "), library, taken.api, what]);
    }
    section(table.render())
}

/// The parts of a sum: `allocated 9.69 GiB + context 518.00 MiB`.
pub(super) fn on_one_line<'w>(parts: impl IntoIterator<Item = (Cow<'w, str>, i64)>) -> String {
    let mut out = String::new();
    for (what, bytes) in parts {
        let sign = match (out.is_empty(), bytes < 0) {
            (true, false) => "",
            (true, true) => "- ",
            (false, true) => " - ",
            (false, false) => " + ",
        };
        out.push_str(&format!("{sign}{what} {}", size(bytes.unsigned_abs())));
    }
    out
}
