//! Writes the page: the built program of `web/` with the data in it.

use std::io::{self, Write};

use base64::engine::general_purpose::STANDARD;
use base64::write::EncoderWriter;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use serde::Serialize;
use vramtrace_format::Stamped;

use super::LIMIT;
use super::facts::{Advice, ProcessPage, advice, process_page};
use super::recorded::Recorded;
use super::recorder::Recorder;
use super::redact::Redaction;
use crate::analysis::Process;
use crate::analysis::roles::RoleFinder;
use crate::replay::{AllocCause, Key, Live, Observer, Until};
use crate::report::json;
use crate::symbols::Symbols;
use crate::trace::Trace;

/// The built page: `web/` is its source, `scripts/web.sh` builds it.
const PAGE: &str = include_str!("../../../assets/page.html");
/// The mark that the data replaces. The build checks that the page has it once.
const PLACE: &str = "<!--data-->";

/// One run on the page: its processes, read to their end, with their traces and names in the same
/// order.
pub struct PageRun<'p> {
    pub label: String,
    pub names: &'p [String],
    pub processes: &'p [Process],
    pub traces: &'p [Trace],
}

/// One process of a page.
struct Input<'p> {
    name: &'p str,
    process: &'p Process,
    trace: &'p Trace,
}

impl<'p> PageRun<'p> {
    fn inputs(&self) -> impl Iterator<Item = Input<'p>> {
        let both = self.processes.iter().zip(self.traces);
        let one = |(name, (process, trace)): (&'p String, _)| Input { name, process, trace };
        self.names.iter().zip(both).map(one)
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
}

const SCHEMA: &str = "vramtrace.page/1";

/// The most entries of each list in the facts of a device.
const TOP: usize = 10;

/// Writes one page with these runs. The page shows the first and compares it with the second.
pub fn write(
    runs: &[PageRun],
    redaction: Option<&Redaction>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let (head, tail) = PAGE
        .split_once(PLACE)
        .ok_or_else(|| io::Error::other("the built-in page lacks <!--data-->"))?;
    out.write_all(head.as_bytes())?;
    let all: Vec<Input> = runs.iter().flat_map(PageRun::inputs).collect();
    let mut pages: Vec<ProcessPage> = Vec::new();
    // The advice takes as long as the columns, so both are computed in parallel.
    std::thread::scope(|scope| {
        let advice = scope.spawn(|| -> Vec<Advice> {
            all.iter().map(|input| advice(input.process, input.trace)).collect()
        });
        let mut streams: Vec<(Recorded, u64)> = Vec::new();
        for (index, input) in all.iter().enumerate() {
            let below = lump_below(input);
            let recorded =
                section(out, &format!("stream-{index}"), |out| stream(input, below, out))?;
            streams.push((recorded, below));
        }
        let advice = advice.join().map_err(|_| io::Error::other("an analysis failed"))?;
        for ((input, (recorded, below)), advice) in all.iter().zip(streams).zip(advice) {
            pages.push(process_page(input.name, input.process, below, recorded, advice));
        }
        io::Result::Ok(())
    })?;
    let mut pages = pages.into_iter();
    let facts = Facts {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        redacted: redaction.is_some(),
        runs: runs
            .iter()
            .map(|run| RunFacts {
                label: run.label.clone(),
                report: json::process::report(run.processes, TOP),
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

/// Writes the columns of a process: its events in compact form.
fn stream(input: &Input, below: u64, out: &mut dyn Write) -> io::Result<Recorded> {
    let definitions = &input.process.definitions;
    let symbols = Symbols::of_all(definitions, &input.process.header);
    let roles = RoleFinder::new(input.trace, definitions, &symbols);
    let mut recorder = Recorder::new(definitions, &roles, below, io::BufWriter::new(out));
    input.trace.replay_until(definitions, Until::End, &mut recorder, &mut |_, _| {});
    let (recorded, mut out) = recorder.finish()?;
    out.flush()?;
    Ok(recorded)
}

/// The smallest segment of PyTorch's cache: memory of that size is never lumped.
const SEGMENT: u64 = 2 << 20;

/// The size in bytes below which blocks are lumped, so that [`LIMIT`] at most are listed one by one.
/// It is [`SEGMENT`] at most: a run with more allocations of that size lists more. 0: all are listed.
fn lump_below(input: &Input) -> u64 {
    let devices = input.process.state.devices.values();
    let calls = devices.map(|device| device.allocations.saturating_add(device.cache.allocations));
    if calls.fold(0, u64::saturating_add) <= LIMIT {
        return 0;
    }
    let mut sizes = Sizes([0; 65]);
    let definitions = &input.process.definitions;
    input.trace.replay_until(definitions, Until::End, &mut sizes, &mut |_, _| {});
    sizes.threshold(LIMIT).min(SEGMENT)
}

/// The number of allocations by the bit length of their size.
struct Sizes([u64; 65]);

impl Sizes {
    /// The smallest power of 2 for which `most` allocations at most are of that size or larger.
    fn threshold(&self, most: u64) -> u64 {
        let mut kept = 0;
        for power in (0..65).rev() {
            kept += self.0[power];
            if kept > most {
                return 1u64.checked_shl(power as u32).unwrap_or(u64::MAX);
            }
        }
        0
    }

    fn count(&mut self, size: u64) {
        self.0[64 - size.leading_zeros() as usize] += 1;
    }
}

impl Observer for Sizes {
    fn on_alloc(&mut self, _at: &Stamped, _key: Key, live: &Live, _how: AllocCause) {
        self.count(live.size);
    }

    fn on_block_alloc(&mut self, _at: &Stamped, _address: u64, live: &Live, _how: AllocCause) {
        self.count(live.size);
    }
}
