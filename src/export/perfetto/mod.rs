//! Perfetto's own format: one packet sequence a process, names interned, a track a counter, and a
//! track a lane of allocations; the viewer folds tracks of one name into one.

pub mod proto;

use std::collections::HashMap;
use std::io::{self, Write};

use prost::Message;
use vramtrace_format::DeviceId;

use self::proto::{
    AnnotationValue, CounterDescriptor, DebugAnnotation, EventType, InternedData, InternedName,
    NEEDS_STATE, ProcessDescriptor, STATE_CLEARED, TracePacket, TrackDescriptor, TrackEvent, Unit,
};
use super::counter::Counter;
use super::lanes::MOST_LANES;
use super::phases::{Edge, ExportedPhase};
use super::processes::TracedProcess;
use super::sink::{Refusal, RoleSums, Sink, Slice, SliceEnd, device_name};
use crate::analysis::roles::Role;
use crate::trace::Definitions;
use crate::units::size;

/// Field 1 of a trace, a message: each packet is written as one.
const PACKET_KEY: u8 = 1 << 3 | 2;

pub struct Perfetto<'o> {
    out: &'o mut dyn Write,
    buffer: Vec<u8>,
    /// The process that is being written.
    sequence: u32,
    next_track: u64,
    process_track: u64,
    tracks: HashMap<Track, u64>,
    /// What the counters of roles show.
    roles: HashMap<(DeviceId, Role), u64>,
    categories: Names,
    names: Names,
    annotations: Names,
    /// The next packet is the sequence's first.
    fresh: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Track {
    Counter(Option<DeviceId>, Counter),
    /// Above the counters of roles.
    Roles(DeviceId),
    Role(DeviceId, Role),
    Lane(Option<DeviceId>, u32),
    Block(Option<DeviceId>, u32),
    Refusals(DeviceId),
    /// Of a thread.
    Phases(u32),
    /// Of no thread, by its name's id: such ranges may overlap.
    Range(u32),
}

impl Track {
    fn of(slice: &Slice) -> Track {
        match slice.is_block() {
            true => Track::Block(slice.device, slice.lane),
            false => Track::Lane(slice.device, slice.lane),
        }
    }
}

/// Interned names of one sequence.
#[derive(Default)]
struct Names {
    ids: HashMap<String, u64>,
    /// Not written yet.
    new: Vec<InternedName>,
}

impl Names {
    fn id(&mut self, name: &str) -> u64 {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = self.ids.len() as u64 + 1;
        self.ids.insert(name.into(), id);
        self.new.push(InternedName { iid: Some(id), name: Some(name.into()) });
        id
    }
}

