//! The text of `vramtrace holders`, and the tables of holders in other reports.

use std::borrow::Cow;

use vramtrace_format::{ContextId, DeviceId, Header, StackId};

use super::layout::{BOLD, DIM, PLAIN, Table, WARN, and_more, paint};
use super::options::ReportOptions;
use super::stack::{called_from, frames, lead, words};
use crate::analysis::roles::Role;
use crate::analysis::{
    GroupBy, Held, Holder, Holdings, Level, Moment, NamedHoldings, Process, StackClassifier,
    pool_hint, sum_of, with_cause,
};
use crate::replay::{DeviceState, InUse, Peak};
use crate::report::wording::{self, gpu_name, headline};
use crate::symbols::FREE_CACHE_NAME;
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
        let Some(first) = here.first() else { continue };
        let taken = who.live.held.iter().filter(|(of, _)| of.device == *id && of.cause.is_some());
        let mut driver = Held::default();
        taken.for_each(|(_, held)| driver.add(*held));
        let allocated = sum_of(here.iter().copied()).saturating_sub(driver.bytes);
        let all = here.iter().fold(0u64, |sum, holder| sum.saturating_add(holder.count));
        let all = all.saturating_sub(driver.count);
        let what = match who.live.level {
            Level::Driver => several(all, "allocation"),
            Level::Tensor => format!("{} blocks and allocations", count(all)),
        };
        let of_device = in_use(process, *id, *at_ns);
        let bytes = size(of_device.map_or(allocated, |of| of.live));
        let by_driver = match driver.bytes {
            0 => String::new(),
            driver => format!(" and {} taken by the driver", size(driver)),
        };
        let of = match of_device.filter(|of| of.in_nvidia_smi().is_some()) {
            Some(of) => format!(", of {}", headline(&of)),
            None => String::new(),
        };
        out.push_str(&format!("{}: {bytes} in {what}{by_driver}{of}\n", name(*id, *at_ns, how)));
        out.push_str(&match first.role {
            Some(_) => role_table(&here, "", how),
            None => table(&here, "", how),
        });
        out.push_str(&overhead(of_device, allocated));
        out.push_str(&later(process, *id, driver.bytes));
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
    for line in wording::sampling_lines(&process.state) {
        out.push_str(&paint(DIM, &format!("{line}\n")));
    }
    out.push_str(&problems_of(who, &process.header));
    out
}

fn on(holders: &[Holder], id: DeviceId) -> Vec<&Holder> {
    holders.iter().filter(|holder| holder.device == id).collect()
}

/// `GPU 0, at the peak (1.500 s)`.
fn name(id: DeviceId, at_ns: u64, how: ListingOptions) -> String {
    paint(BOLD, &format!("{}, {} ({})", gpu_name(id), how.when, seconds(at_ns)))
}

