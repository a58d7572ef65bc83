//! Rows, for spreadsheets and data frames. docs/EXPORT.md names the columns.

use std::borrow::Cow;
use std::io::{self, Write};

use csv::{Writer, WriterBuilder};
use serde::Serialize;
use vramtrace_format::{DeviceId, Header};

use super::TracedProcess;
use super::requester::Requester;
use super::sink::{Counter, Element, Sink};

pub(super) struct Csv<'o> {
    rows: Writer<&'o mut dyn Write>,
    /// Of the process that is being written.
    header: Header,
}

/// One row: its fields are the columns. What a record does not have is empty.
#[derive(Default, Serialize)]
struct TimelineRow<'r> {
    record: &'r str,
    time_s: String,
    end_s: Option<String>,
    end: Option<&'r str>,
    host: Cow<'r, str>,
    pid: u32,
    rank: Option<u32>,
    device: Option<u8>,
    kind: Cow<'r, str>,
    bytes: u64,
    physical_bytes: Option<u64>,
    address: Option<String>,
    api: Cow<'r, str>,
    tid: Option<u32>,
    stream: Option<String>,
    context: Option<u16>,
    pool: Option<u16>,
    result: String,
    cap_bytes: Option<u64>,
    role: &'r str,
    line: Cow<'r, str>,
    stack: Cow<'r, str>,
    brought_back_by: Cow<'r, str>,
}

impl<'o> Csv<'o> {
    pub(super) fn new(out: &'o mut dyn Write) -> io::Result<Csv<'o>> {
        // A timeline without rows has the names of the columns too.
        let mut first = Writer::from_writer(Vec::new());
        first.serialize(TimelineRow::default())?;
        let first = first.into_inner().map_err(|error| error.into_error())?;
        out.write_all(first.split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default())?;
        let rows = WriterBuilder::new().has_headers(false).from_writer(out);
        Ok(Csv { rows, header: Header::default() })
    }
}

/// A text that no spreadsheet takes for a formula: an apostrophe stands before one that begins like a formula. Numbers
/// are written as they are.
fn plain(text: &str) -> Cow<'_, str> {
    match text.starts_with(['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠']) {
        true => format!("'{text}").into(),
        false => text.into(),
    }
}

/// Exact: ns with a point.
fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

impl Sink for Csv<'_> {
    fn process(&mut self, process: &TracedProcess) -> io::Result<()> {
        self.header = process.trace.header().clone();
        Ok(())
    }

    fn write(&mut self, at_ns: u64, element: &Element) -> io::Result<()> {
        let known = |device: DeviceId| (device != DeviceId::UNKNOWN).then_some(device.0);
        let numbered = |number: u16| (number != 0).then_some(number);
        let row = match element {
            // An allocation has its role.
            Element::Counter(_, Counter::Role(_), _) | Element::Begin(_) | Element::Phase(_) => {
                return Ok(());
            }
            Element::Counter(device, what, bytes) => TimelineRow {
                record: "counter",
                time_s: seconds(at_ns),
                device: device.and_then(known),
                kind: what.name(),
                bytes: *bytes,
                ..TimelineRow::default()
            },
            Element::End(slice, how) => {
                let live = &slice.live;
                let who = |who: fn(&Requester) -> &str| plain(slice.who.as_deref().map_or("", who));
                let by = slice.brought_back_by.as_deref();
                TimelineRow {
                    record: "allocation",
                    time_s: seconds(slice.allocated_ns),
                    end_s: Some(seconds(at_ns)),
                    end: Some(how.name()),
                    device: slice.device.and_then(known),
                    kind: live.kind.name().into(),
                    bytes: live.size,
                    physical_bytes: slice.physical(),
                    address: Some(format!("{:#x}", slice.key.number)),
                    api: plain(&slice.api),
                    tid: Some(slice.tid).filter(|tid| *tid != 0),
                    stream: Some(format!("{:#x}", slice.stream)),
                    context: numbered(live.context.0),
                    pool: numbered(live.pool.0),
                    role: slice.role.map_or("", |role| role.name()),
                    line: who(Requester::name),
                    stack: who(|who| &who.stack),
                    brought_back_by: plain(by.map_or("", Requester::name)),
                    ..TimelineRow::default()
                }
            }
            Element::Refusal(refusal) => TimelineRow {
                record: "refusal",
                time_s: seconds(at_ns),
                device: known(refusal.device),
                kind: refusal.kind.map_or("", |kind| kind.name()).into(),
                bytes: refusal.refused.size,
                api: plain(&refusal.api),
                tid: Some(refusal.tid).filter(|tid| *tid != 0),
                result: format!("{} {}", refusal.refused.by.name(), refusal.refused.result),
                cap_bytes: Some(refusal.refused.limit).filter(|cap| *cap > 0),
                ..TimelineRow::default()
            },
        };
        let Header { host, pid, rank, .. } = &self.header;
        Ok(self.rows.serialize(TimelineRow { host: plain(host), pid: *pid, rank: *rank, ..row })?)
    }

    fn finish(mut self) -> io::Result<()> {
        self.rows.flush()
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_text_is_a_formula() {
        for text in ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1"] {
            assert_eq!(super::plain(text), format!("'{text}"));
        }
        for text in ["", "train.py:12", "'=1", " =1", "a=1", "1"] {
            assert_eq!(super::plain(text), text);
        }
    }

    #[test]
    fn seconds_are_exact() {
        assert_eq!(super::seconds(1_000_000_064), "1.000000064");
        assert_eq!(super::seconds(u64::MAX), "18446744073.709551615");
    }
}
