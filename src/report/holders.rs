//! Who holds memory, for people and for programs.

use serde::Serialize;
use vramtrace_format::{ContextId, DeviceId, StackId};

use super::layout::{BOLD, DIM, PLAIN, Table, WARN, clean, count, paint, several, shorten};
use super::process::Shown;
use crate::analysis::{
    By, Holder, Holdings, Level, Moment, Process, Reading, Who, autograd, pool_hint,
};
use crate::symbols::{FREE_CACHE, FREE_CACHE_NAME, Frame, Language};
use crate::units::{seconds, size};

pub const SCHEMA: &str = "vramtrace.holders/1";

/// Names of C++ and Rust functions may be thousands of characters long.
const FUNCTION_WIDTH: usize = 70;

/// `vramtrace.holders/1`. Keys may be added, none is renamed or removed.
#[derive(Debug, Serialize)]
pub struct Holders {
    pub schema: &'static str,
    pub at: At,
    /// `driver`, or `tensor`: blocks of PyTorch's cache in place of its segments.
    pub level: &'static str,
    /// Largest first.
    pub holders: Vec<HolderFacts>,
    /// Libraries that gave no names, and why.
    pub problems: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct At {
    /// `peak`, `end` or `time`.
    pub label: &'static str,
    /// Since the start of the trace; null where devices or processes have moments of their own.
    pub seconds: Option<f64>,
}

#[derive(Debug, Serialize)]
pub struct HolderFacts {
    pub bytes: u64,
    pub count: u64,
    /// Of what is held on the device, 0 to 1.
    pub share: f64,
    /// Ordinal as the process saw it; null: not known.
    pub device: Option<u8>,
    pub library: Option<String>,
    /// Different stacks that are part of it; the frames are those of the largest.
    pub stacks: u64,
    /// Innermost first.
    pub frames: Vec<FrameFacts>,
    /// Places in `frames`: the innermost frame outside of frameworks, and the next one further out
    /// of the program's own tree, in another function.
    pub lead: Option<usize>,
    pub caller: Option<usize>,
    /// Who it is where no line of the program is known: a step of backward, PyTorch's free cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub pid: u32,
    pub rank: Option<u32>,
    /// Why there are no frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_frames: Option<&'static str>,
}

#[derive(Debug, Serialize)]
pub struct FrameFacts {
    pub language: Language,
    pub function: String,
    pub file: String,
    pub line: Option<u32>,
    pub library: Option<String>,
}

/// Of one device, or of all.
pub fn facts(
    process: &Process,
    who: &Who,
    holdings: &Holdings,
    device: Option<DeviceId>,
    top: usize,
) -> Vec<HolderFacts> {
    facts_by(process, who, holdings, device, By::Line, top)
}

pub fn facts_by(
    process: &Process,
    who: &Who,
    holdings: &Holdings,
    device: Option<DeviceId>,
    by: By,
    top: usize,
) -> Vec<HolderFacts> {
    let reading = Reading::new(&who.symbols, &process.header);
    let all = reading.holders(holdings, by);
    let total = |device| sum(&all, device).max(1);
    let wanted = all.iter().filter(|holder| device.is_none_or(|id| holder.device == id));
    let fact = |holder: &Holder| {
        let frames: Vec<FrameFacts> = who.symbols.stack(holder.stack).map(frame_facts).collect();
        HolderFacts {
            bytes: holder.bytes,
            count: holder.count,
            share: holder.bytes as f64 / total(holder.device) as f64,
            device: (holder.device != DeviceId::UNKNOWN).then_some(holder.device.0),
            library: holder.library.clone(),
            stacks: holder.stacks,
            lead: holder.lead,
            caller: holder.caller,
            name: name(&reading, holder),
            pid: process.header.pid,
            rank: process.header.rank,
            no_frames: frames.is_empty().then(|| who.symbols.why_empty(holder.stack)),
            frames,
        }
    };
    wanted.take(top).map(fact).collect()
}

fn name(reading: &Reading, holder: &Holder) -> Option<String> {
    let function = &reading.frame(holder.stack, holder.lead)?.function;
    let free = holder.stack == FREE_CACHE;
    (free || autograd::node(function).is_some()).then(|| autograd::spoken(function).into_owned())
}

pub(super) fn frame_facts(frame: &Frame) -> FrameFacts {
    FrameFacts {
        language: frame.language,
        function: frame.function.to_string(),
        file: frame.file.to_string(),
        line: frame.line,
        library: frame.library.as_deref().map(str::to_string),
    }
}

fn sum(holders: &[Holder], device: DeviceId) -> u64 {
    let of_device = holders.iter().filter(|holder| holder.device == device);
    of_device.map(|holder| holder.bytes).fold(0, u64::saturating_add)
}

/// How `vramtrace holders` shows a process.
#[derive(Clone, Copy, Debug)]
pub struct Listing {
    pub by: By,
    pub top: usize,
    /// With all frames, and files with their whole path.
    pub full: bool,
    /// `at the peak`.
    pub when: &'static str,
}

/// The devices of a process, each with its holders.
pub fn listing(process: &Process, who: &Who, holdings: &Holdings, how: Listing) -> String {
    let reading = Reading::new(&who.symbols, &process.header);
    let all = reading.holders(holdings, how.by);
    let mut out = String::new();
    for (id, at_ns) in &holdings.at_ns {
        let here: Vec<&Holder> = all.iter().filter(|holder| holder.device == *id).collect();
        if here.is_empty() {
            continue;
        }
        let (bytes, allocations) = (sum(&all, *id), here.iter().map(|holder| holder.count).sum());
        let name = match *id {
            DeviceId::UNKNOWN => "unknown device".to_string(),
            id => format!("GPU {}", id.0),
        };
        out.push_str(&paint(BOLD, &format!("{name}, {} ({})", how.when, seconds(*at_ns))));
        let what = match holdings.level {
            Level::Driver => several(allocations, "allocation"),
            Level::Tensor => format!("{} blocks and allocations", count(allocations)),
        };
        out.push_str(&format!(": {} in {what}\n", size(bytes)));
        out.push_str(&table(&reading, &here, bytes, "", how));
        out.push_str(&around(process, *id, *at_ns, bytes));
        out.push('\n');
    }
    if out.is_empty() {
        out = format!("no GPU memory was held {}\n", how.when);
    }
    out.push_str(&problems_of(who));
    out
}

pub(super) fn table(
    reading: &Reading,
    holders: &[&Holder],
    total: u64,
    title: &str,
    how: Listing,
) -> String {
    let mut table = Table::new(4, "lrrrll");
    let last = if how.by == By::Library { "the most of it" } else { "" };
    table.head(&[title, "bytes", "share", "count", "library", last]);
    for holder in holders.iter().take(how.top) {
        let share = format!("{:.1} %", holder.bytes as f64 * 100.0 / total.max(1) as f64);
        let lead = match reading.frame(holder.stack, holder.lead) {
            Some(frame) => words(frame, how),
            None => reading.symbols.why_empty(holder.stack).to_string(),
        };
        table.styled([
            (String::new(), PLAIN),
            (size(holder.bytes), PLAIN),
            (share, PLAIN),
            (count(holder.count), PLAIN),
            (clean(holder.library.as_deref().unwrap_or("?")), PLAIN),
            (lead, BOLD),
        ]);
        let mut under = |text: String| {
            let empty = || (String::new(), PLAIN);
            table.styled([empty(), empty(), empty(), empty(), empty(), (text, DIM)]);
        };
        if let Some(caller) = reading.frame(holder.stack, holder.caller) {
            under(format!("called from {}", words(caller, how)));
        }
        if how.full {
            for frame in reading.symbols.stack(holder.stack) {
                under(format!("  {}", words(frame, how)));
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
    out
}

/// What the driver held at a moment beyond the allocations themselves: the peak that a report names
/// is with it.
fn around(process: &Process, id: DeviceId, at_ns: u64, bytes: u64) -> String {
    /// Less than this is no matter.
    const NOTICEABLE: u64 = 1 << 20;
    let Some(device) = process.state.devices.get(&id) else { return String::new() };
    let all = match at_ns {
        at_ns if at_ns == device.peak.time_ns => device.peak.bytes,
        at_ns if at_ns == process.state.time_ns => device.live_bytes,
        _ => return String::new(),
    };
    match all.checked_sub(bytes) {
        Some(rest) if rest >= NOTICEABLE => {
            let rest = size(rest);
            let text = format!("    and {rest} around them: rest of pages, reserves of pools");
            format!("{}\n", paint(DIM, &text))
        }
        _ => String::new(),
    }
}

/// `train.py:41 main`; `cublasCreate_v2 in libcublas.so.12` where no file is known.
pub(super) fn words(frame: &Frame, how: Listing) -> String {
    let function = shorten(&clean(&autograd::spoken(&frame.function)), FUNCTION_WIDTH);
    let place = if how.full { frame.full_place() } else { frame.place() };
    match (place, frame.library_name()) {
        (Some(place), _) => format!("{} {function}", clean(&place)),
        (None, Some(library)) if !frame.function.starts_with(library) => {
            format!("{function} in {}", clean(library))
        }
        (None, _) => function,
    }
}

/// The part of a report about one device. Empty where the trace has no stacks.
pub(super) fn of_device(process: &Process, id: DeviceId, shown: Shown) -> String {
    let Some(who) = &process.who else { return String::new() };
    let reading = Reading::new(&who.symbols, &process.header);
    let mut out = String::new();
    let how = Listing { by: By::Line, top: shown.top, full: false, when: "" };
    let peak = who.peak.at_ns.get(&id).copied();
    let mut libraries = Vec::new();
    let moments = match shown.moment {
        // The moment that is shown is the peak.
        Moment::Peak => [(Some("held at the peak"), &who.peak), (None, &who.live)],
        Moment::AllocatedPeak => {
            [(Some("held at the peak of blocks"), &who.live), (None, &who.peak)]
        }
        Moment::End => {
            [(Some("held at the peak"), &who.peak), (Some("held at the end"), &who.live)]
        }
        Moment::At(_) => {
            [(Some("held at the peak so far"), &who.peak), (Some("held then"), &who.live)]
        }
    };
    let fatal = process.fatal.iter().find(|fatal| fatal.oom.device == id);
    let moments = match fatal {
        // What was left after the program gave up tells less.
        Some(fatal) => [(Some("held at the failure"), &fatal.held), moments[0]],
        None => moments,
    };
    for (title, holdings) in moments {
        let Some(title) = title else { continue };
        let all = reading.holders(holdings, By::Line);
        let here: Vec<&Holder> = all.iter().filter(|holder| holder.device == id).collect();
        if !here.is_empty() {
            let bytes = sum(&all, id);
            out.push_str(&format!("\n{}", table(&reading, &here, bytes, title, how)));
            out.push_str(&around(
                process,
                id,
                holdings.at_ns.get(&id).copied().unwrap_or(0),
                bytes,
            ));
        }
        let of_libraries = reading.holders(holdings, By::Library);
        libraries.push(of_libraries.into_iter().filter(|holder| holder.device == id).collect());
    }
    let titles = match fatal {
        Some(_) => ["at the failure", "at the peak"],
        None => ["at the peak", "live"],
    };
    let two = peak.is_some() && libraries.len() > 1;
    out.push_str(&by_library(&libraries, two.then_some(titles)));
    out.push_str(&unused_contexts(process, &reading, id));
    let names = libraries.iter().flatten().filter_map(|holder| holder.library.as_deref());
    let mut hints: Vec<&str> = names.filter_map(pool_hint).collect();
    hints.sort_unstable();
    hints.dedup();
    for hint in hints {
        out.push_str(&format!("    {}\n", paint(WARN, hint)));
    }
    out
}

/// Free memory of PyTorch's cache is no use of it.
fn title(holder: &Holder) -> Option<&str> {
    match holder.stack {
        FREE_CACHE => Some(FREE_CACHE_NAME),
        _ => holder.library.as_deref(),
    }
}

/// `two`: of two moments, by their names; else of one.
fn by_library(moments: &[Vec<Holder>], two: Option<[&str; 2]>) -> String {
    let mut names: Vec<Option<&str>> = Vec::new();
    for holder in moments.iter().flatten() {
        let name = title(holder);
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
            moment.iter().find(|holder| title(holder) == name)
        };
        let bytes = |holder: Option<&Holder>| size(holder.map_or(0, |holder| holder.bytes));
        table.row([
            clean(name.unwrap_or("? (the stack does not tell)")),
            bytes(of(0)),
            if two.is_some() { bytes(of(1)) } else { String::new() },
            count(of(0).or(of(1)).map_or(0, |holder| holder.count)),
        ]);
    }
    format!("\n{}", table.render())
}

/// Contexts that are there and never held an allocation: of workers, or of ranks that all touch
/// the first device.
fn unused_contexts(process: &Process, reading: &Reading, id: DeviceId) -> String {
    let used = |context: ContextId| process.definitions.sites().any(|site| site.context == context);
    let here = process.state.contexts.iter().filter(|(_, state)| state.device == id);
    let mut out = String::new();
    for (context, state) in here.filter(|(context, _)| !used(**context)) {
        let said = reading.read(state.stack);
        let how = Listing { by: By::Line, top: 1, full: false, when: "" };
        let by = match reading.frame(state.stack, said.caller.or(said.lead)) {
            Some(frame) => format!(" by {}", words(frame, how)),
            None if state.stack == StackId(0) => String::new(),
            None => format!(" ({})", reading.symbols.why_empty(state.stack)),
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

/// Libraries without names, after all else.
pub(super) fn problems(process: &Process) -> String {
    process
        .who
        .as_ref()
        .map(problems_of)
        .filter(|text| !text.is_empty())
        .map_or_else(String::new, |text| format!("\n{text}"))
}

fn problems_of(who: &Who) -> String {
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
    out
}
