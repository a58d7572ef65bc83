//! Writes the page: the built program of `web/` with the data in it. The data is the document of `vramtrace report --json`,
//! with that of `fits`, and for each process what only the page has.

use std::io::{self, Write};

use base64::engine::general_purpose::STANDARD;
use base64::write::EncoderWriter;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use serde::Serialize;

use super::recorded::{OwnerKind, Recorded};
use super::second_pass::{self, SecondPass};
use super::tables::{Tables, tables};
use crate::analysis::Process;
use crate::analysis::fits::{Answer, Question, answer, marked_recordings};
use crate::analysis::leaks::Leak;
use crate::analysis::oom::PostMortem;
use crate::analysis::roles::Role;
use crate::analysis::steps::{Step, Steps};
use crate::report::json::process::ProcessesReport;
use crate::report::json::{Document, FragFacts};
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

const SCHEMA: &str = "vramtrace.page/4";

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
    /// Of each failure of the process, in its facts. `None`: the page has no event of it.
    failure_ordinals: Vec<Option<u64>>,
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

/// Assembles the facts, and fills [`Process::failures`].
fn process_page(name: &str, process: &mut Process, trace: &Trace, pass: SecondPass) -> ProcessPage {
    let SecondPass { recorded, failures, frag } = pass;
    process.judge(trace, failures);
    let leaks = process.leaks.iter().flat_map(|found| &found.leaks);
    let stacks = recorded.owners.iter().map(|(stack, _, _)| *stack);
    let symbols = Symbols::of(&process.definitions, &process.header, stacks);
    let steps = process.steps.as_ref().map(Steps::steps).unwrap_or_default();
    let ordinal = |one: &PostMortem| recorded.fatal.get(&one.oom.offset).copied();
    ProcessPage {
        name: name.to_string(),
        failure_ordinals: process.fatal().iter().map(ordinal).collect(),
        tables: tables(&recorded.owners, &symbols, &process.header),
        kinds: OwnerKind::all(),
        roles: Role::ALL.map(Role::name).into(),
        recorded,
        frag: frag.into_iter().map(|one| FragFacts::of(one, trace.header())).collect(),
        leaks: leaks.take(LEAKS).cloned().collect(),
        problems: symbols.problems().to_vec(),
        steps: steps.iter().take(STEPS).cloned().collect(),
    }
}
