//! The text of `vramtrace whatif`.

use super::layout::{BAD, BOLD, DIM, PLAIN, Table, WARN, paint};
use crate::analysis::whatif::{AtCapacity, NoFit, Origin, Prediction};
use crate::report::shell::quoted;
use crate::units::{clean, count, gib, limit, seconds, several, size};

/// The prediction for one device. `name`: the name of the process.
pub fn text(name: &str, prediction: &Prediction) -> String {
    let mut out = format!(
        "{}  GPU {}  {}  recorded under {}\n",
        paint(BOLD, &clean(name)),
        prediction.ordinal.0,
        several(prediction.allocations, "allocation"),
        clean(prediction.in_force.as_deref().unwrap_or("default"))
    );
    if let Some(oom) = prediction.out_of_memory {
        out.push_str(&format!(
            "{} at {}: a request of {} got nothing; replayed up to it and with it\n",
            paint(BAD, "ended out of memory"),
            seconds(oom.at_ns),
            size(oom.asked_bytes)
        ));
    }
    out.push('\n');
    out.push_str(&table(prediction));
    for setting in &prediction.settings {
        if let Some(why) = &setting.forbidden {
            let text = format!("  unsafe  {}: {}", setting.name, clean(why));
            out.push_str(&format!("{}\n", paint(WARN, &text)));
        }
    }
    let least = prediction.settings.iter().map(|setting| setting.free.peak_allocated).min();
    out.push_str(&format!(
        "\n  Live at the peak: {} at the least, whatever the setting.\n",
        gib(least.unwrap_or(0))
    ));
    if let Some(no_fit) = prediction.no_fit() {
        out.push_str(&format!("  {}\n", paint(BAD, &no_help(&no_fit))));
    }
    match prediction.advice() {
        None if prediction.no_fit().is_some() => {}
        Some(best) if best.name == "default" => {
            out.push_str("  Try it without a setting: unset PYTORCH_CUDA_ALLOC_CONF\n");
        }
        Some(best) => {
            let line = format!("export PYTORCH_CUDA_ALLOC_CONF={}", quoted(&best.name));
            out.push_str(&format!("  Try  {}\n", paint(BOLD, &line)));
        }
        None => out.push_str("  None of these is notably better than the setting in force.\n"),
    }
    for caveat in &prediction.caveats {
        out.push_str(&paint(DIM, &format!("  Note: {caveat}.")));
        out.push('\n');
    }
    out
}

/// Why no setting of the allocator makes the run fit.
fn no_help(no_fit: &NoFit) -> String {
    match no_fit {
        NoFit::NoCapacity => "No setting helps: the request is larger than any device.".to_string(),
        NoFit::Below { capacity, least } => {
            let least = match least {
                Some((bytes, name)) => {
                    format!("; the least that would do is {}, with {}", gib(*bytes), clean(name))
                }
                None => String::new(),
            };
            format!("No setting helps: none of these fits in {}{least}.", limit(capacity.bytes))
        }
    }
}

/// One row per setting, one column per capacity.
fn table(prediction: &Prediction) -> String {
    let capacities = &prediction.capacities;
    let mut table = Table::new(2, &format!("lrrrr{}", "r".repeat(capacities.len())));
    let titles = capacities.iter().map(|capacity| {
        let name = match capacity.origin {
            Origin::Asked => "in",
            Origin::Cap => "in the cap,",
            Origin::Card => "on the card,",
            Origin::Reserved => "in the reserved,",
        };
        format!("{name} {}", limit(capacity.bytes))
    });
    let head = ["setting", "reserved", "unused", "mallocs", "fits in"].map(String::from);
    table.cells(head.into_iter().chain(titles).map(|title| (title, DIM)));
    for setting in &prediction.settings {
        let free = &setting.free;
        let unused = free.peak_reserved.saturating_sub(free.peak_allocated);
        let mark = match (setting.in_force, setting.forbidden.is_some()) {
            (true, _) => " (in force)",
            (_, true) => " (unsafe)",
            _ => "",
        };
        let style = if setting.in_force { BOLD } else { PLAIN };
        let first = [
            (format!("{}{mark}", clean(&setting.name)), style),
            (gib(free.peak_reserved), style),
            (format!("{} %", 100 * unused / free.peak_reserved.max(1)), style),
            (count(free.driver_allocations), style),
            (setting.smallest.map_or("?".into(), gib), style),
        ];
        table.cells(first.into_iter().chain(setting.at.iter().map(verdict)));
    }
    table.render()
}

/// Whether a replay fitted, as a cell of the table.
fn verdict(at: &AtCapacity) -> (String, anstyle::Style) {
    match at.spare_bytes {
        _ if at.too_close => ("too close to say".into(), WARN),
        None if at.for_others => ("no, for others".into(), BAD),
        None => ("no".into(), BAD),
        Some(spare) if at.retries == 0 => (format!("yes, {} to spare", gib(spare)), PLAIN),
        Some(_) => {
            let retries = if at.retries == 1 { "retry" } else { "retries" };
            (format!("yes, {} {retries}", count(at.retries)), PLAIN)
        }
    }
}
