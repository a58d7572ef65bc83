//! One post-mortem as text: about ten lines of summary, then the tables.

use super::super::holders::{ListingOptions, table as holders_table};
use super::super::layout::{BAD, BOLD, DIM, PLAIN, Table, WARN, paint, room};
use super::super::stack::{lead, listed, place, place_or_why};
use super::wording;
use crate::analysis::oom::{Explained, UsedPart};
use crate::analysis::{Holder, Level, with_cause};
use crate::report::wording::age;
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
pub fn text(it: &Explained, given: &str, shown: OomOptions) -> String {
    let mut out = first_line(it, shown);
    let mut add = |word: &str, style, lines: &[String]| {
        for (index, line) in lines.iter().enumerate() {
            out.push_str(&labelled(if index == 0 { word } else { "" }, line, style));
        }
    };
    add("limit", PLAIN, &[wording::limit(&it.one)]);
    add("used", PLAIN, &[wording::sum(&it.sum)]);
    add("why", PLAIN, &[wording::why(&it.one)]);
    add("holds", PLAIN, &holder_lines(&it.holders));
    add("grew", PLAIN, growth_line(it).as_slice());
    add("step", PLAIN, it.step.map(wording::step).as_slice());
    let most = if shown.short { 1 } else { usize::MAX };
    let advice: Vec<String> = it.advice.iter().take(most).map(wording::advice).collect();
    if shown.short {
        add("try", BOLD, &advice);
        return out;
    }
    add("before", PLAIN, &wording::before(&it.one));
    add("try", BOLD, &advice);
    add("more", DIM, &further_commands(it, given));
    out.push_str(&warnings(it));
    out.push_str(&usage_table(it));
    out.push_str(&held_table(it, shown));
    out.push_str(&growth_table(it, shown));
    out.push_str(&cache_table(it, shown));
    out.push_str(&settings_table(it));
    out.push_str(&request_stack(it, shown));
    // Problems with reading symbols: the first five.
    for problem in it.problems.iter().take(5) {
        out.push_str(&format!("  {} {}\n", paint(WARN, "!"), paint(DIM, &clean(problem))));
    }
    out
}