/// What the driver has taken since the moment of a list: the peak is that of allocations.
fn later(process: &Process, id: DeviceId, then: u64) -> String {
    /// Less than this is not reported, nor is less than was held then.
    const NOTICEABLE: u64 = 16 << 20;
    let held = |of: &DeviceState| {
        of.driver_own.by_cause().iter().fold(0u64, |sum, bytes| sum.saturating_add(*bytes))
    };
    let now = process.state.devices.get(&id).map_or(0, held);
    match now.checked_sub(then) {
        Some(more) if more >= NOTICEABLE.max(then) => {
            let at = seconds(process.state.time_ns);
            let text = format!("    {} more was taken by the driver by {at}: --at end", size(more));
            format!("{}\n", paint(DIM, &text))
        }
        _ => String::new(),
    }
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

pub(super) fn share(holder: &Holder) -> String {
    format!("{:.1} %", holder.share * 100.0)
}

/// One row per role.
fn role_table(roles: &[&Holder], title: &str, how: ListingOptions) -> String {
    let mut table = Table::new(4, "lrrrl");
    table.head(&[title, "bytes", "share", "count", "the most of it"]);
    for holder in roles {
        let role = holder.role.unwrap_or(Role::Unknown);
        let most = match role {
            Role::FreeCache => String::new(),
            _ => lead(&holder.stack, how.full),
        };
        table.styled([
            (role.name().into(), BOLD),
            (estimate(holder.bytes, holder.error_bytes), PLAIN),
            (share(holder), PLAIN),
            (count(holder.count), PLAIN),
            (most, PLAIN),
        ]);
    }
    table.render()
}

/// One row per holder, with its caller and notes on lines below it.
pub(super) fn table(holders: &[&Holder], title: &str, how: ListingOptions) -> String {
    let mut table = Table::new(4, "rrrll");
    let last = if how.by == GroupBy::Library { "the most of it" } else { "" };
    // The title stands above the bytes: in a separate column it would make the lines too long.
    let title = if title.is_empty() { "bytes" } else { title };
    table.head(&[title, "share", "count", "library", last]);
    // No line holds what is free in the cache.
    let (free, holders): (Vec<&Holder>, Vec<&Holder>) =
        holders.iter().partition(|holder| holder.stack.is_free_cache());
    for holder in holders.iter().take(how.top) {
        table.styled([
            (estimate(holder.bytes, holder.error_bytes), PLAIN),
            (share(holder), PLAIN),
            (count(holder.count), PLAIN),
            (clean(holder.library.as_deref().unwrap_or("?")), PLAIN),
            (with_cause(holder.driver_memory, lead(&holder.stack, how.full)), BOLD),
        ]);
        let noted = |bytes: u64, what: &str| (bytes > 0).then(|| format!("{} {what}", size(bytes)));
        let by = |by| format!("brought back by {}", lead(by, how.full));
        let notes = [
            called_from(&holder.stack, how.full),
            noted(holder.paused_bytes, "more asleep: unmapped, may come back"),
            noted(holder.unmapped_bytes, "of it mapped nowhere"),
            holder.brought_back_by.as_ref().map(by),
        ];
        let notes = notes.into_iter().flatten().chain(frames(&holder.stack, how.full));
        notes.for_each(|note| table.under(note));
    }
    let mut out = table.render();
    out.push_str(&and_more("    ", holders.iter().skip(how.top).map(|holder| holder.bytes)));
    for free in free {
        out.push_str(&format!(
            "    free in PyTorch's cache: {} ({})\n",
            size(free.bytes),
            share(free)
        ));
    }
    out
}

/// The bytes that the driver held at a moment beyond the requested ones: page rounding, and reserves
/// of pools. The peak in a report includes them.
fn overhead(of_device: Option<InUse>, bytes: u64) -> String {
    /// Fewer bytes than this are not reported.
    const NOTICEABLE: u64 = 1 << 20;
    match of_device.and_then(|of| of.live.checked_sub(bytes)) {
        Some(rest) if rest >= NOTICEABLE => {
            let rest = size(rest);
            let text = format!("    and {rest} more: rounding to whole pages, reserves of pools");
            format!("{}\n", paint(DIM, &text))
        }
        _ => String::new(),
    }
}

/// The one or two moments whose holders a report shows, with titles. The first is the more important.
fn moments<'p>(
    process: &'p Process,
    who: &'p NamedHoldings,
    id: DeviceId,
    shown: ReportOptions,
) -> [(Option<&'static str>, &'p Holdings); 2] {
    let moments = match shown.moment {
        // The requested moment is the peak itself: one table is enough.
        Moment::Peak => [(Some("held at the peak"), &who.peak), (None, &who.live)],
        Moment::AllocatedPeak => {
            [(Some("held at the peak of blocks"), &who.live), (None, &who.peak)]
        }
        Moment::End => {
            [(Some("held at the peak"), &who.peak), (Some("held at the end"), &who.live)]
        }
        _ => [(Some("held at the peak so far"), &who.peak), (Some("held then"), &who.live)],
    };
    match process.fatal.iter().find(|fatal| fatal.oom.device == id) {
        // The memory at the end, after the failure, is less important.
        Some(fatal) => [(Some("held at the failure"), &fatal.held), moments[0]],
        None => moments,
    }
}

