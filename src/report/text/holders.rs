//! The text of `vramtrace holders`, and the tables of holders in other reports.

use std::path::Path;

use vramtrace_format::{ContextId, DeviceId, Header, StackId};

use super::layout::{BOLD, DIM, Table, WARN, and_more, caution, line, paint, percent, section};
use super::process::ReportOptions;
use super::stack::{called_from, frames, lead, place_or_why, words};
use crate::analysis::ranks::MergedHolder;
use crate::analysis::roles::Role;
use crate::analysis::{
    GroupBy, Holder, Holding, Holdings, Level, Moment, NamedHoldings, Process, StackClassifier,
    pool_hint, sum_of, with_cause,
};
use crate::replay::{InUse, Peak};
use crate::report::names;
use crate::report::wording::{self, gpu_name, headline};
use crate::trace::is_this_host;
use crate::units::{clean, count, estimate, seconds, several, size};

/// How holders are grouped and listed.
#[derive(Clone, Copy, Debug, Default)]
pub struct ListingOptions<'w> {
    pub by: GroupBy,
    pub top: usize,
    /// All frames of each stack, and files with their full path.
    pub full: bool,
    /// The moment in words: `at the peak`.
    pub when: &'w str,
}

/// The holders on each device of a process: of `who.live`, by line or by role.
pub fn listing(
    process: &Process,
    who: &NamedHoldings,
    holders: &[Holder],
    how: ListingOptions,
) -> String {
    let mut out = String::new();
    for (id, at_ns) in &who.live.at_ns {
        let here = on(holders, *id);
        if here.is_empty() {
            continue;
        }
        let taken = who.live.held.iter().filter(|(of, _)| of.device == *id && of.cause.is_some());
        let mut driver = Holding::default();
        taken.for_each(|(_, held)| driver.add(*held));
        let allocated = sum_of(here.iter().copied()).saturating_sub(driver.bytes);
        let all = here.iter().fold(0u64, |sum, holder| sum.saturating_add(holder.count));
        let all = all.saturating_sub(driver.count);
        let what = match who.live.level {
            Level::Driver => several(all, "allocation"),
            Level::Tensor => format!("{} blocks and allocations", count(all)),
        };
        let of_device = in_use(process, *id, *at_ns);
        let live = || format!("{} live", size(allocated));
        let bytes = of_device.map_or_else(live, |of| headline(&of));
        out.push_str(&format!("{}: {bytes}, {what}\n", name(*id, *at_ns, how)));
        out.push_str(&table(&here, "", how));
        out.push_str(&overhead(of_device, allocated));
        out.push('\n');
    }
    // Devices of which the bytes at the peak are known, but not the holders.
    for (id, Peak { bytes, time_ns, .. }) in &who.live.not_known {
        let (name, bytes) = (name(*id, *time_ns, how), size(*bytes));
        out.push_str(&format!(
            "{name}: {bytes}; its events are not in the file: who held it is not known\n\n"
        ));
    }
    if out.is_empty() {
        out = format!("no GPU memory was held {}\n", how.when);
    }
    if let Some(sampling) = wording::sampling(&process.state) {
        out.push_str(&line(0, DIM, &sampling));
    }
    out + &problems_of(who, &process.header)
}

fn on(holders: &[Holder], id: DeviceId) -> Vec<&Holder> {
    holders.iter().filter(|holder| holder.device == id).collect()
}

/// `GPU 0, at the peak (1.500 s)`.
fn name(id: DeviceId, at_ns: u64, how: ListingOptions) -> String {
    paint(BOLD, &format!("{}, {} ({})", gpu_name(id), how.when, seconds(at_ns)))
}

/// The memory of the process on a device at a moment, if a report has the same moment.
fn in_use(process: &Process, id: DeviceId, at_ns: u64) -> Option<InUse> {
    let device = process.state.devices.get(&id)?;
    match at_ns {
        at_ns if at_ns == device.peak.offset_ns => Some(device.peak.in_use),
        at_ns if at_ns == process.state.time_ns => Some(device.in_use()),
        _ => None,
    }
}

