//! One post-mortem as text: about ten lines of summary, then the tables.

use vramtrace_format::Header;

use super::super::holders::{ListingOptions, lead_words, listed, table as holders_table};
use super::super::layout::{BAD, BOLD, DIM, PLAIN, Table, WARN, paint, room};
use super::wording;
use crate::analysis::oom::{Explained, PostMortem, UsedPart, advice};
use crate::analysis::{GroupBy, Holder, Level, StackClassifier, with_cause};
use crate::report::wording::age;
use crate::symbols::FREE_CACHE;
use crate::trace::Definitions;
use crate::units::{clean, count, estimate, seconds, several, size};

/// What a post-mortem contains.
#[derive(Clone, Copy, Debug)]
pub struct OomOptions {
    /// The most rows of each table.
    pub top: usize,
    /// All frames of each stack, and files with their full path.
    pub full: bool,
    /// Only the summary, without the tables.
    pub short: bool,
    /// The process is still running.
    pub running: bool,
    /// The number of out-of-memory failures in the run.
    pub of: usize,
}

/// The most frames of the request's stack that are shown without `full`.
const FRAMES: usize = 24;
/// The most characters in a line of the summary; a narrower terminal has fewer.
const WIDTH: usize = 80;
/// The lines of the summary that list holders.
const HOLDS: usize = 3;

/// The whole post-mortem. `given`: the arguments that name the process in a command, each after a space.
pub fn text(
    it: &Explained,
    header: &Header,
    definitions: &Definitions,
    given: &str,
    shown: OomOptions,
) -> String {
    let classifier = StackClassifier::new(&it.symbols, header);
    let holders = classifier.holders(&it.one.held, GroupBy::Line);
    let mut out = first_line(it, header, definitions, &classifier, shown);
    let mut lines = Lines { out: &mut out };
    lines.add("limit", &wording::limit(&it.one));
    lines.add("used", &wording::sum(&it.sum));
    lines.add("why", &wording::why(&it.one));
    for (index, line) in holder_lines(&classifier, &holders).iter().enumerate() {
        lines.add(if index == 0 { "holds" } else { "" }, line);
    }
    if let Some(line) = growth_line(it, &classifier) {
        lines.add("grew", &line);
    }
    if let Some(step) = it.step {
        lines.add("step", &wording::step(step));
    }
    if !shown.short {
        for (index, line) in wording::before(&it.one).iter().enumerate() {
            lines.add(if index == 0 { "before" } else { "" }, line);
        }
    }
    let most = if shown.short { 1 } else { usize::MAX };
    for (index, advice) in advice(&it.one).iter().take(most).enumerate() {
        lines.bold(if index == 0 { "try" } else { "" }, &wording::advice(advice));
    }
    if shown.short {
        return out;
    }
    for (index, command) in further_commands(it, given).iter().enumerate() {
        lines.styled(if index == 0 { "more" } else { "" }, command, DIM);
    }
    out.push_str(&warnings(it));
    out.push_str(&usage_table(it));
    out.push_str(&held_table(it, &classifier, &holders, shown));
    out.push_str(&growth_table(it, &classifier, shown));
    out.push_str(&cache_table(it, &classifier, shown));
    out.push_str(&settings_table(it));
    out.push_str(&request_stack(it, &classifier, shown));
    out.push_str(&problems(it));
    out
}

/// The title: which process asked for how much, when and where. Further lines if it is long.
fn first_line(
    it: &Explained,
    header: &Header,
    definitions: &Definitions,
    classifier: &StackClassifier,
    shown: OomOptions,
) -> String {
    let one = &it.one;
    let at = match definitions.has_times() {
        true => format!(" at {}", seconds(one.oom.time_ns)),
        false => String::new(),
    };
    let who = match one.oom.level {
        Level::Tensor => "torch".to_string(),
        Level::Driver => clean(&definitions.site_api_name(one.oom.site)),
    };
    let place = it.stack().and_then(|stack| wording::place(classifier, stack));
    let place = place.map_or(String::new(), |place| format!(" at {place}"));
    let number = match shown.of {
        0 | 1 => String::new(),
        of => format!("  ({} of {of})", it.number),
    };
    let then = match (one.oom.went_on, shown.running) {
        (true, _) => ", and the run went on",
        (false, true) => ", and the process still runs",
        (false, false) => "",
    };
    let process = wording::process(header, one);
    let text =
        format!("{process}{at}: {who} asked for {}{place}{then}{number}", size(one.oom.size));
    let mut out = String::new();
    for (index, part) in wrapped(&text, width() - TITLE.len() - 2).iter().enumerate() {
        let title = if index == 0 { paint(BAD, TITLE) } else { " ".repeat(TITLE.len()) };
        out.push_str(&format!("{title}  {}\n", paint(BOLD, part)));
    }
    out
}