/// The short form of [`of_device`]: the largest holders at one moment, and a line with the roles.
pub(super) fn in_short(process: &Process, id: DeviceId, shown: ReportOptions) -> String {
    let Some(who) = &process.who else { return String::new() };
    let classifier = StackClassifier::new(&who.symbols, &process.header);
    let how = ListingOptions { top: shown.top, ..ListingOptions::default() };
    let all = moments(process, who, id, shown);
    // If a time was requested: the holders at that time. Otherwise: at the failure, or at the peak of allocations,
    // except where the driver took so much after it that more is held at the end.
    let (title, holdings) = match (shown.moment, all) {
        (Moment::At(_) | Moment::OutOfMemory | Moment::Step(_), [_, then]) => then,
        (Moment::End, [(_, peak), end @ (Some(_), live)])
            if process.fatal.is_empty() && live.bytes_on(id) > peak.bytes_on(id) =>
        {
            end
        }
        (_, [first, _]) => first,
    };
    let holders = classifier.holders(holdings, GroupBy::Line);
    let here = on(&holders, id);
    let Some(title) = title.filter(|_| !here.is_empty()) else { return String::new() };
    let part = |of: &&Holder| {
        let percent = of.share * 100.0;
        (percent >= 1.0).then(|| format!("{} {percent:.0} %", of.role.unwrap_or(Role::Unknown)))
    };
    let roles = roles_at_peak(who, &classifier);
    let parts: Vec<String> = on(&roles, id).iter().filter_map(part).collect();
    let roles = match parts.is_empty() {
        true => String::new(),
        false => format!("    at the peak for: {}\n", parts.join(", ")),
    };
    format!("\n{}{roles}", table(&here, title, how))
}

fn roles_at_peak(who: &NamedHoldings, classifier: &StackClassifier) -> Vec<Holder> {
    let roles = who.peak_roles.as_ref();
    roles.map_or_else(Vec::new, |held| held.holders(classifier, who.peak.level))
}

/// The tables of holders of one device. Empty if the holders were not computed.
pub(super) fn of_device(process: &Process, id: DeviceId, shown: ReportOptions) -> String {
    let Some(who) = &process.who else { return String::new() };
    let classifier = StackClassifier::new(&who.symbols, &process.header);
    let mut out = String::new();
    let how = ListingOptions { top: shown.top, ..ListingOptions::default() };
    let mut libraries: Vec<Vec<Holder>> = Vec::new();
    for (title, holdings) in moments(process, who, id, shown) {
        let Some(title) = title else { continue };
        let all = classifier.holders(holdings, GroupBy::Line);
        let here = on(&all, id);
        if !here.is_empty() {
            out.push_str(&format!("\n{}", table(&here, title, how)));
            let at_ns = holdings.at_ns.get(&id).copied().unwrap_or(0);
            let allocated = sum_of(here.iter().filter(|of| of.driver_memory.is_none()).copied());
            out.push_str(&overhead(in_use(process, id, at_ns), allocated));
        }
        let mut of_libraries = classifier.holders(holdings, GroupBy::Library);
        of_libraries.retain(|holder| holder.device == id);
        libraries.push(of_libraries);
    }
    let roles = roles_at_peak(who, &classifier);
    let roles = on(&roles, id);
    if !roles.is_empty() {
        out.push_str(&format!("\n{}", role_table(&roles, "by role at the peak", how)));
    }
    let titles = match process.fatal.iter().any(|fatal| fatal.oom.device == id) {
        true => ["at the failure", "at the peak"],
        false => ["at the peak", "live"],
    };
    let two = who.peak.at_ns.contains_key(&id) && libraries.len() > 1;
    out.push_str(&by_library(&libraries, two.then_some(titles)));
    out.push_str(&unused_contexts(process, &classifier, id));
    let names = libraries.iter().flatten().filter_map(|holder| holder.library.as_deref());
    let mut hints: Vec<&str> = names.filter_map(pool_hint).collect();
    hints.sort_unstable();
    hints.dedup();
    for hint in hints {
        out.push_str(&format!("    {}\n", paint(WARN, hint)));
    }
    out
}

