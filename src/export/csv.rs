//! Rows, for spreadsheets and data frames. docs/EXPORT.md names the columns.

use std::borrow::Cow;
use std::io::{self, Write};

use vramtrace_format::DeviceId;

use super::counter::Counter;
use super::processes::TracedProcess;
use super::sink::{Refusal, Sink, Slice, SliceEnd};
use crate::trace::Definitions;

const COLUMNS: [&str; 23] = [
    "record",
    "time_s",
    "end_s",
    "end",
    "host",
    "pid",
    "rank",
    "device",
    "kind",
    "bytes",
    "physical_bytes",
    "address",
    "api",
    "tid",
    "stream",
    "context",
    "pool",
    "result",
    "cap_bytes",
    "role",
    "line",
    "stack",
    "brought_back_by",
];

pub(super) struct Csv<'o> {
    rows: csv::Writer<&'o mut dyn Write>,
    host: String,
    pid: String,
    rank: String,
}

/// One row; what a record does not have is empty.
#[derive(Default)]
struct Row {
    record: &'static str,
    time_ns: u64,
    end: Option<(u64, SliceEnd)>,
    device: Option<DeviceId>,
    kind: &'static str,
    bytes: u64,
    physical: Option<u64>,
    address: Option<u64>,
    api: String,
    tid: u32,
    stream: Option<u64>,
    context: u16,
    pool: u16,
    result: String,
    cap: Option<u64>,
    role: &'static str,
    line: String,
    stack: String,
    brought_back_by: String,
}

impl<'o> Csv<'o> {
    pub(super) fn new(out: &'o mut dyn Write) -> io::Result<Csv<'o>> {
        let mut rows = csv::Writer::from_writer(out);
        rows.write_record(COLUMNS)?;
        Ok(Csv { rows, host: String::new(), pid: String::new(), rank: String::new() })
    }

    fn write(&mut self, row: &Row) -> io::Result<()> {
        fn some(value: Option<impl ToString>) -> String {
            value.map_or(String::new(), |value| value.to_string())
        }
        let known = |id: u32| (id != 0).then_some(id);
        let device = row.device.filter(|device| *device != DeviceId::UNKNOWN);
        self.rows.write_record([
            row.record,
            &seconds(row.time_ns),
            &some(row.end.map(|(at, _)| seconds(at))),
            &some(row.end.map(|(_, how)| how.name())),
            &*plain(&self.host),
            &self.pid,
            &self.rank,
            &some(device.map(|device| device.0)),
            row.kind,
            &row.bytes.to_string(),
            &some(row.physical),
            &some(row.address.map(|address| format!("{address:#x}"))),
            &*plain(&row.api),
            &some(known(row.tid)),
            &some(row.stream.map(|stream| format!("{stream:#x}"))),
            &some(known(row.context.into())),
            &some(known(row.pool.into())),
            &*plain(&row.result),
            &some(row.cap),
            row.role,
            &*plain(&row.line),
            &*plain(&row.stack),
            &*plain(&row.brought_back_by),
        ])?;
        Ok(())
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
    fn process(&mut self, process: &TracedProcess, _definitions: &Definitions) -> io::Result<()> {
        let header = process.trace.header();
        self.host = header.host.clone();
        self.pid = header.pid.to_string();
        self.rank = header.rank.map_or(String::new(), |rank| rank.to_string());
        Ok(())
    }

    fn counter(
        &mut self,
        at_ns: u64,
        device: Option<DeviceId>,
        what: Counter,
        bytes: u64,
    ) -> io::Result<()> {
        self.write(&Row {
            record: "counter",
            time_ns: at_ns,
            device,
            kind: what.name(),
            bytes,
            ..Row::default()
        })
    }

    fn begin(&mut self, _at_ns: u64, _slice: &Slice) -> io::Result<()> {
        Ok(())
    }

    fn end(&mut self, at_ns: u64, slice: &Slice, how: SliceEnd) -> io::Result<()> {
        self.write(&Row {
            record: "allocation",
            time_ns: slice.allocated_ns,
            end: Some((at_ns, how)),
            device: slice.device,
            kind: slice.live.kind.name(),
            bytes: slice.live.size,
            physical: slice.physical(),
            address: Some(slice.key.number),
            api: slice.api.to_string(),
            tid: slice.tid,
            stream: Some(slice.stream),
            context: slice.live.context.0,
            pool: slice.live.pool.0,
            role: slice.role.map_or("", |role| role.name()),
            line: slice.who.as_ref().map_or(String::new(), |who| who.name().to_string()),
            stack: slice.who.as_ref().map_or(String::new(), |who| who.stack.clone()),
            brought_back_by: slice
                .brought_back_by
                .as_ref()
                .map_or(String::new(), |who| who.name().to_string()),
            ..Row::default()
        })
    }

    fn refusal(&mut self, at_ns: u64, refusal: &Refusal) -> io::Result<()> {
        self.write(&Row {
            record: "refusal",
            time_ns: at_ns,
            device: Some(refusal.device),
            kind: refusal.kind.map_or("", |kind| kind.name()),
            bytes: refusal.refused.size,
            api: refusal.api.to_string(),
            tid: refusal.tid,
            result: format!("{} {}", refusal.by(), refusal.refused.result),
            cap: (refusal.refused.limit > 0).then_some(refusal.refused.limit),
            ..Row::default()
        })
    }

    fn whole_stacks(&self) -> bool {
        true
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
