//! The text of `vramtrace holders`, and the tables of holders in other reports.

use std::borrow::Cow;

use vramtrace_format::{ContextId, DeviceId, Header, StackId};

use super::layout::{BOLD, DIM, PLAIN, Table, WARN, paint, room};
use super::options::ReportOptions;
use crate::analysis::Held as HeldBytes;
use crate::analysis::roles::{self, HeldByRole, Role, RoleHolder};
use crate::analysis::{
    GroupBy, Holder, Holdings, Level, Moment, NamedHoldings, Process, StackClassifier, autograd,
    bytes_on, driver_bytes_on, pool_hint, with_cause,
};
use crate::replay::{DeviceState, InUse, Peak};
use crate::report::wording::{self, gpu_name, headline};
use crate::symbols::{FREE_CACHE, FREE_CACHE_NAME, Frame};
use crate::trace::is_this_host;
use crate::units::{clean, count, estimate, seconds, several, shorten, size};

/// The most characters of a function's name. Names in C++ and Rust may have thousands.
const FUNCTION_WIDTH: usize = 70;

/// How holders are grouped and listed.
#[derive(Clone, Copy, Debug)]
pub struct ListingOptions<'w> {
    pub by: GroupBy,
    pub top: usize,
    /// All frames of each stack, and files with their full path.
    pub full: bool,
    /// The moment in words: `at the peak`.
    pub when: &'w str,
}

/// The holders on each device of a process.
pub fn listing(
    process: &Process,
    who: &NamedHoldings,
    holdings: &Holdings,
    how: ListingOptions,
) -> String {
    let classifier = StackClassifier::new(&who.symbols, &process.header);
    let all = classifier.holders(holdings, how.by);
    let mut out = String::new();
    for (id, at_ns) in &holdings.at_ns {
        let here: Vec<&Holder> = all.iter().filter(|holder| holder.device == *id).collect();
        if here.is_empty() {
            continue;
        }
        let (bytes, driver) = (bytes_on(&all, *id), driver_bytes_on(&all, *id));
        let allocated = here.iter().filter(|holder| holder.cause.is_none());
        let allocations = allocated.map(|holder| holder.count).sum();
        let of_device = in_use(process, *id, *at_ns);
        let held = Held { bytes: bytes - driver, allocations, level: holdings.level, driver };
        out.push_str(&heading(*id, *at_ns, held, of_device, how.when));
        out.push_str(&table(&classifier, &here, bytes, "", how));
        out.push_str(&overhead(of_device, bytes - driver));
        out.push_str(&later(process, *id, driver));
        out.push('\n');
    }
    out.push_str(&without_holders(holdings, how.when));
    if out.is_empty() {
        out = format!("no GPU memory was held {}\n", how.when);
    }
    for line in wording::sampling_lines(&process.state) {
        out.push_str(&paint(DIM, &format!("{line}\n")));
    }
    out.push_str(&problems_of(who, &process.header));
    out
}

