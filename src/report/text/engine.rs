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
    let about = if of.given { "" } else { "is not known: it took " };
    let card = process.definitions.device(id)?.total_bytes;
    let [card, budget, cache] = [card, of.budget_bytes, of.kv_cache_bytes].map(size);
    let of_card = format!("{} {about}{:.2} x {card} = {budget}", of.option, of.share);
    Some(format!("{of_card}, {cache} of it for the KV cache"))
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