/// The title: which process asked for how much, when and where. Further lines if it is long.
fn first_line(it: &Explained, shown: OomOptions) -> String {
    let one = &it.one;
    let at = match it.timed {
        true => format!(" at {}", seconds(one.oom.time_ns)),
        false => String::new(),
    };
    let who = match one.oom.level {
        Level::Tensor => "torch".to_string(),
        Level::Driver => clean(&it.api),
    };
    let place = place(&it.stack).filter(|_| !it.stack.is_free_cache());
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
    let process = wording::process(it.process, one);
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

/// A line with a label before it. Long text continues on indented lines below.
fn labelled(word: &str, text: &str, style: anstyle::Style) -> String {
    const INDENT: usize = 10;
    let mut out = String::new();
    for (index, part) in wrapped(text, width() - INDENT).iter().enumerate() {
        let word = if index == 0 { word } else { "" };
        let room = " ".repeat(INDENT - 2 - word.len());
        out.push_str(&format!("  {}{room}{}\n", paint(DIM, word), paint(style, part)));
    }
    out
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
fn holder_lines(holders: &[Holder]) -> Vec<String> {
    let named = || holders.iter().filter(|holder| !holder.stack.is_free_cache()).take(HOLDS);
    let line = |holder: &Holder| {
        let line = place(&holder.stack);
        let alike = named().filter(|other| place(&other.stack) == line).count() > 1;
        // The line of code identifies blocks of PyTorch. Their library is shown only if two of these
        // lines would be alike without it.
        let library = holder.library.as_deref().filter(|_| !holder.of_cache || alike);
        let library = library.map_or(String::new(), |name| format!(" ({})", clean(name)));
        let place = with_cause(holder.driver_memory, place_or_why(&holder.stack));
        let bytes = estimate(holder.bytes, holder.error_bytes);
        let pieces = match holder.driver_memory {
            Some(_) => "taken by the driver".into(),
            None => several(holder.count, if holder.of_cache { "block" } else { "allocation" }),
        };
        format!("{bytes:>10}  {place}{library}   {pieces}")
    };
    named().map(line).collect()
}

/// The line of code whose memory grew most before the request, and by how much in which time.
fn growth_line(it: &Explained) -> Option<String> {
    let most = it.grew.first()?;
    let since = it.one.oom.time_ns.saturating_sub(it.grew_from_ns?);
    let place = with_cause(most.driver_memory, place_or_why(&most.stack));
    let others = match it.grew.len() - 1 {
        0 => String::new(),
        n => format!(", and {}", several(n as u64, "more line")),
    };
    let (ago, bytes) = (age(since), size(most.bytes));
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
fn held_table(it: &Explained, shown: OomOptions) -> String {
    if it.holders.is_empty() {
        return String::new();
    }
    let title = match it.one.held.level {
        Level::Tensor => "held by blocks",
        Level::Driver => "held",
    };
    let holders: Vec<&Holder> = it.holders.iter().collect();
    let (top, full) = (shown.top, shown.full);
    let how = ListingOptions { top, full, ..ListingOptions::default() };
    format!("\n{}", holders_table(&holders, title, how))
}

/// The lines of code whose memory grew before the failure.
fn growth_table(it: &Explained, shown: OomOptions) -> String {
    let Some(from) = it.grew_from_ns.filter(|_| !it.grew.is_empty()) else { return String::new() };
    let mut table = Table::new(4, "lrrl");
    let title = format!("grew since {}", seconds(from));
    table.head(&[&title, "by", "to", ""]);
    for grown in it.grew.iter().take(shown.top) {
        table.styled([
            (String::new(), PLAIN),
            (size(grown.bytes), PLAIN),
            (size(grown.now_bytes), PLAIN),
            (
                with_cause(grown.driver_memory, lead(&grown.stack, shown.full)),
                if grown.stack.lead().is_some() { BOLD } else { PLAIN },
            ),
        ]);
    }
    let mut out = format!("\n{}", table.render());
    if it.grew.len() > shown.top {
        let rest = several((it.grew.len() - shown.top) as u64, "more line");
        out.push_str(&format!("{}\n", paint(DIM, &format!("    and {rest}"))));
    }
    out
}

/// PyTorch's cache at the failure: reserved, allocated, free, releasable and unusable bytes, and the lines of code whose
/// blocks keep otherwise free segments from being returned to the driver.
fn cache_table(it: &Explained, shown: OomOptions) -> String {
    const MOST_PINS: usize = 5;
    let Some(cache) = it.torch.filter(|cache| cache.segments > 0) else { return String::new() };
    let mut table = Table::new(4, "lrl");
    table.head(&["PyTorch's cache", "", ""]);
    let usual = size(it.usual_request);
    for (bytes, what) in [
        (cache.reserved_bytes, format!("reserved in {}", several(cache.segments, "segment"))),
        (cache.allocated_bytes, "in tensors".to_string()),
        (cache.free_bytes, format!("free, the largest piece {}", size(cache.largest_hole_bytes))),
        (cache.releasable_bytes, "in segments that hold nothing".to_string()),
        (cache.unusable_bytes, format!("in pieces below the usual request ({usual})")),
    ] {
        table.row([String::new(), size(bytes), what]);
    }
    let out = format!("\n{}", table.render());
    if cache.free_bytes <= cache.releasable_bytes || it.pins.is_empty() || shown.top == 0 {
        return out;
    }
    let mut table = Table::new(4, "lrrl");
    table.head(&["", "keeps free", "in segments", ""]);
    for (stack, pin) in it.pins.iter().take(shown.top.min(MOST_PINS)) {
        table.styled([
            (String::new(), PLAIN),
            (size(pin.pinned), PLAIN),
            (count(pin.segments), PLAIN),
            (place_or_why(stack), BOLD),
        ]);
    }
    out + &table.render()
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
fn request_stack(it: &Explained, shown: OomOptions) -> String {
    let title = paint(DIM, "asked for by");
    if let Some(why) = it.stack.why_no_frames() {
        return format!("\n    {title}  {why}\n");
    }
    let frames: Vec<_> = it.stack.frames().collect();
    let most = if shown.full { frames.len() } else { FRAMES };
    let mut out = format!("\n    {title}\n");
    for frame in frames.iter().take(most) {
        out.push_str(&format!("      {}\n", listed(frame, shown.full)));
    }
    if frames.len() > most {
        let rest = several((frames.len() - most) as u64, "more frame");
        out.push_str(&format!("{}\n", paint(DIM, &format!("      and {rest} (--full)"))));
    }
    out
}
