//! What an inference engine got of a device, and the arithmetic of its setting.

use vramtrace_format::DeviceId;

use super::layout::{DIM, PLAIN, Table, WARN, paint};
use crate::analysis::Process;
use crate::analysis::engine_use::{EngineUse, MARGIN, Setting, SettingOption, engine_use};
use crate::units::{clean, gib};

/// Empty for other programs.
pub(super) fn of_device(process: &Process, id: DeviceId) -> String {
    let Some(found) = engine_use(process, id) else { return String::new() };
    let title = format!("what {} got of the card at the peak", found.engine.name());
    let mut table = Table::new(4, "lrl");
    table.head(&[title.as_str()]);
    for (name, bytes) in &found.parts {
        table.row([format!("  {name}"), gib(*bytes), String::new()]);
    }
    if found.others > 0 {
        table.row(["  others on the card".into(), gib(found.others), String::new()]);
    }
    let (what, style) = match found.unused < 0 {
        true => ("  missing", WARN),
        false => ("  unused", PLAIN),
    };
    let of = format!("of {}", gib(found.limit));
    table.styled([(what.into(), PLAIN), (gib(found.unused.unsigned_abs()), style), (of, DIM)]);
    let mut out = format!("\n{}", table.render());
    for line in arithmetic(&found) {
        out.push_str(&format!("      {line}\n"));
    }
    out
}

fn arithmetic(found: &EngineUse) -> Vec<String> {
    let note = paint(DIM, "(from the trace; not tried on the engine)");
    match &found.setting {
        Setting::NoCache => Vec::new(),
        Setting::NothingFits { missing } => vec![format!(
            "{} even without a KV cache {} are missing, with a margin of {} {note}",
            paint(WARN, "no value fits:"),
            gib(*missing),
            gib(MARGIN)
        )],
        Setting::Fits { kv_bytes, options } => {
            let room =
                format!("a KV cache of {} would leave {} {note}", gib(*kv_bytes), gib(MARGIN));
            let option = |option: &SettingOption| {
                let had = option.had.as_deref().map(|had| format!(", it was {}", clean(had)));
                format!("  {}={}{}", option.name, option.value, had.unwrap_or_default())
            };
            std::iter::once(room).chain(options.iter().map(option)).collect()
        }
    }
}