const TITLE: &str = "OUT OF MEMORY";

fn width() -> usize {
    room(0).min(WIDTH)
}

const UNITS: [&str; 3] = ["GiB", "MiB", "KiB"];

/// Writes lines with a label before them. Long text continues on indented lines below.
struct Lines<'o> {
    out: &'o mut String,
}

impl Lines<'_> {
    fn add(&mut self, word: &str, text: &str) {
        self.styled(word, text, PLAIN);
    }

    fn bold(&mut self, word: &str, text: &str) {
        self.styled(word, text, BOLD);
    }

    fn styled(&mut self, word: &str, text: &str, style: anstyle::Style) {
        const INDENT: usize = 10;
        for (index, part) in wrapped(text, width() - INDENT).iter().enumerate() {
            let word = if index == 0 { word } else { "" };
            let room = " ".repeat(INDENT - 2 - word.len());
            self.out.push_str(&format!("  {}{room}{}\n", paint(DIM, word), paint(style, part)));
        }
    }
}

/// Breaks text at spaces into lines of at most `width` characters; a longer word is not broken. A
/// figure and its unit, a sign and its term, and a line of code and its caller (`a < b`) stay on one
/// line.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut words: Vec<String> = Vec::new();
    for word in text.split(' ') {
        let glued = |last: &String| {
            let figure = word.starts_with(|c: char| c.is_ascii_digit());
            UNITS.iter().any(|unit| word.starts_with(unit))
                || (last.starts_with("+ ") && figure)
                || last == "+"
                || word == "<"
                || last.ends_with('<')
        };
        match words.last_mut() {
            Some(last) if glued(last) => last.push_str(&format!(" {word}")),
            _ => words.push(word.to_string()),
        }
    }
    for word in words {
        let line = lines.last_mut().expect("one at least");
        if !line.trim().is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(word);
            continue;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(&word);
    }
    lines
}

/// The largest holders, a line each: bytes, line of code, number of blocks or allocations.
fn holder_lines(classifier: &StackClassifier, holders: &[Holder]) -> Vec<String> {
    let named = || holders.iter().filter(|holder| holder.stack != FREE_CACHE).take(HOLDS);
    let place_of = |holder: &Holder| wording::place(classifier, holder.stack);
    let line = |holder: &Holder| {
        let place = place_of(holder);
        let alike = named().filter(|other| place_of(other) == place).count() > 1;
        let why = || classifier.symbols.why_empty(holder.stack).to_string();
        // The line of code identifies blocks of PyTorch. Their library is shown only if two of these
        // lines would be alike without it.
        let library = holder.library.as_deref().filter(|_| !holder.of_cache || alike);
        let library = library.map_or(String::new(), |name| format!(" ({})", clean(name)));
        let place = with_cause(holder.cause, place.unwrap_or_else(why));
        let bytes = estimate(holder.bytes, holder.error);
        format!("{bytes:>10}  {place}{library}   {}", pieces(holder))
    };
    named().map(line).collect()
}

/// `96 blocks` for memory in PyTorch's cache, else `96 allocations`.
fn pieces(holder: &Holder) -> String {
    if holder.cause.is_some() {
        return "taken by the driver".into();
    }
    several(holder.count, if holder.of_cache { "block" } else { "allocation" })
}

/// The line of code whose memory grew most before the request, and by how much in which time.
fn growth_line(it: &Explained, classifier: &StackClassifier) -> Option<String> {
    let most = it.grew.first()?;
    let since = it.one.oom.time_ns.saturating_sub(it.grew_from_ns?);
    let place = wording::place(classifier, most.stack)
        .unwrap_or_else(|| classifier.symbols.why_empty(most.stack).to_string());
    let place = with_cause(most.cause, place);
    let others = match it.grew.len() - 1 {
        0 => String::new(),
        n => format!(", and {}", several(n as u64, "more line")),
    };
    let (ago, bytes) = (age(since), size(most.bytes()));
    Some(format!("{bytes} in {ago}: {place}{others}"))
}

