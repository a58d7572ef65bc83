//! Sums of bytes: from live allocations to the figure of nvidia-smi, and on one line.

use vramtrace_format::Cause;
use vramtrace_format::physical::{GIB, MIB};

use super::layout::{BOLD, DIM, Table, line, paint, section};
use super::process::ReportOptions;
use crate::analysis::{Basis, Moment, Process, reconcile, taken_by};
use crate::replay::DeviceState;
use crate::report::wording;
use crate::symbols::base_name;
use crate::units::{clean, gib, seconds, shorten, size};

/// The most characters of a name. Names of kernels may have thousands.
const NAME_WIDTH: usize = 60;

/// The sum for one device: live allocations, contexts, the driver's own allocations, the rest.
pub(super) fn of_device(process: &Process, device: &DeviceState, shown: ReportOptions) -> String {
    let Some(sum) = reconcile(device) else {
        let context = match device.context_bytes {
            0 => String::new(),
            bytes => format!("context {}; ", gib(bytes)),
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
    match parts.cache.filter(|cache| is_known && cache.reserved <= parts.live) {
        Some(cache) => rows.extend([
            ("", parts.allocated(), "tensors".into()),
            ("+", parts.free_in_cache(), "unused in PyTorch's cache".into()),
            ("+", parts.live - cache.reserved, "other allocations".into()),
        ]),
        None => rows.push(("", parts.live, "live allocations".into())),
    }
    if parts.managed > 0 {
        rows.push(("-", parts.managed, "managed: nvidia-smi leaves it out".into()));
    }
    rows.push(("+", parts.contexts, "contexts".into()));
    // Without the calls of the driver only those of cuCtxSetLimit are known.
    let words = |cause: Cause| match cause {
        Cause::LocalMemory if !sum.has_causes => "local memory and heaps (cuCtxSetLimit)".into(),
        cause => format!("driver's {}", cause.words()),
    };
    let causes = Cause::ALL.into_iter().map(|cause| (cause, parts.driver_own[cause as usize]));
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
        table.row([sign.into(), gib(bytes), what]);
    }
    let ago = process.state.time_ns.saturating_sub(sum.sampled_ns);
    let asked = match sum.basis {
        Basis::Now if ago >= 1_000_000_000 => {
            format!(" (NVML was asked {} earlier)", wording::age(ago))
        }
        _ => String::new(),
    };
    let asked = format!("this process in nvidia-smi{asked}");
    table.row([paint(BOLD, "="), paint(BOLD, &gib(sum.process_bytes)), asked]);
    if let Some(peak) = device.peak_sample
        && let Some(bytes) = peak.sample.process_bytes
        && bytes > sum.process_bytes
    {
        let text = format!("the highest that was seen, at {}", seconds(peak.time_ns));
        table.row([String::new(), paint(DIM, &gib(bytes)), paint(DIM, &text)]);
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

/// A sum of bytes, `14.37 GiB` and `allocated 9.69 + contexts 0.51`: the total with its unit, and the parts.
/// The printed figures add up exactly. A part of 0.00 is left out.
pub(super) fn on_one_line(parts: &[(&str, i64)]) -> (String, String) {
    let bytes = parts.iter().map(|(_, bytes)| *bytes).fold(0, i64::saturating_add);
    let unit = if bytes >= GIB as i64 { (GIB, "GiB") } else { (MIB, "MiB") };
    let shown = hundredths(&parts.iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>(), unit.0);
    let total: i64 = shown.iter().sum();
    let figure = |n: i64| format!("{}.{:02}", n.abs() / 100, n.abs() % 100);
    let mut out = String::new();
    for ((what, _), n) in parts.iter().zip(shown).filter(|(_, n)| *n != 0) {
        let sign = match (out.is_empty(), n < 0) {
            (true, false) => "",
            (true, true) => "- ",
            (false, true) => " - ",
            (false, false) => " + ",
        };
        out.push_str(&format!("{sign}{what} {}", figure(n)));
    }
    (format!("{} {}", figure(total), unit.1), out)
}

/// Each part in hundredths of a unit, by the largest remainder method: the results add up to the
/// rounded sum of the parts.
pub(super) fn hundredths(parts: &[i64], unit: u64) -> Vec<i64> {
    let unit = i128::from(unit);
    let scaled = |bytes: i64| i128::from(bytes) * 100;
    let total: i128 = parts.iter().map(|bytes| scaled(*bytes)).sum();
    let mut shown: Vec<i128> = parts.iter().map(|bytes| scaled(*bytes).div_euclid(unit)).collect();
    let missing = (total + unit / 2).div_euclid(unit) - shown.iter().sum::<i128>();
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(scaled(parts[*at]).rem_euclid(unit)));
    for at in order.into_iter().take(missing.max(0) as usize) {
        shown[at] += 1;
    }
    shown.into_iter().map(|n| n as i64).collect()
}