/// What the rows of a table have together.
#[derive(Clone, Copy)]
struct Held {
    /// Without what the driver took.
    bytes: u64,
    allocations: u64,
    level: Level,
    /// What the driver took for itself.
    driver: u64,
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

/// Device, moment, bytes and number of allocations, and what nvidia-smi showed.
fn heading(id: DeviceId, at_ns: u64, held: Held, of_device: Option<InUse>, when: &str) -> String {
    let name = paint(BOLD, &format!("{}, {when} ({})", gpu_name(id), seconds(at_ns)));
    let what = match held.level {
        Level::Driver => several(held.allocations, "allocation"),
        Level::Tensor => format!("{} blocks and allocations", count(held.allocations)),
    };
    let bytes = size(of_device.map_or(held.bytes, |of| of.live));
    let driver = match held.driver {
        0 => String::new(),
        driver => format!(" and {} taken by the driver", size(driver)),
    };
    let of = match of_device.filter(|of| of.in_nvidia_smi().is_some()) {
        Some(of) => format!(", of {}", headline(&of)),
        None => String::new(),
    };
    format!("{name}: {bytes} in {what}{driver}{of}\n")
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

/// As [`listing`], by role: weights, activations and so on.
pub fn listing_by_role(
    process: &Process,
    who: &NamedHoldings,
    roles: &HeldByRole,
    how: ListingOptions,
) -> String {
    let classifier = StackClassifier::new(&who.symbols, &process.header);
    let level = who.live.level;
    let all = roles::holders(&classifier, roles, level);
    let mut out = String::new();
    for (id, at_ns) in &who.live.at_ns {
        let here: Vec<&RoleHolder> = all.iter().filter(|of| of.holder.device == *id).collect();
        if here.is_empty() {
            continue;
        }
        let bytes = roles.bytes_on(*id);
        let driver = driver_held(&who.live, *id);
        let allocations = here.iter().map(|of| of.holder.count).sum::<u64>() - driver.count;
        let of_device = in_use(process, *id, *at_ns);
        let allocated = bytes - driver.bytes;
        let held = Held { bytes: allocated, allocations, level, driver: driver.bytes };
        out.push_str(&heading(*id, *at_ns, held, of_device, how.when));
        out.push_str(&role_table(&classifier, &here, bytes, "", how));
        out.push_str(&overhead(of_device, allocated));
        out.push('\n');
    }
    out.push_str(&without_holders(&who.live, how.when));
    if out.is_empty() {
        out = format!("no GPU memory was held {}\n", how.when);
    }
    for line in wording::sampling_lines(&process.state) {
        out.push_str(&paint(DIM, &format!("{line}\n")));
    }
    out.push_str(&problems_of(who, &process.header));
    out
}

/// The sum of what the driver took on a device.
fn driver_held(holdings: &Holdings, id: DeviceId) -> HeldBytes {
    let mut sum = HeldBytes::default();
    holdings
        .driver
        .iter()
        .filter(|((device, ..), _)| *device == id)
        .for_each(|(_, held)| sum.add(*held));
    sum
}

/// One row per role.
fn role_table(
    classifier: &StackClassifier,
    roles: &[&RoleHolder],
    total: u64,
    title: &str,
    how: ListingOptions,
) -> String {
    let mut table = Table::new(4, "lrrrl");
    table.head(&[title, "bytes", "share", "count", "the most of it"]);
    for RoleHolder { role, holder } in roles {
        let lead = match classifier.frame(holder.stack, holder.lead) {
            Some(frame) => lead_words(classifier, holder.stack, frame, how),
            None => classifier.symbols.why_empty(holder.stack).to_string(),
        };
        table.styled([
            (role.name().into(), BOLD),
            (estimate(holder.bytes, holder.error), PLAIN),
            (format!("{:.1} %", holder.bytes as f64 * 100.0 / total.max(1) as f64), PLAIN),
            (count(holder.count), PLAIN),
            (if *role == Role::FreeCache { String::new() } else { lead }, PLAIN),
        ]);
    }
    table.render()
}

/// Lines for devices of which the bytes at the peak are known, but not the holders.
fn without_holders(holdings: &Holdings, when: &str) -> String {
    let line = |(id, peak): (&DeviceId, &Peak)| {
        let name = paint(BOLD, &format!("{}, {when} ({})", gpu_name(*id), seconds(peak.time_ns)));
        let bytes = size(peak.bytes);
        format!("{name}: {bytes}; its events are not in the file: who held it is not known\n\n")
    };
    holdings.not_known.iter().map(line).collect()
}

/// One row per holder, with its caller and notes on lines below it. `total`: 100 % of the shares.
pub(super) fn table(
    classifier: &StackClassifier,
    holders: &[&Holder],
    total: u64,
    title: &str,
    how: ListingOptions,
) -> String {
    let mut table = Table::new(4, "rrrll");
    let last = if how.by == GroupBy::Library { "the most of it" } else { "" };
    // The title stands above the bytes: in a separate column it would make the lines too long.
    let title = if title.is_empty() { "bytes" } else { title };
    table.head(&[title, "share", "count", "library", last]);
    let share = |bytes: u64| format!("{:.1} %", bytes as f64 * 100.0 / total.max(1) as f64);
    let in_cache = holders.iter().find(|holder| holder.stack == FREE_CACHE);
    // No line holds what is free in the cache.
    let holders: Vec<&Holder> =
        holders.iter().filter(|holder| holder.stack != FREE_CACHE).copied().collect();
    for holder in holders.iter().take(how.top) {
        let share = share(holder.bytes);
        let lead = match classifier.frame(holder.stack, holder.lead) {
            Some(frame) => lead_words(classifier, holder.stack, frame, how),
            None => classifier.symbols.why_empty(holder.stack).to_string(),
        };
        table.styled([
            (estimate(holder.bytes, holder.error), PLAIN),
            (share, PLAIN),
            (count(holder.count), PLAIN),
            (clean(holder.library.as_deref().unwrap_or("?")), PLAIN),
            (with_cause(holder.cause, lead), BOLD),
        ]);
        let mut under = |text: String| {
            let empty = || (String::new(), PLAIN);
            table.styled([empty(), empty(), empty(), empty(), (text, DIM)]);
        };
        if let Some(caller) = classifier.frame(holder.stack, holder.caller) {
            under(format!("called from {}", words(caller, how)));
        }
        if holder.paused > 0 {
            under(format!("{} more asleep: unmapped, may come back", size(holder.paused)));
        }
        if holder.unmapped > 0 {
            under(format!("{} of it mapped nowhere", size(holder.unmapped)));
        }
        if let Some(by) = holder.brought_back_by
            && let Some(frame) = classifier.frame(by, classifier.roles(by).lead)
        {
            under(format!("brought back by {}", lead_words(classifier, by, frame, how)));
        }
        if how.full {
            for frame in classifier.symbols.stack(holder.stack) {
                under(format!("  {}", listed(frame, how)));
            }
            if let Some(forward) = classifier.symbols.forward_of(holder.stack) {
                under("forward operation:".to_string());
                for frame in classifier.symbols.stack(forward) {
                    under(format!("  {}", listed(frame, how)));
                }
            }
        }
    }
    let mut out = table.render();
    if holders.len() > how.top {
        let rest = &holders[how.top..];
        let bytes = rest.iter().map(|holder| holder.bytes).fold(0, u64::saturating_add);
        let text = format!("    and {} more, {} together", count(rest.len() as u64), size(bytes));
        out.push_str(&paint(DIM, &text));
        out.push('\n');
    }
    if let Some(free) = in_cache {
        let text =
            format!("    free in PyTorch's cache: {} ({})", size(free.bytes), share(free.bytes));
        out.push_str(&format!("{text}\n"));
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

/// The frame that stands for a holder with this stack, with its forward operation in PyTorch's backward pass.
pub(super) fn lead_words(
    classifier: &StackClassifier,
    stack: StackId,
    lead: &Frame,
    how: ListingOptions,
) -> String {
    match classifier.forward_line(stack) {
        Some(line) => clean(&autograd::with_forward(&lead.function, &line)),
        None => words(lead, how),
    }
}

/// The frame that stands for a holder: `train.py:41 main`; `cublasCreate_v2 in libcublas.so.12` if no source file is
/// known.
pub(super) fn words(frame: &Frame, how: ListingOptions) -> String {
    match autograd::holder_name(&frame.function) {
        name if name == autograd::NO_LINE => name.into_owned(),
        _ => listed(frame, how),
    }
}

/// A frame in a list of a stack's frames.
pub(super) fn listed(frame: &Frame, how: ListingOptions) -> String {
    // A frame is indented by 10 characters at most.
    let most = FUNCTION_WIDTH.min(room(10));
    let function = shorten(&clean(&autograd::display_name(&frame.function)), most);
    let place = if how.full { frame.full_place() } else { frame.place() };
    match (place, frame.library_name()) {
        (Some(place), _) => format!("{} {function}", clean(&place)),
        (None, Some(library)) if !frame.function.starts_with(library) => {
            format!("{function} in {}", clean(library))
        }
        (None, _) => function,
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
    let how = ListingOptions { by: GroupBy::Line, top: shown.top, full: false, when: "" };
    let all = moments(process, who, id, shown);
    // If a time was requested: the holders at that time. Otherwise: at the failure, or at the peak of allocations,
    // except where the driver took so much after it that more is held at the end.
    let bytes = |holdings: &Holdings| bytes_of(holdings, id);
    let (title, holdings) = match (shown.moment, all) {
        (Moment::At(_) | Moment::OutOfMemory | Moment::Step(_), [_, then]) => then,
        (Moment::End, [(_, peak), end @ (Some(_), live)])
            if process.fatal.is_empty() && bytes(live) > bytes(peak) =>
        {
            end
        }
        (_, [first, _]) => first,
    };
    let Some(title) = title else { return String::new() };
    let holders = classifier.holders(holdings, GroupBy::Line);
    let here: Vec<&Holder> = holders.iter().filter(|holder| holder.device == id).collect();
    if here.is_empty() {
        return String::new();
    }
    let table = table(&classifier, &here, bytes_on(&holders, id), title, how);
    format!("\n{table}{}", roles_in_short(who, &classifier, id))
}

/// All that is held on a device.
fn bytes_of(holdings: &Holdings, id: DeviceId) -> u64 {
    let here = holdings.all().filter(|(device, ..)| *device == id);
    here.map(|(.., held)| held.bytes).fold(0, u64::saturating_add)
}

/// `at the peak for: activations 50 %, weights 3 %`.
fn roles_in_short(who: &NamedHoldings, classifier: &StackClassifier, id: DeviceId) -> String {
    let Some(roles) = &who.peak_roles else { return String::new() };
    let all = roles::holders(classifier, roles, who.peak.level);
    let total = roles.bytes_on(id).max(1);
    let part = |of: &RoleHolder| {
        let percent = of.holder.bytes as f64 * 100.0 / total as f64;
        (percent >= 1.0).then(|| format!("{} {percent:.0} %", of.role))
    };
    let here = all.iter().filter(|of| of.holder.device == id);
    let parts: Vec<String> = here.filter_map(part).collect();
    match parts.is_empty() {
        true => String::new(),
        false => format!("    at the peak for: {}\n", parts.join(", ")),
    }
}

/// The tables of holders of one device. Empty if the holders were not computed.
pub(super) fn of_device(process: &Process, id: DeviceId, shown: ReportOptions) -> String {
    let Some(who) = &process.who else { return String::new() };
    let classifier = StackClassifier::new(&who.symbols, &process.header);
    let mut out = String::new();
    let how = ListingOptions { by: GroupBy::Line, top: shown.top, full: false, when: "" };
    let peak = who.peak.at_ns.get(&id).copied();
    let mut libraries = Vec::new();
    let fatal = process.fatal.iter().find(|fatal| fatal.oom.device == id);
    for (title, holdings) in moments(process, who, id, shown) {
        let Some(title) = title else { continue };
        let all = classifier.holders(holdings, GroupBy::Line);
        let here: Vec<&Holder> = all.iter().filter(|holder| holder.device == id).collect();
        if !here.is_empty() {
            let bytes = bytes_on(&all, id);
            out.push_str(&format!("\n{}", table(&classifier, &here, bytes, title, how)));
            let at_ns = holdings.at_ns.get(&id).copied().unwrap_or(0);
            let allocated = bytes - driver_bytes_on(&all, id);
            out.push_str(&overhead(in_use(process, id, at_ns), allocated));
        }
        let of_libraries = classifier.holders(holdings, GroupBy::Library);
        libraries.push(of_libraries.into_iter().filter(|holder| holder.device == id).collect());
    }
    let titles = match fatal {
        Some(_) => ["at the failure", "at the peak"],
        None => ["at the peak", "live"],
    };
    let two = peak.is_some() && libraries.len() > 1;
    if let Some(roles) = &who.peak_roles {
        let all = roles::holders(&classifier, roles, who.peak.level);
        let here: Vec<&RoleHolder> = all.iter().filter(|of| of.holder.device == id).collect();
        if !here.is_empty() {
            let title = "by role at the peak";
            let table = role_table(&classifier, &here, roles.bytes_on(id), title, how);
            out.push_str(&format!("\n{table}"));
        }
    }
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
    match (holder.stack, holder.cause) {
        (FREE_CACHE, _) => Some(FREE_CACHE_NAME.into()),
        (_, Some(cause)) => {
            let library = holder.library.as_deref().unwrap_or("?");
            Some(format!("{library}, {} of the driver", cause.words()).into())
        }
        _ => holder.library.as_deref().map(Cow::from),
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
        let roles = classifier.roles(state.stack);
        let how = ListingOptions { by: GroupBy::Line, top: 1, full: false, when: "" };
        let by = match classifier.frame(state.stack, roles.caller.or(roles.lead)) {
            Some(frame) => format!(" by {}", words(frame, how)),
            None if state.stack == StackId(0) => String::new(),
            None => format!(" ({})", classifier.symbols.why_empty(state.stack)),
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
