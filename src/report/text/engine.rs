//! What an inference engine got of a device, and the arithmetic of its setting.

use vramtrace_format::DeviceId;

use super::layout::{DIM, PLAIN, Table, WARN, paint};
use crate::analysis::Process;
use crate::analysis::engine_use::{EngineUse, SettingOption, engine_use};
use crate::units::{clean, gib};

/// Empty for other programs.
pub(super) fn of_device(process: &Process, id: DeviceId) -> String {
    let Some(found) = engine_use(process, id) else { return String::new() };
    let title = format!("what {} got of the card at the peak", found.engine);
    let mut table = Table::new(4, "lrl");
    table.head(&[title.as_str()]);
    for part in &found.parts {
        table.row([format!("  {}", part.part), gib(part.bytes), String::new()]);
    }
    if found.others_bytes > 0 {
        table.row(["  others on the card".into(), gib(found.others_bytes), String::new()]);
    }
    let unused = found.unused_bytes;
    let (what, style) = match unused < 0 {
        true => ("  missing", WARN),
        false => ("  unused", PLAIN),
    };
    let of = format!("of {}", gib(found.limit_bytes));
    table.styled([(what.into(), PLAIN), (gib(unused.unsigned_abs()), style), (of, DIM)]);
    let mut out = format!("\n{}", table.render());
    for line in arithmetic(&found) {
        out.push_str(&format!("      {line}\n"));
    }
    out
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
