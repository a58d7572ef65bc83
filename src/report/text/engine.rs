//! What an inference engine got of a device.

use vramtrace_format::DeviceId;

use super::layout::{Table, WARN, paint_if, section};
use crate::analysis::Process;
use crate::analysis::engine_use::engine_use;
use crate::units::size;

/// `--gpu-memory-utilization 0.40 x 79.18 GiB = 31.67 GiB, 28.50 GiB of it for the KV cache`. Where the command line does not
/// have the option, what the process took, in its place.
pub fn setting(process: &Process, id: DeviceId) -> Option<String> {
    let of = engine_use(process, id)?.setting?;
    let total = process.definitions.device(id)?.total_bytes;
    let [card, budget, cache] = [total, of.budget_bytes, of.kv_cache_bytes].map(size);
    let asked = format!("{:.2} x {card} = {budget}", of.share);
    if let Some(free) = of.too_little_free_bytes {
        let most = (free as f64 / total as f64 * 100.0).floor() / 100.0;
        let asked = if of.given { format!(", not {asked}") } else { "".into() };
        let free = format!("{} of {card} were free at its start{asked}", size(free));
        return Some(format!("{} of at most {most:.2}: {free}", of.option));
    }
    let about = if of.given { "" } else { "is not known: it took " };
    Some(format!("{} {about}{asked}, {cache} of it for the KV cache", of.option))
}

/// Empty for other programs.
pub(super) fn of_device(process: &Process, id: DeviceId) -> String {
    let Some(found) = engine_use(process, id) else { return String::new() };
    let title = format!("what {} got of the card at the peak", found.engine);
    let mut table = Table::titled(4, "lrd", &[&title]);
    let parts = found.parts.iter().map(|part| (part.part, part.bytes));
    for (what, bytes) in parts.chain([("others on the card", found.others_bytes)]) {
        table.row([format!("  {what}"), size(bytes)]);
    }
    let what = if found.unused_bytes < 0 { "  missing" } else { "  unused" };
    let bytes =
        paint_if(u64::from(found.unused_bytes < 0), WARN, size(found.unused_bytes.unsigned_abs()));
    table.row([what.into(), bytes, format!("of {}", size(found.limit_bytes))]);
    section(table.render())
}
