//! The text of `vramtrace whatif`.

use super::fits::{notes, unsafe_setting};
use super::layout::{BAD, BOLD, PLAIN, Table, WARN, line, paint, section};
use crate::analysis::whatif::{AtCapacity, Capacity, NoFit, Origin, Prediction};
use crate::report::shell::quoted;
use crate::units::{clean, count, limit, seconds, several, size};

/// The prediction for one device. `name`: the name of the process.
pub fn text(name: &str, prediction: &Prediction) -> String {
    let mut out = format!(
        "{}  GPU {}  {}  recorded under {}\n",
        paint(BOLD, &clean(name)),
        prediction.device.0,
        several(prediction.allocations, "allocation"),
        clean(prediction.in_force.as_deref().unwrap_or("default"))
    );
    if let Some(oom) = prediction.out_of_memory {
        out.push_str(&format!(
            "{} at {}: asked for {}, and got nothing; replayed up to it and with it\n",
            paint(BAD, "ended out of memory"),
            seconds(oom.time_ns),
            size(oom.size)
        ));
    }
    out.push_str(&section(table(prediction)));
    for setting in &prediction.settings {
        out.push_str(&unsafe_setting(&setting.name, setting.forbidden.as_deref()));
    }
    let least = prediction.settings.iter().map(|setting| setting.free.peak_allocated).min();
    let least = size(least.unwrap_or(0));
    out.push_str(&format!("\n  Live at the peak: {least} at the least, whatever the setting.\n"));
    let no_fit = prediction.no_fit();
    if let Some(no_fit) = &no_fit {
        out.push_str(&line(2, BAD, &no_help(no_fit)));
    }
    match prediction.advice() {
        None if no_fit.is_some() => {}
        Some(best) if best.name == "default" => {
            out.push_str("  Try it without a setting: unset PYTORCH_CUDA_ALLOC_CONF\n");
        }
        Some(best) => {
            let line = format!("export PYTORCH_CUDA_ALLOC_CONF={}", quoted(&best.name));
            out.push_str(&format!("  Try  {}\n", paint(BOLD, &line)));
        }
        None => out.push_str("  None of these is notably better than the setting in force.\n"),
    }
    out + &notes(&prediction.caveats)
}

/// Why no setting of the allocator makes the run fit.
fn no_help(no_fit: &NoFit) -> String {
    match no_fit {
        NoFit::NoCapacity => "No setting helps: the request is larger than any device.".to_string(),
        NoFit::Below { capacity, least } => {
            let least = least.as_ref().map_or(String::new(), |(bytes, name)| {
                format!("; the least that would do is {}, with {}", size(*bytes), clean(name))
            });
            format!("No setting helps: none of these fits {}{least}.", within(capacity))
        }
    }
}

/// `in the cap, 1500 MiB`.
fn within(capacity: &Capacity) -> String {
    let name = match capacity.origin {
        Origin::Asked => "in",
        Origin::Cap => "in the cap,",
        Origin::Card => "on the card,",
        Origin::Reserved => "in the reserved,",
    };
    format!("{name} {}", limit(capacity.bytes))
}

/// One row per setting, one column per capacity.
fn table(prediction: &Prediction) -> String {
    let capacities = &prediction.capacities;
    let titles: Vec<String> = capacities.iter().map(within).collect();
    let head = ["setting", "reserved", "unused", "mallocs", "fits in"].into_iter();
    let head: Vec<&str> = head.chain(titles.iter().map(String::as_str)).collect();
    let mut table = Table::titled(2, &format!("lrrrr{}", "r".repeat(capacities.len())), &head);
    for setting in &prediction.settings {
        let free = &setting.free;
        let unused = free.peak_reserved.saturating_sub(free.peak_allocated);
        let mark = match (setting.in_force, setting.forbidden.is_some()) {
            (true, _) => " (in force)",
            (_, true) => " (unsafe)",
            _ => "",
        };
        let first = [
            format!("{}{mark}", clean(&setting.name)),
            size(free.peak_reserved),
            format!("{} %", 100 * unused / free.peak_reserved.max(1)),
            count(free.driver_allocations),
            setting.smallest.map_or("?".into(), size),
        ];
        let style = if setting.in_force { BOLD } else { PLAIN };
        let first = first.map(|cell| paint(style, &cell));
        table.row(first.into_iter().chain(setting.at.iter().map(verdict)));
    }
    table.render()
}

/// Whether a replay fitted, as a cell of the table.
fn verdict(at: &AtCapacity) -> String {
    match at.spare_bytes {
        _ if at.too_close => paint(WARN, "too close to say"),
        None if at.for_others => paint(BAD, "no, for others"),
        None => paint(BAD, "no"),
        Some(spare) if at.retries == 0 => format!("yes, {} to spare", size(spare)),
        Some(_) if at.retries == 1 => "yes, 1 retry".into(),
        Some(_) => format!("yes, {} retries", count(at.retries)),
    }
}