/// The row of a holder in the table by library. Free memory in PyTorch's cache has a row of its own,
/// because no library uses it; so has what the driver took at a library's calls.
fn library_row(holder: &Holder) -> Option<Cow<'_, str>> {
    match holder.driver_memory {
        _ if holder.stack.is_free_cache() => Some(FREE_CACHE_NAME.into()),
        Some(cause) => {
            let library = holder.library.as_deref().unwrap_or("?");
            Some(format!("{library}, {} of the driver", cause.words()).into())
        }
        None => holder.library.as_deref().map(Cow::from),
    }
}

/// Bytes by library. `two`: the titles of the two moments. `None`: there is one moment.
fn by_library(moments: &[Vec<Holder>], two: Option<[&str; 2]>) -> String {
    let mut names: Vec<Option<Cow<str>>> = Vec::new();
    for holder in moments.iter().flatten() {
        let name = library_row(holder);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if names.is_empty() {
        return String::new();
    }
    let mut table = Table::new(4, "lrrr");
    match two {
        Some([first, second]) => table.head(&["by library", first, second, "allocations"]),
        None => table.head(&["by library", "bytes", "", "allocations"]),
    }
    for name in names {
        let of = |index: usize| {
            let moment = moments.get(index)?;
            moment.iter().find(|holder| library_row(holder) == name)
        };
        let bytes = |holder: Option<&Holder>| size(holder.map_or(0, |holder| holder.bytes));
        table.row([
            clean(name.as_deref().unwrap_or("? (the stack does not show it)")),
            bytes(of(0)),
            if two.is_some() { bytes(of(1)) } else { String::new() },
            count(of(0).or(of(1)).map_or(0, |holder| holder.count)),
        ]);
    }
    format!("\n{}", table.render())
}

/// Warnings about contexts that exist and never held an allocation. Typical causes: worker processes,
/// and ranks that all use the first device once.
fn unused_contexts(process: &Process, classifier: &StackClassifier, id: DeviceId) -> String {
    let used = |context: ContextId| process.definitions.sites().any(|site| site.context == context);
    let here = process.state.contexts.iter().filter(|(_, state)| state.device == id);
    let mut out = String::new();
    for (context, state) in here.filter(|(context, _)| !used(**context)) {
        let stack = classifier.named(state.stack);
        let by = match (stack.caller().or(stack.lead()), stack.why_no_frames()) {
            (Some(frame), _) => format!(" by {}", words(frame, false)),
            (None, Some(why)) if stack.id != StackId(0) => format!(" ({why})"),
            (None, _) => String::new(),
        };
        let text = format!(
            "context {} never held an allocation: made at {}{by}",
            context.0,
            seconds(state.created_ns)
        );
        out.push_str(&format!("    {}\n", paint(WARN, &text)));
    }
    out
}

/// The files whose symbols could not be read. Printed at the end of a report.
pub(super) fn problems(process: &Process) -> String {
    process
        .who
        .as_ref()
        .map(|who| problems_of(who, &process.header))
        .filter(|text| !text.is_empty())
        .map_or_else(String::new, |text| format!("\n{text}"))
}

/// The first of these files, and the number of the others.
fn problems_of(who: &NamedHoldings, header: &Header) -> String {
    const SHOWN: usize = 5;
    let all = who.symbols.problems();
    let mut out: String = all
        .iter()
        .take(SHOWN)
        .map(|problem| format!("  {} {}\n", paint(WARN, "!"), paint(DIM, &clean(problem))))
        .collect();
    if all.len() > SHOWN {
        let rest = several((all.len() - SHOWN) as u64, "more file");
        out.push_str(&format!(
            "  {} {}\n",
            paint(WARN, "!"),
            paint(DIM, &format!("and {rest} without names"))
        ));
    }
    if !all.is_empty() && !header.host.is_empty() && !is_this_host(header) {
        let text =
            format!("recorded on {}: `vramtrace pack` there adds the names", clean(&header.host));
        out.push_str(&format!("  {} {}\n", paint(WARN, "!"), paint(DIM, &text)));
    }
    out
}