/// Commands that show more about this failure.
fn further_commands(it: &Explained, given: &str) -> Vec<String> {
    let seconds = it.one.oom.time_ns as f64 / 1e9;
    let mut all = vec![format!("vramtrace holders{given} --at {seconds:.3} --full")];
    if it.one.oom.level == Level::Tensor {
        all.insert(0, format!("vramtrace frag{given} --at oom"));
        all.insert(1, format!("vramtrace whatif{given}"));
    }
    all
}

/// Warnings about gaps in the data behind this post-mortem.
fn warnings(it: &Explained) -> String {
    let one = &it.one;
    let mut lines = Vec::new();
    if !one.live_is_known {
        lines.push("events are missing before it: what was live may be wrong".to_string());
    }
    if one.history_from_ns > 0 {
        let from = seconds(one.history_from_ns);
        lines.push(format!("the file's history begins at {from}: earlier failures are not in it"));
    }
    let imported = one.device.live_bytes > 0 && one.device.contexts_seen == 0;
    if !it.sum.knows_process && !imported {
        lines.push(
            "NVML had no figure for this process: what only shows there is not in the sum".into(),
        );
    }
    lines.iter().map(|line| format!("  {} {}\n", paint(WARN, "!"), paint(WARN, line))).collect()
}

/// The parts of the memory in use, with their shares.
fn usage_table(it: &Explained) -> String {
    let mut table = Table::new(4, "lrrll");
    table.head(&["in use", "bytes", "share", "", ""]);
    let share = |bytes: i64| 100.0 * bytes as f64 / it.sum.bytes.max(1) as f64;
    for (what, bytes) in &it.sum.parts {
        let sign = if *bytes < 0 { "-" } else { "" };
        let library = matches!(what, UsedPart::Library(_));
        table.styled([
            (String::new(), PLAIN),
            (format!("{sign}{}", size(bytes.unsigned_abs())), PLAIN),
            (format!("{:.1} %", share(*bytes)), PLAIN),
            (wording::part(what), if library { BOLD } else { PLAIN }),
            (wording::meaning(what).into(), DIM),
        ]);
    }
    table.styled([
        (String::new(), PLAIN),
        (size(it.sum.bytes), BOLD),
        (String::new(), PLAIN),
        ("in all".into(), BOLD),
        (String::new(), PLAIN),
    ]);
    let managed = match it.sum.managed {
        0 => String::new(),
        bytes => {
            let managed = size(bytes);
            let note =
                format!("    {managed} of it is managed memory, which nvidia-smi does not count");
            format!("{}\n", paint(DIM, &note))
        }
    };
    format!("\n{}{managed}", table.render())
}

/// The holders of memory at the failure.
fn held_table(
    it: &Explained,
    classifier: &StackClassifier,
    holders: &[Holder],
    shown: OomOptions,
) -> String {
    if holders.is_empty() {
        return String::new();
    }
    let all: Vec<&Holder> = holders.iter().collect();
    let bytes = holders.iter().map(|holder| holder.bytes).fold(0, u64::saturating_add);
    let title = match it.one.held.level {
        Level::Tensor => "held by blocks",
        Level::Driver => "held",
    };
    format!("\n{}", holders_table(classifier, &all, bytes, title, listing(shown)))
}

fn listing(shown: OomOptions) -> ListingOptions<'static> {
    ListingOptions { by: GroupBy::Line, top: shown.top, full: shown.full, when: "" }
}

/// The lines of code whose memory grew before the failure.
fn growth_table(it: &Explained, classifier: &StackClassifier, shown: OomOptions) -> String {
    let Some(from) = it.grew_from_ns.filter(|_| !it.grew.is_empty()) else { return String::new() };
    let mut table = Table::new(4, "lrrl");
    let title = format!("grew since {}", seconds(from));
    table.head(&[&title, "by", "to", ""]);
    for grown in it.grew.iter().take(shown.top) {
        let frame = classifier.frame(grown.stack, classifier.roles(grown.stack).lead);
        table.styled([
            (String::new(), PLAIN),
            (size(grown.bytes()), PLAIN),
            (size(grown.now), PLAIN),
            match frame {
                Some(frame) => {
                    let line = lead_words(classifier, grown.stack, frame, listing(shown));
                    (with_cause(grown.cause, line), BOLD)
                }
                None => {
                    let why = classifier.symbols.why_empty(grown.stack).to_string();
                    (with_cause(grown.cause, why), PLAIN)
                }
            },
        ]);
    }
    let mut out = format!("\n{}", table.render());
    if it.grew.len() > shown.top {
        let rest = several((it.grew.len() - shown.top) as u64, "more line");
        out.push_str(&format!("{}\n", paint(DIM, &format!("    and {rest}"))));
    }
    out
}