/// The bytes that the driver held at a moment beyond the requested ones: page rounding, and reserves
/// of pools. The peak in a report includes them.
fn overhead(of_device: Option<InUse>, bytes: u64) -> String {
    /// Fewer bytes than this are not reported.
    const NOTICEABLE: u64 = 1 << 20;
    match of_device.and_then(|of| of.live.checked_sub(bytes)) {
        Some(rest) if rest >= NOTICEABLE => {
            let rest = size(rest);
            line(4, DIM, &format!("and {rest} more: rounding to whole pages, reserves of pools"))
        }
        _ => String::new(),
    }
}

/// One row per holder, or per role.
pub(super) fn table(holders: &[&Holder], title: &str, how: ListingOptions) -> String {
    let rows: Vec<HolderRow> = holders.iter().map(|holder| (*holder, None)).collect();
    rows_table(&rows, title, how)
}

/// One row for each holder of several processes. `named`: what the name of a process is made from, by its number.
pub fn merged_table(
    all: &[MergedHolder],
    named: &[(&Header, &Path)],
    title: &str,
    how: ListingOptions,
) -> String {
    let total = all.iter().map(|merged| merged.bytes).fold(0, u64::saturating_add).max(1);
    let holder = |merged: &MergedHolder| Holder {
        bytes: merged.bytes,
        share: merged.bytes as f64 / total as f64,
        count: merged.count,
        library: merged.library.clone(),
        driver_memory: merged.driver_memory,
        stack: merged.stack.clone(),
        ..Holder::default()
    };
    let who = |MergedHolder { processes: of, .. }: &MergedHolder| {
        let who = match of.len() == named.len() {
            true => "all".to_string(),
            false => names::several(of.iter().map(|held| named[held.process])),
        };
        let most = of.iter().map(|held| held.bytes).max().filter(|_| of.len() > 1);
        [who, most.map_or(String::new(), size)]
    };
    let holders: Vec<Holder> = all.iter().map(holder).collect();
    let rows = holders.iter().zip(all).map(|(holder, merged)| (holder, Some(who(merged))));
    rows_table(&rows.collect::<Vec<_>>(), title, how)
}

/// A holder; of a run also the processes that have it, and the highest number of bytes of one.
type HolderRow<'h> = (&'h Holder, Option<[String; 2]>);

/// The rows, each with its caller and notes on lines below it. The title stands above the bytes: in a separate column
/// it would make the lines too long.
fn rows_table(rows: &[HolderRow], title: &str, how: ListingOptions) -> String {
    let by_role = rows.iter().any(|(holder, _)| holder.role.is_some());
    let [held_by, at_most] = match rows.iter().any(|(_, who)| who.is_some()) {
        true => ["held by", "at most"],
        false => [""; 2],
    };
    let titles = [
        if by_role { title } else { "" },
        if by_role || title.is_empty() { "bytes" } else { title },
        "share",
        if rows.iter().any(|(holder, _)| holder.count > 0) { "count" } else { "" },
        held_by,
        at_most,
        if by_role { "" } else { "library" },
        if by_role || how.by == GroupBy::Library { "the most of it" } else { "" },
    ];
    let mut table = Table::titled(4, if by_role { "Lrrrlrll" } else { "lrrrlrlL" }, &titles);
    // No line holds what is free in PyTorch's cache.
    let is_free = |(holder, _): &&HolderRow| holder.stack.is_free_cache() && !by_role;
    let (free, rows): (Vec<&HolderRow>, Vec<&HolderRow>) = rows.iter().partition(is_free);
    for (holder, who) in rows.iter().take(how.top) {
        let [who, most] = who.clone().unwrap_or_default();
        let place = match holder.role {
            Some(Role::FreeCache) => String::new(),
            _ if on_one_line(holder, how) => {
                with_cause(holder.driver_memory, place_or_why(&holder.stack))
            }
            _ => with_cause(holder.driver_memory, lead(&holder.stack, how.full)),
        };
        let library = clean(holder.library.as_deref().unwrap_or("?"));
        table.row([
            holder.role.map_or(String::new(), |role| role.name().into()),
            estimate(holder.bytes, holder.error_bytes),
            percent(holder.share),
            Some(holder.count).filter(|n| *n > 0).map_or(String::new(), count),
            who,
            most,
            if by_role { String::new() } else { library },
            place,
        ]);
        if !by_role {
            table.under(notes(holder, how));
        }
    }
    let mut out = table.render();
    out.push_str(&and_more(4, rows.iter().skip(how.top).map(|(holder, _)| holder.bytes)));
    for (holder, _) in free {
        let (bytes, share) = (size(holder.bytes), percent(holder.share));
        out.push_str(&format!("    free in cache: {bytes} ({share})\n"));
    }
    out
}

