//! What an inference engine got of a device.

use vramtrace_format::DeviceId;

use super::layout::{Table, WARN, paint, section};
use crate::analysis::Process;
use crate::analysis::engine_use::engine_use;
use crate::units::size;

/// Empty for other programs.
pub(super) fn of_device(process: &Process, id: DeviceId) -> String {
    let Some(found) = engine_use(process, id) else { return String::new() };
    let title = format!("what {} got of the card at the peak", found.engine);
    let mut table = Table::titled(4, "lrd", &[&title]);
    let mut add = |what: &str, bytes: String, of: String| {
        table.row([format!("  {what}"), bytes, of]);
    };
    found.parts.iter().for_each(|part| add(part.part, size(part.bytes), String::new()));
    if found.others_bytes > 0 {
        add("others on the card", size(found.others_bytes), String::new());
    }
    let (unused, of) = (found.unused_bytes, format!("of {}", size(found.limit_bytes)));
    let bytes = size(unused.unsigned_abs());
    match unused < 0 {
        true => add("missing", paint(WARN, &bytes), of),
        false => add("unused", bytes, of),
    }
    section(table.render())
}