impl<'o> Perfetto<'o> {
    pub fn new(out: &'o mut dyn Write) -> Perfetto<'o> {
        Perfetto {
            out,
            buffer: Vec::new(),
            sequence: 0,
            next_track: 0,
            process_track: 0,
            tracks: HashMap::new(),
            roles: HashMap::new(),
            categories: Names::default(),
            names: Names::default(),
            annotations: Names::default(),
            fresh: true,
        }
    }

    fn packet(&mut self, mut packet: TracePacket) -> io::Result<()> {
        packet.trusted_packet_sequence_id = Some(self.sequence);
        let cleared = std::mem::take(&mut self.fresh);
        packet.sequence_flags =
            Some(if cleared { STATE_CLEARED | NEEDS_STATE } else { NEEDS_STATE });
        let interned = InternedData {
            event_categories: std::mem::take(&mut self.categories.new),
            event_names: std::mem::take(&mut self.names.new),
            debug_annotation_names: std::mem::take(&mut self.annotations.new),
        };
        packet.interned_data = Some(interned).filter(|new| *new != InternedData::default());
        self.buffer.clear();
        self.buffer.push(PACKET_KEY);
        packet.encode_length_delimited(&mut self.buffer).map_err(io::Error::other)?;
        self.out.write_all(&self.buffer)
    }

    fn event(&mut self, at_ns: u64, kind: EventType, event: TrackEvent) -> io::Result<()> {
        let event = TrackEvent { r#type: Some(kind.into()), ..event };
        self.packet(TracePacket {
            timestamp: Some(at_ns),
            track_event: Some(event),
            ..TracePacket::default()
        })
    }

    /// The uuid of a track; describes it before its first use.
    fn track(&mut self, track: Track) -> io::Result<u64> {
        if let Some(uuid) = self.tracks.get(&track) {
            return Ok(*uuid);
        }
        let (name, counter) = match track {
            Track::Counter(device, what) => {
                let unit = Some(Unit::SizeBytes.into());
                let name = format!("{}: {}", device_name(device), what.name());
                (name, Some(CounterDescriptor { unit }))
            }
            Track::Roles(device) => (format!("{} by role", device_name(Some(device))), None),
            Track::Role(_, role) => {
                let unit = Some(Unit::SizeBytes.into());
                (role.name().to_string(), Some(CounterDescriptor { unit }))
            }
            Track::Lane(device, _) => (format!("{} allocations", device_name(device)), None),
            Track::Block(device, _) => (format!("{} PyTorch blocks", device_name(device)), None),
            Track::Phases(tid) => (format!("phases of thread {tid}"), None),
            Track::Range(_) => ("phases".to_string(), None),
            Track::Refusals(device) => (format!("{} refusals", device_name(Some(device))), None),
        };
        let parent = match track {
            Track::Role(device, _) => self.track(Track::Roles(device))?,
            _ => self.process_track,
        };
        let uuid = self.describe(TrackDescriptor {
            name: Some(name),
            parent_uuid: Some(parent),
            counter,
            ..TrackDescriptor::default()
        })?;
        self.tracks.insert(track, uuid);
        Ok(uuid)
    }

    fn describe(&mut self, descriptor: TrackDescriptor) -> io::Result<u64> {
        self.next_track += 1;
        let uuid = self.next_track;
        self.packet(TracePacket {
            track_descriptor: Some(TrackDescriptor { uuid: Some(uuid), ..descriptor }),
            ..TracePacket::default()
        })?;
        Ok(uuid)
    }

    fn annotate(&mut self, name: &str, value: AnnotationValue) -> DebugAnnotation {
        DebugAnnotation { name_iid: Some(self.annotations.id(name)), value: Some(value) }
    }
}

impl Sink for Perfetto<'_> {
    fn process(&mut self, process: &TracedProcess, _definitions: &Definitions) -> io::Result<()> {
        self.sequence = process.number;
        self.tracks.clear();
        self.roles.clear();
        self.categories = Names::default();
        self.names = Names::default();
        self.annotations = Names::default();
        self.fresh = true;
        self.process_track = self.describe(TrackDescriptor {
            process: Some(ProcessDescriptor {
                pid: i32::try_from(process.pid).ok(),
                cmdline: process.trace.header().command.clone(),
                process_name: Some(process.label.clone()),
            }),
            ..TrackDescriptor::default()
        })?;
        Ok(())
    }

    fn counter(
        &mut self,
        at_ns: u64,
        device: Option<DeviceId>,
        what: Counter,
        bytes: u64,
    ) -> io::Result<()> {
        let track = self.track(Track::Counter(device, what))?;
        let value = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.event(
            at_ns,
            EventType::Counter,
            TrackEvent {
                track_uuid: Some(track),
                counter_value: Some(value),
                ..TrackEvent::default()
            },
        )
    }

    fn begin(&mut self, at_ns: u64, slice: &Slice) -> io::Result<()> {
        let track = self.track(Track::of(slice))?;
        let live = &slice.live;
        let mut debug_annotations = vec![
            self.annotate("size", AnnotationValue::Text(size(live.size))),
            self.annotate("bytes", AnnotationValue::Uint(live.size)),
            self.annotate("address", AnnotationValue::Pointer(slice.key.number)),
            self.annotate("stream", AnnotationValue::Pointer(slice.stream)),
            self.annotate("tid", AnnotationValue::Uint(slice.tid.into())),
            self.annotate("allocated_s", AnnotationValue::Double(slice.allocated_ns as f64 / 1e9)),
        ];
        let api = AnnotationValue::Text(slice.api.to_string());
        debug_annotations.push(self.annotate("api", api));
        if let Some(role) = slice.role {
            let role = AnnotationValue::Text(role.name().into());
            debug_annotations.push(self.annotate("role", role));
        }
        if let Some(bytes) = slice.physical() {
            debug_annotations.push(self.annotate("physical_bytes", AnnotationValue::Uint(bytes)));
        }
        for (name, words) in slice.who.iter().flat_map(|who| who.words()) {
            debug_annotations.push(self.annotate(name, AnnotationValue::Text(words.into())));
        }
        if let Some(by) = &slice.brought_back_by {
            let by = AnnotationValue::Text(by.name().into());
            debug_annotations.push(self.annotate("brought_back_by", by));
        }
        let event = TrackEvent {
            track_uuid: Some(track),
            category_iids: vec![self.categories.id(live.kind.name())],
            name_iid: Some(self.names.id(&slice.name())),
            debug_annotations,
            ..TrackEvent::default()
        };
        self.event(at_ns, EventType::SliceBegin, event)
    }

    fn end(&mut self, at_ns: u64, slice: &Slice, how: SliceEnd) -> io::Result<()> {
        let track = self.track(Track::of(slice))?;
        let lifetime = at_ns.saturating_sub(slice.allocated_ns) as f64 / 1e9;
        let debug_annotations = vec![
            self.annotate("end", AnnotationValue::Text(how.name().into())),
            self.annotate("lifetime_s", AnnotationValue::Double(lifetime)),
        ];
        let event =
            TrackEvent { track_uuid: Some(track), debug_annotations, ..TrackEvent::default() };
        self.event(at_ns, EventType::SliceEnd, event)
    }

    fn refusal(&mut self, at_ns: u64, refusal: &Refusal) -> io::Result<()> {
        let track = self.track(Track::Refusals(refusal.device))?;
        let refused = &refusal.refused;
        let debug_annotations = vec![
            self.annotate("size", AnnotationValue::Text(size(refused.size))),
            self.annotate("bytes", AnnotationValue::Uint(refused.size)),
            self.annotate("counted_bytes", AnnotationValue::Uint(refused.counted)),
            self.annotate("cap_bytes", AnnotationValue::Uint(refused.limit)),
            self.annotate("result", AnnotationValue::Text(refused.result.to_string())),
            self.annotate("api", AnnotationValue::Text(refusal.api.to_string())),
        ];
        let event = TrackEvent {
            track_uuid: Some(track),
            category_iids: vec![self.categories.id("refusal")],
            name_iid: Some(self.names.id(&format!("refused by {}", refusal.by()))),
            debug_annotations,
            ..TrackEvent::default()
        };
        self.event(at_ns, EventType::Instant, event)
    }

    fn phase(&mut self, at_ns: u64, phase: &ExportedPhase) -> io::Result<()> {
        let track = self.track(phase.tid.map_or(Track::Range(phase.id), Track::Phases))?;
        let event = TrackEvent {
            track_uuid: Some(track),
            category_iids: vec![self.categories.id("phase")],
            name_iid: Some(self.names.id(phase.name)),
            ..TrackEvent::default()
        };
        let kind = match phase.what {
            Edge::Begin => EventType::SliceBegin,
            Edge::End => EventType::SliceEnd,
            Edge::Moment => EventType::Instant,
        };
        self.event(at_ns, kind, event)
    }

    fn lanes(&self) -> Option<u32> {
        Some(MOST_LANES)
    }

    fn roles(&mut self, at_ns: u64, device: DeviceId, sums: &RoleSums) -> io::Result<()> {
        for role in Role::ALL {
            let bytes = sums[role.index()];
            let before = self.roles.insert((device, role), bytes);
            if before.unwrap_or(0) == bytes {
                continue;
            }
            let track = self.track(Track::Role(device, role))?;
            let counter_value = Some(i64::try_from(bytes).unwrap_or(i64::MAX));
            let event =
                TrackEvent { track_uuid: Some(track), counter_value, ..TrackEvent::default() };
            self.event(at_ns, EventType::Counter, event)?;
        }
        Ok(())
    }

    fn finish(self) -> io::Result<()> {
        self.out.flush()
    }
}