/// PyTorch's cache at the failure: reserved, allocated, free, releasable and unusable bytes.
fn cache_table(it: &Explained, classifier: &StackClassifier, shown: OomOptions) -> String {
    let one: &PostMortem = &it.one;
    let segments = it.small.segments + it.large.segments;
    if segments == 0 {
        return String::new();
    }
    let mut table = Table::new(4, "lrl");
    table.head(&["PyTorch's cache", "", ""]);
    let usual = match one.oom.size > 1 << 20 {
        true => it.large.usual_request,
        false => it.small.usual_request,
    };
    let unusable = it.small.unusable.saturating_add(it.large.unusable);
    for (bytes, what) in [
        (one.reserved, format!("reserved in {}", several(segments, "segment"))),
        (one.allocated, "in tensors".to_string()),
        (one.free, format!("free, the largest piece {}", size(one.largest_hole))),
        (one.releasable, "in segments that hold nothing".to_string()),
        (unusable, format!("in pieces below the usual request ({})", size(usual))),
    ] {
        table.row([String::new(), size(bytes), what]);
    }
    let mut out = format!("\n{}", table.render());
    if one.free > one.releasable {
        out.push_str(&pins_table(it, classifier, shown));
    }
    out
}

/// The lines of code whose blocks keep otherwise free segments from being returned to the driver.
fn pins_table(it: &Explained, classifier: &StackClassifier, shown: OomOptions) -> String {
    const MOST: usize = 5;
    let mut table = Table::new(4, "lrrl");
    table.head(&["", "keeps free", "in segments", ""]);
    let mut any = false;
    for pin in it.pins.iter().filter(|pin| pin.pinned > 0).take(shown.top.min(MOST)) {
        any = true;
        let place = wording::place(classifier, pin.stack);
        let place = place.unwrap_or_else(|| classifier.symbols.why_empty(pin.stack).to_string());
        table.styled([
            (String::new(), PLAIN),
            (size(pin.pinned), PLAIN),
            (count(pin.segments), PLAIN),
            (place, BOLD),
        ]);
    }
    if any { table.render() } else { String::new() }
}

/// The bytes that other settings of PyTorch's allocator need, replayed up to the failed request.
fn settings_table(it: &Explained) -> String {
    let Some(remedy) = it.one.remedy.as_ref().filter(|it| !it.settings.is_empty()) else {
        return String::new();
    };
    let mut table = Table::new(4, "lrll");
    table.head(&["replayed up to it under", "needs", &format!("in {}", size(remedy.capacity)), ""]);
    for tried in &remedy.settings {
        let mark = if tried.in_force { " (in force)" } else { "" };
        let note = tried.forbidden.as_ref().map(|why| format!("unsafe: {}", clean(why)));
        table.styled([
            (format!("{}{mark}", clean(&tried.conf)), if tried.in_force { BOLD } else { PLAIN }),
            (tried.smallest.map_or("?".into(), size), PLAIN),
            (if tried.fits { "fits" } else { "no" }.into(), PLAIN),
            (note.unwrap_or_default(), WARN),
        ]);
    }
    format!("\n{}", table.render())
}

/// The call stack of the failed request.
fn request_stack(it: &Explained, classifier: &StackClassifier, shown: OomOptions) -> String {
    let title = paint(DIM, "asked for by");
    let Some(stack) = it.stack() else {
        let why = classifier.symbols.why_empty(it.one.oom.stack);
        return format!("\n    {title}  {why}\n");
    };
    let frames: Vec<_> = classifier.symbols.stack(stack).collect();
    let most = if shown.full { frames.len() } else { FRAMES };
    let mut out = format!("\n    {title}\n");
    for frame in frames.iter().take(most) {
        out.push_str(&format!("      {}\n", listed(frame, listing(shown))));
    }
    if frames.len() > most {
        let rest = several((frames.len() - most) as u64, "more frame");
        out.push_str(&format!("{}\n", paint(DIM, &format!("      and {rest} (--full)"))));
    }
    out
}

/// Problems with reading symbols: the first five.
fn problems(it: &Explained) -> String {
    const MOST: usize = 5;
    let problems = it.symbols.problems();
    let line =
        |problem: &String| format!("  {} {}\n", paint(WARN, "!"), paint(DIM, &clean(problem)));
    problems.iter().take(MOST).map(line).collect()
}
