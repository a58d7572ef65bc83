//! Sums of bytes: from live allocations to the figure of nvidia-smi, and on one line.

use std::borrow::Cow;

use vramtrace_format::physical::MIB;

use super::layout::{BOLD, DIM, Table, line, paint, section};
use crate::analysis::{Process, taken_by};
use crate::replay::{DeviceState, InUse};
use crate::symbols::base_name;
use crate::units::{clean, seconds, shorten, size};

/// Maximum length of a name in characters. Names of kernels may have thousands.
const NAME_WIDTH: usize = 60;

/// The parts that add up to the headline, without those of 0 B.
pub(super) fn parts(of: &InUse) -> Vec<(Cow<'static, str>, i64)> {
    let number = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let managed = if of.in_nvidia_smi().is_none() { of.managed } else { 0 };
    let mut driver = of.driver_bytes_by_name();
    let unknown = driver.remove("unknown").unwrap_or(0);
    let mut all = vec![
        ("allocated".into(), number(of.allocated())),
        ("free in cache".into(), number(of.free_in_cache())),
        ("other allocations".into(), number(of.beside_cache())),
        ("context".into(), number(of.contexts)),
    ];
    all.extend(driver.into_iter().map(|(cause, bytes)| (cause.replace('_', " ").into(), bytes)));
    all.extend([("unattributed".into(), unknown), ("managed".into(), number(managed))]);
    all.retain(|(_, bytes)| *bytes != 0);
    all
}

/// The sum for one device. `top`: the most rows of what the driver took.
pub(super) fn of_device(process: &Process, device: &DeviceState, top: usize) -> String {
    let title = "from allocations to what nvidia-smi shows";
    let Some(sum) = device.measured() else {
        let why = "NVML was not asked or does not know this process";
        return format!("\n{}      {why}\n", line(4, DIM, title));
    };
    let ended = device.sample.filter(|_| device.contexts == 0 && device.contexts_seen > 0);
    let ended = ended.map(|at| format!(" (at {}: the contexts ended since)", seconds(at.time_ns)));
    let mut table = Table::new(6, "lrl");
    for (what, bytes) in parts(&sum) {
        let sign = if bytes < 0 { "-" } else { "+" };
        table.row([sign.into(), size(bytes.unsigned_abs()), what.into_owned()]);
    }
    let what = "this process in nvidia-smi";
    table.row([paint(BOLD, "="), paint(BOLD, &size(sum.headline())), what.into()]);
    let title = line(4, DIM, &format!("{title}{}", ended.unwrap_or_default()));
    format!("\n{title}{}{}", table.render(), takers(process, device, top))
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