/// Of what the driver took the program's line says more than the function that called it: both stand in the row.
fn on_one_line(holder: &Holder, how: ListingOptions) -> bool {
    holder.driver_memory.is_some() && !how.full
}

/// What stands below the row of a holder.
fn notes(holder: &Holder, how: ListingOptions) -> Vec<String> {
    let full = how.full;
    let noted = |bytes: u64, what: &str| (bytes > 0).then(|| format!("{} {what}", size(bytes)));
    let by = |by| format!("brought back by {}", lead(by, full));
    let notes = [
        called_from(&holder.stack, full).filter(|_| !on_one_line(holder, how)),
        noted(holder.paused_bytes, "more asleep: unmapped, may come back"),
        noted(holder.unmapped_bytes, "of it mapped nowhere"),
        holder.brought_back_by.as_ref().map(by),
    ];
    notes.into_iter().flatten().chain(frames(&holder.stack, full)).collect()
}

/// The moments whose holders a report shows, with titles. The first is the most important.
fn moments<'p>(
    process: &'p Process,
    who: &'p NamedHoldings,
    id: DeviceId,
    moment: Moment,
) -> Vec<(&'static str, &'p Holdings)> {
    let mut all = match moment {
        // The requested moment is the peak itself.
        Moment::Peak => vec![("held at the peak", &who.peak)],
        Moment::AllocatedPeak => vec![("held at the peak of blocks", &who.live)],
        Moment::End => vec![("held at the peak", &who.peak), ("held at the end", &who.live)],
        _ => vec![("held at the peak so far", &who.peak), ("held then", &who.live)],
    };
    if let Some(fatal) = process.fatal().iter().find(|fatal| fatal.oom.device == id) {
        // The memory at the end, after the failure, is less important.
        all.truncate(1);
        all.insert(0, ("held at the failure", &fatal.held));
    }
    all
}

