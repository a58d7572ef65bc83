//! What an inference engine got of a device.

use vramtrace_format::DeviceId;

use super::layout::{Table, WARN, paint_if, section};
use crate::analysis::Process;
use crate::analysis::engine_use::engine_use;
use crate::units::size;

/// The option of vLLM that sizes its cache of keys and values: a share of the card for all of the process.
const UTILIZATION: &str = "--gpu-memory-utilization";

/// `--gpu-memory-utilization 0.40 x 79.18 GiB = 31.67 GiB, 28.50 GiB of it for the KV cache`. Where the command line does not
/// have the option, what the process took, in its place.
pub fn setting(process: &Process, id: DeviceId) -> Option<String> {
    let found = engine_use(process, id).filter(|found| found.engine == "vLLM")?;
    let cache = size(found.parts.iter().find(|part| part.part == "KV cache")?.bytes);
    let card = process.definitions.device(id)?.total_bytes;
    let took = process.state.devices.get(&id)?.peak.in_use.headline() as f64 / card as f64;
    let mut words = process.header.command.iter().flat_map(|word| word.split('='));
    let option = words.find(|word| word.replace('_', "-") == UTILIZATION);
    let given = option.and_then(|_| words.next()?.parse().ok());
    let share: f64 = given.or(process.fatal().is_empty().then_some(took))?;
    let about = if given.is_none() { "is not known: it took " } else { "" };
    let budget = size((card as f64 * share) as u64);
    let of_card = format!("{about}{share:.2} x {} = {budget}", size(card));
    Some(format!("{UTILIZATION} {of_card}, {cache} of it for the KV cache"))
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
