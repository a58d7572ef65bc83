//! Writes the page: the built program of `web/` with the data in it. The data is the document of `vramtrace report --json`,
//! with that of `fits`, and for each process what only the page has.

use std::io::{self, Write};

use base64::engine::general_purpose::STANDARD;
use base64::write::EncoderWriter;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use serde::Serialize;
use vramtrace_format::RefusedBy;

use super::recorded::{OwnerKind, Recorded};
use super::second_pass::{self, SecondPass};
use super::tables::{Tables, tables};
use crate::analysis::fits::{Answer, Question, answer, marked_recordings};
use crate::analysis::leaks::{Leak, Suppressions};
use crate::analysis::oom::{Advice, AdvisedChange, Oom, PostMortem, UsedSum, advice};
use crate::analysis::roles::Role;
use crate::analysis::steps::{Step, Steps};
use crate::analysis::{Places, Process};
use crate::report::json::process::ProcessesReport;
use crate::report::json::{Document, FragFacts, LeaksReport};
use crate::report::shell::quoted;
use crate::report::{json, text};
use crate::symbols::Symbols;
use crate::trace::Trace;

/// The built page: `web/` is its source, `scripts/web.sh` builds it.
const PAGE: &str = include_str!("../../../assets/page.html");
/// The mark that the data replaces. The build checks that the page has it once.
const PLACE: &str = "<!--data-->";

/// The run on the page: its processes, read to their end, with their traces and names in the same order.
pub struct PageRun {
    pub label: String,
    pub names: Vec<String>,
    /// Read with [`super::COLLECT`].
    pub processes: Vec<Process>,
    pub traces: Vec<Trace>,
}

#[derive(Serialize)]
struct Facts<'r> {
    schema: &'static str,
    version: &'static str,
    label: &'r str,
    report: Document<'r, ProcessesReport<'r>>,
    processes: Vec<ProcessPage>,
    fits: Option<PageFits>,
}

const SCHEMA: &str = "vramtrace.page/3";

/// Which batch fits, where marks name two batches or lengths.
#[derive(Serialize)]
struct PageFits {
    /// The answer in one line.
    line: String,
    #[serde(flatten)]
    answer: Answer,
}