/// The tables of holders of one device. Empty if the holders were not computed. Without `shown.full` the largest holders
/// at one moment, and a line with the roles.
pub(super) fn of_device(process: &Process, id: DeviceId, shown: ReportOptions) -> String {
    let Some(who) = &process.who else { return String::new() };
    let classifier = StackClassifier::new(&who.symbols, &process.header);
    let how = ListingOptions { top: shown.top, ..ListingOptions::default() };
    let roles = who.peak_roles.as_ref();
    let roles = roles.map_or_else(Vec::new, |held| held.holders(&classifier, who.peak.level));
    let roles = on(&roles, id);
    let mut moments = moments(process, who, id, shown.moment);
    if !shown.full {
        // If a time was requested: the holders at that time. Otherwise: at the failure, or at the peak of allocations,
        // except where the driver took so much after it that more is held at the end.
        let last = match shown.moment {
            Moment::At(_) | Moment::OutOfMemory | Moment::Step(_) => true,
            Moment::End if process.fatal().is_empty() => {
                who.live.bytes_on(id) > who.peak.bytes_on(id)
            }
            _ => false,
        };
        moments = vec![moments[if last { moments.len() - 1 } else { 0 }]];
    }
    let mut out = String::new();
    for (title, holdings) in &moments {
        let all = classifier.holders(holdings, GroupBy::Line);
        let here = on(&all, id);
        out.push_str(&section(table(&here, title, how)));
        if shown.full && !here.is_empty() {
            let at_ns = holdings.at_ns.get(&id).copied().unwrap_or(0);
            let allocated = sum_of(here.iter().filter(|of| of.driver_memory.is_none()).copied());
            out.push_str(&overhead(in_use(process, id, at_ns), allocated));
        }
    }
    if !shown.full {
        let part = |of: &&&Holder| of.share >= 0.01;
        let named =
            |of: &Holder| format!("{} {:.0} %", of.role.unwrap_or(Role::Unknown), of.share * 100.0);
        let parts: Vec<String> = roles.iter().filter(part).map(|of| named(of)).collect();
        if !parts.is_empty() && !out.is_empty() {
            out.push_str(&format!("    at the peak for: {}\n", parts.join(", ")));
        }
        return out;
    }
    let every = ListingOptions { top: usize::MAX, ..how };
    out.push_str(&section(table(&roles, "by role at the peak", every)));
    let (title, holdings) = moments[0];
    let libraries = classifier.holders(holdings, GroupBy::Library);
    let libraries = on(&libraries, id);
    let by_library = ListingOptions { by: GroupBy::Library, ..every };
    out.push_str(&section(table(&libraries, &title.replace("held", "by library"), by_library)));
    out.push_str(&unused_contexts(process, &classifier, id));
    let names = libraries.iter().filter_map(|holder| holder.library.as_deref());
    let mut hints: Vec<&str> = names.filter_map(pool_hint).collect();
    hints.sort_unstable();
    hints.dedup();
    hints.iter().for_each(|hint| out.push_str(&line(4, WARN, hint)));
    out
}

/// Warnings about contexts that exist and never held an allocation. Typical causes: worker processes,
/// and ranks that all use the first device once.
fn unused_contexts(process: &Process, classifier: &StackClassifier, id: DeviceId) -> String {
    let used = |context: ContextId| process.definitions.sites().any(|site| site.context == context);
    let here = process.state.contexts.iter().filter(|(_, state)| state.device == id);
    let unused = here.filter(|(context, _)| !used(**context)).map(|(context, state)| {
        let stack = classifier.named(state.stack);
        let by = match (stack.caller().or(stack.lead()), stack.why_no_frames()) {
            (Some(frame), _) => format!(" by {}", words(frame, false)),
            (None, Some(why)) if stack.id != StackId(0) => format!(" ({why})"),
            (None, _) => String::new(),
        };
        let (n, at) = (context.0, seconds(state.created_ns));
        line(4, WARN, &format!("context {n} never held an allocation: made at {at}{by}"))
    });
    unused.collect()
}

/// The files whose symbols could not be read. Printed at the end of a report.
pub(super) fn problems(process: &Process) -> String {
    let who = process.who.as_ref();
    section(who.map_or_else(String::new, |who| problems_of(who, &process.header)))
}

/// The first of these files, and the number of the others.
fn problems_of(who: &NamedHoldings, header: &Header) -> String {
    const SHOWN: usize = 5;
    let all = who.symbols.problems();
    let mut lines: Vec<String> = all.iter().take(SHOWN).map(|problem| clean(problem)).collect();
    if all.len() > SHOWN {
        let rest = several((all.len() - SHOWN) as u64, "more file");
        lines.push(format!("and {rest} without names"));
    }
    if !all.is_empty() && !header.host.is_empty() && !is_this_host(header) {
        let host = clean(&header.host);
        lines.push(format!("recorded on {host}: `vramtrace pack` there adds the names"));
    }
    lines.iter().map(|text| caution(DIM, text)).collect()
}
