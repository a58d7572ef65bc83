//! The short form of a post-mortem, in `vramtrace report` below the head of a process that ended out
//! of memory.

use vramtrace_format::RefusedBy;

use super::super::layout::{BAD, BOLD, DIM, paint};
use super::super::stack::place;
use super::wording;
use crate::analysis::oom::{AtStep, Cause, PostMortem, Remedy, Tried};
use crate::analysis::steps::Steps;
use crate::analysis::{Process, StackClassifier};
use crate::report::oom::fits_in_words;
use crate::report::shell::{self, quoted};
use crate::report::wording::gpu_name;
use crate::symbols::Symbols;
use crate::units::{self, clean, gib, seconds, size};

/// The short post-mortems of a process; empty if it did not end out of memory.
pub(crate) fn fatal(process: &Process) -> String {
    fatal_of(process, "", &format!(" {}", shell::path(&process.trace)), "")
}

/// As [`fatal`]. `who`: its name, after a space. `given`: the arguments that name it in a command, each
/// after a space. `also`: lines that stand before the command.
pub(in crate::report) fn fatal_of(process: &Process, who: &str, given: &str, also: &str) -> String {
    let asked = process.fatal.iter().map(|one| one.oom.stack);
    let symbols = Symbols::of(&process.definitions, &process.header, asked);
    let classifier = StackClassifier::new(&symbols, &process.header);
    let next = paint(DIM, &format!("NEXT   vramtrace oom{given}"));
    let steps = process.steps.as_ref();
    let one = |fatal| format!("\n{}{also}{next}\n", one_fatal(fatal, steps, who, &classifier));
    process.fatal.iter().map(one).collect()
}

/// Title, line, cause, step and fix. `steps`: of the training, if they were collected.
fn one_fatal(
    fatal: &PostMortem,
    steps: Option<&Steps>,
    who: &str,
    classifier: &StackClassifier,
) -> String {
    let who = if who.is_empty() { String::new() } else { format!(" {}", clean(who)) };
    let mut out = format!("{}{who}{}\n", paint(BAD, TITLE), where_and_limit(fatal));
    if let Some(line) = place(&classifier.named(fatal.oom.stack)) {
        let asked = size(fatal.oom.size);
        out.push_str(&format!("{}   {asked} asked by {line}\n", paint(BOLD, "LINE")));
    }
    out.push_str(&format!("{}  {}\n", paint(BOLD, "CAUSE"), cause(fatal)));
    if let Some(step) = steps.and_then(|steps| AtStep::of(steps, &fatal.oom)) {
        out.push_str(&format!("{}   {}\n", paint(BOLD, "STEP"), wording::step(step)));
    }
    if let Some(remedy) = &fatal.remedy {
        out.push_str(&remedies(remedy));
    }
    out
}

const TITLE: &str = "OUT OF MEMORY";

/// What follows `out of memory`: ` on GPU 0 at 2.074 s, under your cap of 14.44 GiB`.
pub(crate) fn where_and_limit(fatal: &PostMortem) -> String {
    let limit = limit_in_words(fatal);
    let card = match fatal.card_free() {
        Some(free) if free > 0 => format!("; the card had {} free", gib(free)),
        _ => String::new(),
    };
    let at = seconds(fatal.oom.time_ns);
    format!(" on {} at {at}, {limit}{card}", gpu_name(fatal.oom.device))
}

/// `under your cap of 14.44 GiB`, `on a full card`.
fn limit_in_words(fatal: &PostMortem) -> String {
    match fatal.oom.refusal.map(|at| at.refused) {
        Some(refused) if refused.by == RefusedBy::Group => {
            format!("under your group's cap of {}", units::limit(refused.limit))
        }
        Some(refused) if refused.limit > 0 => {
            format!("under your cap of {}", units::limit(refused.limit))
        }
        Some(_) if fatal.cause == Cause::Mps => "under the limit of MPS".to_string(),
        Some(_) if fatal.cause == Cause::Cgroup => "under the kernel's cgroup limit".to_string(),
        Some(_) => match fatal.card_bytes.filter(|card| fatal.oom.size > *card) {
            Some(card) => format!("on a card of {}", gib(card)),
            None => "on a full card".to_string(),
        },
        None if fatal.own_limit => "under a limit of PyTorch's own".to_string(),
        None if fatal.is_imported_from_full_card() => "on a full card".to_string(),
        None if fatal.imported => "under a limit that was not imported".to_string(),
        None => "and the trace shows no refused driver call".to_string(),
    }
}

/// `fragmentation: asked 1.31 GiB; free 1.51 GiB in 106 pinned segments, largest hole 893.22 MiB`.
pub(crate) fn cause(fatal: &PostMortem) -> String {
    match fatal.cause {
        Cause::BadCap => "VRAMTRACE_CAP cannot be understood: every request is refused".into(),
        Cause::Fragmentation => format!(
            "{}: asked {}; free {} {}",
            fatal.cause.words(),
            size(fatal.oom.size),
            size(fatal.figures.free),
            wording::holes(fatal)
        ),
        Cause::Cap | Cause::Card | Cause::Mps | Cause::Cgroup | Cause::Torch | Cause::Unknown => {
            wording::why(fatal)
        }
    }
}

/// The most settings that are listed: a report must fit one screen. `vramtrace oom` lists all.
const SETTINGS: usize = 1;

/// `expandable_segments:True would need 13.11 GiB and fit`.
fn setting(Tried { conf, smallest, fits, .. }: &Tried) -> String {
    let fits = if *fits { "fit" } else { "not fit" };
    match smallest {
        Some(bytes) => format!("{conf} would need {} and {fits}", size(*bytes)),
        None => format!("{conf} would {fits}"),
    }
}

/// The setting that fixes it, and what other settings would need.
fn remedies(remedy: &Remedy) -> String {
    let mut out = String::new();
    let of = fits_in_words(remedy.origin);
    if let Some((conf, spare)) = &remedy.fix {
        out.push_str(&format!(
            "{}    export PYTORCH_CUDA_ALLOC_CONF={}\n       replayed up to the failed request, it \
             fits {of}, {} to spare\n",
            paint(BOLD, "FIX"),
            quoted(conf),
            size(*spare)
        ));
    }
    let mut lines: Vec<String> = remedy.settings.iter().take(SETTINGS).map(setting).collect();
    let as_recorded = remedy.as_it_is;
    lines.extend(as_recorded.map(|bytes| format!("the settings of this run need {}", size(bytes))));
    for (index, line) in lines.iter().enumerate() {
        let label = if index == 0 { "WHAT IF" } else { "       " };
        out.push_str(&format!("{label}  {line}\n"));
    }
    out
}
