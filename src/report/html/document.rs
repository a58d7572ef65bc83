//! Writes the page: the built program of `web/` with the data in it.

use std::io::{self, Write};

use base64::engine::general_purpose::STANDARD;
use base64::write::EncoderWriter;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use serde::Serialize;

use super::facts::{Prediction, ProcessPage, process_page, whatif};
use super::fits::{PageFits, fits};
use super::redact::Redaction;
use super::second_pass::{self, SecondPass};
use crate::analysis::Process;
use crate::report::json;
use crate::trace::Trace;

/// The built page: `web/` is its source, `scripts/web.sh` builds it.
const PAGE: &str = include_str!("../../../assets/page.html");
/// The mark that the data replaces. The build checks that the page has it once.
const PLACE: &str = "<!--data-->";

/// One run on the page: its processes, read to their end, with their traces and names in the same
/// order.
pub struct PageRun {
    pub label: String,
    pub names: Vec<String>,
    /// Read with [`super::COLLECT`].
    pub processes: Vec<Process>,
    pub traces: Vec<Trace>,
}

impl PageRun {
    fn inputs(&self) -> impl Iterator<Item = (&Process, &Trace)> {
        self.processes.iter().zip(&self.traces)
    }
}

#[derive(Serialize)]
struct Facts {
    schema: &'static str,
    version: &'static str,
    redacted: bool,
    runs: Vec<RunFacts>,
}

#[derive(Serialize)]
struct RunFacts {
    label: String,
    report: json::process::ProcessesReport,
    processes: Vec<ProcessPage>,
    /// Which batch fits.
    fits: Option<PageFits>,
}

const SCHEMA: &str = "vramtrace.page/1";

/// The most entries of each list in the facts of a device.
const TOP: usize = 10;

/// Writes one page with these runs. The page shows the first and compares it with the second.
pub fn write(
    runs: &mut [PageRun],
    redaction: Option<&Redaction>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let (head, tail) = PAGE
        .split_once(PLACE)
        .ok_or_else(|| io::Error::other("the built-in page lacks <!--data-->"))?;
    out.write_all(head.as_bytes())?;
    // What-if replays the requests of a trace under other settings, and so does the search for the batch that fits. That
    // takes as long as the columns, so both are computed in parallel.
    let (passes, predictions, fitting) = std::thread::scope(|scope| {
        let all: Vec<(&Process, &Trace)> = runs.iter().flat_map(|run| run.inputs()).collect();
        let inputs = all.clone();
        let by_run: Vec<&[Trace]> = runs.iter().map(|run| &run.traces[..]).collect();
        let predictions = scope.spawn(move || {
            let predictions = inputs.iter().map(|(process, trace)| whatif(process, trace));
            (predictions.collect(), by_run.into_iter().map(fits).collect())
        });
        let mut passes: Vec<SecondPass> = Vec::new();
        for (index, (process, trace)) in all.into_iter().enumerate() {
            let id = format!("stream-{index}");
            passes.push(section(out, &id, |out| second_pass::run(process, trace, out))?);
        }
        let (predictions, fitting): (Vec<Prediction>, Vec<Option<PageFits>>) =
            predictions.join().map_err(|_| io::Error::other("an analysis failed"))?;
        io::Result::Ok((passes, predictions, fitting))
    })?;
    let mut found = passes.into_iter().zip(predictions);
    let mut pages: Vec<ProcessPage> = Vec::new();
    for run in &mut *runs {
        let inputs =
            run.names.iter().zip(run.processes.iter_mut().zip(&run.traces)).zip(&mut found);
        for ((name, (process, trace)), (pass, prediction)) in inputs {
            pages.push(process_page(name, process, trace, pass, prediction));
        }
    }
    let mut pages = pages.into_iter();
    let facts = Facts {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        redacted: redaction.is_some(),
        runs: runs
            .iter()
            .zip(fitting)
            .map(|(run, fits)| RunFacts {
                fits,
                label: run.label.clone(),
                report: json::process::report(&run.processes, TOP),
                processes: pages.by_ref().take(run.processes.len()).collect(),
            })
            .collect(),
    };
    let mut document = serde_json::to_value(&facts)?;
    if let Some(redaction) = redaction {
        redaction.apply(&mut document);
    }
    section(out, "facts", |out| Ok(serde_json::to_writer(out, &document)?))?;
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
