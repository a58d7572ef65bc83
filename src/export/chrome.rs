//! The Trace Event format: JSON that chrome://tracing and Perfetto open.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Map, Value, json};
use vramtrace_format::DeviceId;

use super::counter::Counter;
use super::lanes::MOST_LANES;
use super::phases::{Edge, ExportedPhase};
use super::processes::TracedProcess;
use super::sink::{Detail, Refusal, RoleSums, Sink, Slice, SliceEnd, device_name};
use crate::analysis::roles::Role;
use crate::trace::Definitions;
use crate::units::size;

pub(super) struct Chrome<'o> {
    out: &'o mut dyn Write,
    first: bool,
    process: u32,
    pid: u32,
}

/// `ts` is in microseconds; a `b` and its `e` share category and id.
#[derive(Serialize)]
struct Event<'e> {
    ph: &'static str,
    name: &'e str,
    pid: u32,
    tid: u32,
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    args: Value,
}

impl<'o> Chrome<'o> {
    pub(super) fn new(out: &'o mut dyn Write) -> io::Result<Chrome<'o>> {
        out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")?;
        Ok(Chrome { out, first: true, process: 0, pid: 0 })
    }

    fn write(&mut self, event: &Event) -> io::Result<()> {
        if !std::mem::take(&mut self.first) {
            self.out.write_all(b",\n")?;
        }
        serde_json::to_writer(&mut *self.out, event)?;
        Ok(())
    }

    fn event<'e>(&self, ph: &'static str, at_ns: u64, name: &'e str, args: Value) -> Event<'e> {
        let (pid, ts) = (self.pid, at_ns as f64 / 1e3);
        Event { ph, name, pid, tid: 0, ts, cat: None, id: None, s: None, args }
    }

    fn slice<'e>(
        &self,
        ph: &'static str,
        at_ns: u64,
        (slice, name): (&Slice, &'e str),
        args: Value,
    ) -> Event<'e> {
        let device = slice.device.map_or("host".into(), |device| device.0.to_string());
        Event {
            tid: slice.tid,
            cat: Some(if slice.is_block() { "block" } else { "allocation" }),
            // Slices of one lane follow each other, so that an id can be used again.
            id: Some(match slice.is_block() {
                true => format!("{}/{device}/block {}", self.process, slice.lane),
                false => format!("{}/{device}/{}", self.process, slice.lane),
            }),
            ..self.event(ph, at_ns, name, args)
        }
    }
}

fn args<'s>(details: impl IntoIterator<Item = (&'static str, Detail<'s>)>) -> Map<String, Value> {
    let value = |detail| match detail {
        Detail::Text(text) => text.into(),
        Detail::Number(number) => number.into(),
        Detail::Pointer(address) => format!("{address:#x}").into(),
        Detail::Seconds(seconds) => seconds.into(),
    };
    details.into_iter().map(|(name, detail)| (name.to_string(), value(detail))).collect()
}

impl Sink for Chrome<'_> {
    fn process(&mut self, process: &TracedProcess, definitions: &Definitions) -> io::Result<()> {
        (self.process, self.pid) = (process.number, process.pid);
        let name = json!({ "name": process.label });
        self.write(&self.event("M", 0, "process_name", name))?;
        let place = json!({ "sort_index": process.number });
        self.write(&self.event("M", 0, "process_sort_index", place))?;
        // By number: the same in every writing.
        let mut threads: Vec<_> = definitions.threads().collect();
        threads.sort_by_key(|thread| (thread.tid, &thread.name));
        for thread in threads {
            let name = json!({ "name": thread.name });
            let event = self.event("M", 0, "thread_name", name);
            self.write(&Event { tid: thread.tid, ..event })?;
        }
        Ok(())
    }

    fn counter(
        &mut self,
        at_ns: u64,
        device: Option<DeviceId>,
        what: Counter,
        bytes: u64,
    ) -> io::Result<()> {
        let name = format!("{}: {}", device_name(device), what.name());
        self.write(&self.event("C", at_ns, &name, json!({ "bytes": bytes })))
    }

    fn begin(&mut self, at_ns: u64, slice: &Slice) -> io::Result<()> {
        let mut args = args(slice.details());
        // The event itself has it.
        args.remove("tid");
        args.entry("physical_bytes").or_insert(Value::Null);
        args.insert("kind".into(), slice.live.kind.name().into());
        args.insert("device".into(), device_name(slice.device).into());
        self.write(&self.slice("b", at_ns, (slice, &slice.name()), args.into()))
    }

    fn end(&mut self, at_ns: u64, slice: &Slice, how: SliceEnd) -> io::Result<()> {
        let args = args(slice.end_details(at_ns, how));
        self.write(&self.slice("e", at_ns, (slice, &slice.name()), args.into()))
    }

    fn refusal(&mut self, at_ns: u64, refusal: &Refusal) -> io::Result<()> {
        let name =
            format!("refused by {}: {}", refusal.refused.by.name(), size(refusal.refused.size));
        let args = json!({
            "bytes": refusal.refused.size,
            "kind": refusal.kind.map(|kind| kind.name()),
            "device": device_name(Some(refusal.device)),
            "api": &*refusal.api,
            "result": refusal.refused.result,
            "counted_bytes": refusal.refused.counted,
            "cap_bytes": refusal.refused.limit,
        });
        let event = self.event("i", at_ns, &name, args);
        self.write(&Event { tid: refusal.tid, cat: Some("refusal"), s: Some("p"), ..event })
    }

    fn phase(&mut self, at_ns: u64, phase: &ExportedPhase) -> io::Result<()> {
        let (ph, id) = match (phase.what, phase.tid) {
            (Edge::Begin, Some(_)) => ("B", None),
            (Edge::End, Some(_)) => ("E", None),
            (Edge::Moment, _) => ("i", None),
            (Edge::Begin, None) => ("b", Some(format!("{}/range/{}", self.process, phase.id))),
            (Edge::End, None) => ("e", Some(format!("{}/range/{}", self.process, phase.id))),
        };
        let event = self.event(ph, at_ns, phase.name, json!({}));
        let s = (ph == "i").then_some("t");
        self.write(&Event { tid: phase.tid.unwrap_or(0), cat: Some("phase"), id, s, ..event })
    }

    fn lanes(&self) -> Option<u32> {
        Some(MOST_LANES)
    }

    /// Viewers stack the values of one counter.
    fn roles(&mut self, at_ns: u64, device: DeviceId, sums: &RoleSums) -> io::Result<()> {
        let value = |role: Role| (role.name().to_string(), Value::from(sums[role.index()]));
        let known = Role::ALL.into_iter().filter(|role| *role != Role::Context);
        let args = Value::Object(known.map(value).collect());
        let name = format!("{} by role", device_name(Some(device)));
        self.write(&self.event("C", at_ns, &name, args))
    }

    fn finish(self) -> io::Result<()> {
        self.out.write_all(b"\n]}\n")?;
        self.out.flush()
    }
}
