//! The Trace Event format: JSON that chrome://tracing and Perfetto open.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::TracedProcess;
use super::lanes::{MAX_LANES, group};
use super::perfetto::proto::AnnotationValue;
use super::perfetto::{Detail, details, refusal_details};
use super::sink::{Edge, Element, Sink, Slice, device_name};

pub(super) struct Chrome<'o> {
    out: &'o mut dyn Write,
    first: bool,
    process: u32,
    pid: u32,
}

impl<'o> Chrome<'o> {
    pub(super) fn new(out: &'o mut dyn Write) -> io::Result<Chrome<'o>> {
        out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")?;
        Ok(Chrome { out, first: true, process: 0, pid: 0 })
    }

    /// Writes an event of this process. `more`: the keys that not every event has.
    fn event<const N: usize>(
        &mut self,
        phase: &str,
        at_ns: u64,
        name: &str,
        more: [(&str, Value); N],
    ) -> io::Result<()> {
        if !std::mem::take(&mut self.first) {
            self.out.write_all(b",\n")?;
        }
        // In microseconds.
        let ts = at_ns as f64 / 1e3;
        let mut event = json!({ "ph": phase, "name": name, "pid": self.pid, "tid": 0, "ts": ts });
        more.into_iter().for_each(|(key, value)| event[key] = value);
        Ok(serde_json::to_writer(&mut *self.out, &event)?)
    }

    fn slice(&mut self, phase: &str, at_ns: u64, slice: &Slice, args: Value) -> io::Result<()> {
        let (device, is_block) = group(&slice.live);
        let level = if is_block { "block" } else { "allocation" };
        // A begin and its end share it. Slices of one lane follow each other, so that an id can be used again.
        let id = format!("{}/{}/{level} {}", self.process, device_name(device), slice.lane);
        let tid = slice.tid.into();
        let more = [("cat", level.into()), ("id", id.into()), ("tid", tid), ("args", args)];
        self.event(phase, at_ns, &slice.name(), more)
    }
}

fn args(details: Vec<Detail>) -> Value {
    let value = |detail| match detail {
        AnnotationValue::Text(text) => Value::from(text),
        AnnotationValue::Uint(number) => Value::from(number),
        AnnotationValue::Pointer(address) => Value::from(format!("{address:#x}")),
        AnnotationValue::Double(number) => Value::from(number),
    };
    details.into_iter().map(|(name, detail)| (name, value(detail))).collect()
}

impl Sink for Chrome<'_> {
    const LANES: Option<u32> = Some(MAX_LANES);

    fn process(&mut self, process: &TracedProcess) -> io::Result<()> {
        (self.process, self.pid) = (process.number, process.pid);
        let args = |args| [("args", args)];
        self.event("M", 0, "process_name", args(json!({ "name": process.label })))?;
        let place = json!({ "sort_index": process.number });
        self.event("M", 0, "process_sort_index", args(place))
    }

    fn write(&mut self, at_ns: u64, element: &Element) -> io::Result<()> {
        match *element {
            Element::Counter(device, what, bytes) => {
                let name = format!("{}: {}", device_name(device), what.name());
                self.event("C", at_ns, &name, [("args", json!({ "bytes": bytes }))])
            }
            Element::Begin(slice) => self.slice("b", at_ns, slice, args(details(slice))),
            Element::End(slice, how) => self.slice("e", at_ns, slice, json!({ "end": how.name() })),
            Element::Refusal(refusal) => {
                let name = format!("refused by {}", refusal.refused.by.name());
                let args = args(refusal_details(refusal));
                let tid = refusal.tid.into();
                let more =
                    [("cat", "refusal".into()), ("s", "p".into()), ("tid", tid), ("args", args)];
                self.event("i", at_ns, &name, more)
            }
            Element::Phase(phase) => {
                // A range that any thread may end is an asynchronous event, with an id.
                let kind = match (phase.what, phase.tid) {
                    (Edge::Begin, Some(_)) => "B",
                    (Edge::End, Some(_)) => "E",
                    (Edge::Begin, None) => "b",
                    (Edge::End, None) => "e",
                    (Edge::Moment, _) => "i",
                };
                let id = format!("{}/range/{}", self.process, phase.id);
                let of = phase.tid.map_or(("id", id.into()), |tid| ("tid", tid.into()));
                self.event(kind, at_ns, phase.name, [("cat", "phase".into()), of])
            }
        }
    }

    fn finish(self) -> io::Result<()> {
        self.out.write_all(b"\n]}\n")?;
        self.out.flush()
    }
}