/// What only the page has of a process, beside its stream of columns.
#[derive(Serialize)]
struct ProcessPage {
    name: String,
    /// The format that the trace was imported from. `None`: it was recorded.
    imported_from: Option<String>,
    has_times: bool,
    has_stacks: bool,
    /// The name of the program.
    program: String,
    /// How it ended without a failure. `None`: with one, or the trace does not tell.
    ended: Option<String>,
    /// Why the run ended out of memory, as `vramtrace report` prints it; empty if it did not.
    verdict: String,
    /// The failures with which the run ended.
    failures: Vec<OomOnPage>,
    #[serde(flatten)]
    tables: Tables,
    /// The number and the name of each kind of allocation.
    kinds: Vec<(u8, &'static str)>,
    /// The names of roles, in the order in which the page stacks them.
    roles: Vec<&'static str>,
    #[serde(flatten)]
    recorded: Recorded,
    /// At the last out-of-memory of each device, or at its peak.
    frag: Vec<FragFacts>,
    /// The first [`LEAKS`].
    leaks: Vec<Leak>,
    /// Why symbols could not be read.
    problems: Vec<String>,
    /// The iterations of a training, the first [`STEPS`].
    steps: Vec<Step>,
}

/// One failure, at its moment, with the keys of `vramtrace oom --json`.
#[derive(Serialize)]
struct OomOnPage {
    #[serde(flatten)]
    oom: Oom,
    #[serde(flatten)]
    sum: UsedSum,
    /// NVML had a figure: the sum is what nvidia-smi shows, and managed memory.
    in_nvidia_smi: bool,
    /// PyTorch's cache had memory.
    has_cache: bool,
    /// `None`: the page has no event of it.
    ordinal: Option<u64>,
    could_have_bytes: Option<u64>,
    /// What to try, the most promising first.
    tries: Vec<Try>,
}

/// One thing to try.
#[derive(Serialize)]
struct Try {
    text: String,
    /// A line to copy. `None`: it is no line.
    copy: Option<String>,
}

/// Maximum number of entries of each list in the facts of a device, and of leaks and steps of a process.
const TOP: usize = 10;
const LEAKS: usize = 50;
const STEPS: usize = 20_000;

/// Writes the page of a run.
pub fn write(run: &mut PageRun, out: &mut dyn Write) -> io::Result<()> {
    let (head, tail) = PAGE
        .split_once(PLACE)
        .ok_or_else(|| io::Error::other("the built-in page lacks <!--data-->"))?;
    out.write_all(head.as_bytes())?;
    let mut pages = Vec::new();
    let inputs = run.names.iter().zip(run.processes.iter_mut().zip(&run.traces));
    for (index, (name, (process, trace))) in inputs.enumerate() {
        let id = format!("stream-{index}");
        let pass = section(out, &id, |out| second_pass::run(process, trace, out))?;
        pages.push(process_page(name, process, trace, pass));
    }
    let report = json::process::report(&run.processes, TOP);
    let facts = Facts {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        label: &run.label,
        report: Document::new(json::process::SCHEMA, &report, []),
        processes: pages,
        fits: fits(&run.traces),
    };
    section(out, "facts", |out| Ok(serde_json::to_writer(out, &facts)?))?;
    out.write_all(tail.as_bytes())
}

/// An element with data: compressed (zlib), then base64, so that no byte of it is markup.
fn section<T>(
    out: &mut dyn Write,
    id: &str,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<T>,
) -> io::Result<T> {
    write!(out, "<script type=\"application/vnd.vramtrace\" id=\"{id}\">")?;
    let encoder = EncoderWriter::new(&mut *out, &STANDARD);
    let mut deflate = ZlibEncoder::new(encoder, Compression::new(4));
    let result = fill(&mut deflate)?;
    deflate.finish()?.finish()?;
    writeln!(out, "</script>")?;
    Ok(result)
}

/// `None`: the marks of these traces name fewer than two, no card is known, or it would take long.
fn fits(traces: &[Trace]) -> Option<PageFits> {
    let recordings = marked_recordings(traces);
    let answer = answer(&recordings, &Question::usual(&recordings)).ok()?;
    Some(PageFits { line: text::fits::headline(&answer)?, answer })
}

/// Assembles the facts, and fills [`Process::fatal`].
fn process_page(name: &str, process: &mut Process, trace: &Trace, pass: SecondPass) -> ProcessPage {
    let SecondPass { recorded, mut fatal, frag, leaks } = pass;
    for one in &mut fatal {
        one.find_remedy(trace, &process.definitions);
    }
    process.fatal = fatal;
    let no_leak =
        leaks.as_ref().is_some_and(|found| found.leaks.is_empty() && found.not_judged.is_none());
    let mut leaks = LeaksReport::of(leaks.as_slice(), &Suppressions::default()).leaks;
    leaks.truncate(LEAKS);
    let stacks = recorded.owners.iter().map(|(stack, _, _)| *stack);
    let symbols = Symbols::of(&process.definitions, &process.header, stacks);
    let steps = process.steps.as_ref().map(Steps::steps).unwrap_or_default();
    ProcessPage {
        name: name.to_string(),
        imported_from: process.definitions.imported_from().map(str::to_string),
        has_times: process.definitions.has_times(),
        has_stacks: !process.definitions.stacks().is_empty(),
        program: Places::of(&process.header).program().to_string(),
        ended: text::verdict::ended(process, no_leak),
        verdict: text::oom::of_page(process),
        failures: process.fatal.iter().map(|one| failure(one, &recorded)).collect(),
        tables: tables(&recorded.owners, &symbols, &process.header),
        kinds: OwnerKind::all(),
        roles: Role::ALL.map(Role::name).into(),
        recorded,
        frag: frag.into_iter().map(|one| FragFacts::of(one, trace.header())).collect(),
        leaks,
        problems: symbols.problems().to_vec(),
        steps: steps.iter().take(STEPS).cloned().collect(),
    }
}

fn failure(one: &PostMortem, recorded: &Recorded) -> OomOnPage {
    let sum = UsedSum::of(&one.device, &one.oom, Vec::new());
    OomOnPage {
        in_nvidia_smi: sum.knows_process,
        has_cache: one.device.cache.reserved > 0,
        ordinal: recorded.fatal.get(&one.oom.offset).copied(),
        could_have_bytes: could_have(one),
        tries: advice(one).iter().map(attempt).collect(),
        oom: one.oom.clone(),
        sum,
    }
}

/// The cap; or what the process had and what was left. `None`: not known.
fn could_have(one: &PostMortem) -> Option<u64> {
    let refused = one.oom.refusal?.refused;
    let left = match refused.by {
        RefusedBy::Cap => return Some(refused.limit),
        RefusedBy::Group => refused.limit.saturating_sub(refused.counted),
        RefusedBy::Driver | RefusedBy::BadCap | RefusedBy::Warned => {
            Some(refused.driver_free).filter(|free| *free > 0)?
        }
    };
    Some(one.ours().saturating_add(left))
}

fn attempt(advice: &Advice) -> Try {
    let text = text::oom::advice(advice);
    match advice.what {
        // The line stands for itself, and the text says what comes of it.
        AdvisedChange::Setting => Try {
            text: format!("replayed up to the failed request, it {}", text::oom::fits(advice)),
            copy: advice
                .conf
                .as_ref()
                .map(|conf| format!("export PYTORCH_CUDA_ALLOC_CONF={}", quoted(conf))),
        },
        AdvisedChange::EmptyCache => Try { text, copy: Some("torch.cuda.empty_cache()".into()) },
        _ => Try { text, copy: None },
    }
}
