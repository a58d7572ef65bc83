//! What an inference engine got of a device, and the arithmetic of its setting.

use vramtrace_format::DeviceId;

use super::layout::{DIM, Table, WARN, paint, section};
use crate::analysis::Process;
use crate::analysis::engine_use::{EngineUse, SettingOption, engine_use};
use crate::units::{clean, gib};

/// Empty for other programs.
pub(super) fn of_device(process: &Process, id: DeviceId) -> String {
    let Some(found) = engine_use(process, id) else { return String::new() };
    let title = format!("what {} got of the card at the peak", found.engine);
    let mut table = Table::titled(4, "lrd", &[&title]);
    let mut add = |what: &str, bytes: String, of: String| {
        table.row([format!("  {what}"), bytes, of]);
    };
    found.parts.iter().for_each(|part| add(part.part, gib(part.bytes), String::new()));
    if found.others_bytes > 0 {
        add("others on the card", gib(found.others_bytes), String::new());
    }
    let (unused, of) = (found.unused_bytes, format!("of {}", gib(found.limit_bytes)));
    let bytes = gib(unused.unsigned_abs());
    match unused < 0 {
        true => add("missing", paint(WARN, &bytes), of),
        false => add("unused", bytes, of),
    }
    let arithmetic = arithmetic(&found).into_iter().map(|line| format!("      {line}\n"));
    section(table.render()) + &arithmetic.collect::<String>()
}

fn arithmetic(found: &EngineUse) -> Vec<String> {
    let note = paint(DIM, "(from the trace; not tried on the engine)");
    let (setting, margin) = (&found.setting, gib(found.margin_bytes));
    if let Some(missing) = setting.no_value_fits_missing_bytes {
        let none = paint(WARN, "no value fits:");
        let missing = gib(missing);
        return vec![format!(
            "{none} even without a KV cache {missing} are missing, with a margin of {margin} {note}"
        )];
    }
    let room = setting
        .kv_cache_bytes
        .map(|bytes| format!("a KV cache of {} would leave {margin} {note}", gib(bytes)));
    let option = |option: &SettingOption| {
        let had = option.had.as_deref().map(|had| format!(", it was {}", clean(had)));
        format!("  {}={}{}", option.name, option.value, had.unwrap_or_default())
    };
    room.into_iter().chain(setting.options.iter().map(option)).collect()
}
