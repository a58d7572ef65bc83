//! Perfetto's own format: one packet sequence a process, names interned, a track a counter, and a
//! track a lane of allocations; the viewer folds tracks of one name into one.

pub mod proto;

use std::collections::HashMap;
use std::io::{self, Write};

use indexmap::IndexSet;
use prost::Message;
use rustc_hash::FxBuildHasher;
use vramtrace_format::DeviceId;

use self::proto::{
    AnnotationValue, CounterDescriptor, DebugAnnotation, EventType, InternedData, InternedName,
    NEEDS_STATE, ProcessDescriptor, STATE_CLEARED, TracePacket, TrackDescriptor, TrackEvent,
    UNIT_BYTES,
};
use super::TracedProcess;
use super::lanes::{LaneGroup, MAX_LANES, group};
use super::sink::{Counter, Edge, Element, Refusal, Sink, Slice, device_name};
use crate::units::size;

/// Field 1 of a trace, a message: each packet is written as one.
const PACKET_KEY: u8 = 1 << 3 | 2;

pub struct Perfetto<'o> {
    out: &'o mut dyn Write,
    buffer: Vec<u8>,
    next_track: u64,
    sequence: Sequence,
}

/// The process that is being written.
#[derive(Default)]
struct Sequence {
    id: u32,
    /// Its first packet is written.
    begun: bool,
    process_track: u64,
    tracks: HashMap<Track, u64>,
    categories: Names,
    names: Names,
    annotations: Names,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Track {
    Counter(Option<DeviceId>, Counter),
    /// Above the counters of roles.
    Roles(Option<DeviceId>),
    Lane(LaneGroup, u32),
    Refusals(DeviceId),
    /// Of a thread.
    Phases(u32),
    /// Of no thread, by its name's id: such ranges may overlap.
    Range(u32),
}

impl Track {
    fn name(self) -> String {
        match self {
            Track::Counter(_, Counter::Role(role)) => role.name().into(),
            Track::Counter(device, what) => format!("{}: {}", device_name(device), what.name()),
            Track::Roles(device) => format!("{} by role", device_name(device)),
            Track::Lane((device, false), _) => format!("{} allocations", device_name(device)),
            Track::Lane((device, true), _) => format!("{} PyTorch blocks", device_name(device)),
            Track::Refusals(device) => format!("{} refusals", device_name(Some(device))),
            Track::Phases(tid) => format!("phases of thread {tid}"),
            Track::Range(_) => "phases".into(),
        }
    }
}

/// Interned names of one sequence.
#[derive(Default)]
struct Names {
    all: IndexSet<String, FxBuildHasher>,
    /// How many of them are written.
    written: usize,
}

impl Names {
    /// The number of a name, from 1.
    fn id(&mut self, name: &str) -> u64 {
        let known = self.all.get_index_of(name);
        known.unwrap_or_else(|| self.all.insert_full(name.to_string()).0) as u64 + 1
    }

    /// Those that are not written yet.
    fn take_new(&mut self) -> Vec<InternedName> {
        let new =
            self.all.iter().zip(1..).skip(std::mem::replace(&mut self.written, self.all.len()));
        new.map(|(name, id)| InternedName { iid: Some(id), name: Some(name.clone()) }).collect()
    }
}

impl<'o> Perfetto<'o> {
    pub fn new(out: &'o mut dyn Write) -> Perfetto<'o> {
        Perfetto { out, buffer: Vec::new(), next_track: 0, sequence: Sequence::default() }
    }

    fn packet(&mut self, mut packet: TracePacket) -> io::Result<()> {
        let of = &mut self.sequence;
        packet.trusted_packet_sequence_id = Some(of.id);
        let cleared = if std::mem::replace(&mut of.begun, true) { 0 } else { STATE_CLEARED };
        packet.sequence_flags = Some(cleared | NEEDS_STATE);
        let interned = InternedData {
            event_categories: of.categories.take_new(),
            event_names: of.names.take_new(),
            debug_annotation_names: of.annotations.take_new(),
        };
        packet.interned_data = Some(interned).filter(|new| *new != InternedData::default());
        self.buffer.clear();
        self.buffer.push(PACKET_KEY);
        packet.encode_length_delimited(&mut self.buffer).map_err(io::Error::other)?;
        self.out.write_all(&self.buffer)
    }

    /// The uuid of a track; describes it before its first use.
    fn track(&mut self, track: Track) -> io::Result<u64> {
        if let Some(uuid) = self.sequence.tracks.get(&track) {
            return Ok(*uuid);
        }
        let parent = match track {
            Track::Counter(device, Counter::Role(_)) => self.track(Track::Roles(device))?,
            _ => self.sequence.process_track,
        };
        let is_counter = matches!(track, Track::Counter(..));
        let counter = CounterDescriptor { unit: Some(UNIT_BYTES) };
        let uuid = self.describe(TrackDescriptor {
            name: Some(track.name()),
            parent_uuid: Some(parent),
            counter: is_counter.then_some(counter),
            ..TrackDescriptor::default()
        })?;
        self.sequence.tracks.insert(track, uuid);
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

    /// An event with a name.
    fn named(&mut self, category: &str, name: &str) -> TrackEvent {
        TrackEvent {
            category_iids: vec![self.sequence.categories.id(category)],
            name_iid: Some(self.sequence.names.id(name)),
            ..TrackEvent::default()
        }
    }
}

/// A named value that the viewer shows.
type Detail = (&'static str, AnnotationValue);

fn text(words: &str) -> AnnotationValue {
    AnnotationValue::Text(words.into())
}

fn seconds(ns: u64) -> AnnotationValue {
    AnnotationValue::Double(ns as f64 / 1e9)
}

fn details(slice: &Slice) -> Vec<Detail> {
    let mut all = vec![
        ("size", text(&size(slice.live.size))),
        ("bytes", AnnotationValue::Uint(slice.live.size)),
        ("address", AnnotationValue::Pointer(slice.key.number)),
        ("stream", AnnotationValue::Pointer(slice.stream)),
        ("tid", AnnotationValue::Uint(slice.tid.into())),
        ("allocated_s", seconds(slice.allocated_ns)),
        ("api", text(&slice.api)),
    ];
    all.extend(slice.role.map(|role| ("role", text(role.name()))));
    all.extend(slice.physical().map(|bytes| ("physical_bytes", AnnotationValue::Uint(bytes))));
    let words = slice.who.iter().flat_map(|who| who.words());
    all.extend(words.map(|(name, words)| (name, text(words))));
    let by = slice.brought_back_by.as_ref();
    all.extend(by.map(|by| ("brought_back_by", text(by.name()))));
    all
}

fn refusal_details(refusal: &Refusal) -> Vec<Detail> {
    let refused = &refusal.refused;
    vec![
        ("size", text(&size(refused.size))),
        ("bytes", AnnotationValue::Uint(refused.size)),
        ("counted_bytes", AnnotationValue::Uint(refused.counted)),
        ("cap_bytes", AnnotationValue::Uint(refused.limit)),
        ("result", text(&refused.result.to_string())),
        ("api", text(&refusal.api)),
    ]
}

impl Sink for Perfetto<'_> {
    const LANES: Option<u32> = Some(MAX_LANES);

    fn process(&mut self, process: &TracedProcess) -> io::Result<()> {
        self.sequence = Sequence { id: process.number, ..Sequence::default() };
        self.sequence.process_track = self.describe(TrackDescriptor {
            process: Some(ProcessDescriptor {
                pid: i32::try_from(process.pid).ok(),
                cmdline: process.trace.header().command.clone(),
                process_name: Some(process.label.clone()),
            }),
            ..TrackDescriptor::default()
        })?;
        Ok(())
    }

    fn write(&mut self, at_ns: u64, element: &Element) -> io::Result<()> {
        let lane = |slice: &Slice| Track::Lane(group(&slice.live), slice.lane);
        let (track, kind, mut event, details) = match *element {
            Element::Counter(device, what, bytes) => {
                let counter_value = Some(i64::try_from(bytes).unwrap_or(i64::MAX));
                let event = TrackEvent { counter_value, ..TrackEvent::default() };
                (Track::Counter(device, what), EventType::Counter, event, Vec::new())
            }
            Element::Begin(slice) => {
                let event = self.named(slice.live.kind.name(), &slice.name());
                (lane(slice), EventType::SliceBegin, event, details(slice))
            }
            Element::End(slice, how) => {
                let lifetime = seconds(at_ns.saturating_sub(slice.allocated_ns));
                let details = vec![("end", text(how.name())), ("lifetime_s", lifetime)];
                (lane(slice), EventType::SliceEnd, TrackEvent::default(), details)
            }
            Element::Refusal(refusal) => {
                let event =
                    self.named("refusal", &format!("refused by {}", refusal.refused.by.name()));
                let details = refusal_details(refusal);
                (Track::Refusals(refusal.device), EventType::Instant, event, details)
            }
            Element::Phase(phase) => {
                let kind = match phase.what {
                    Edge::Begin => EventType::SliceBegin,
                    Edge::End => EventType::SliceEnd,
                    Edge::Moment => EventType::Instant,
                };
                let track = phase.tid.map_or(Track::Range(phase.id), Track::Phases);
                (track, kind, self.named("phase", phase.name), Vec::new())
            }
        };
        event.track_uuid = Some(self.track(track)?);
        event.r#type = Some(kind.into());
        let mut name = |name| Some(self.sequence.annotations.id(name));
        let annotation = |(of, value)| DebugAnnotation { name_iid: name(of), value: Some(value) };
        event.debug_annotations = details.into_iter().map(annotation).collect();
        self.packet(TracePacket {
            timestamp: Some(at_ns),
            track_event: Some(event),
            ..TracePacket::default()
        })
    }

    fn finish(self) -> io::Result<()> {
        self.out.flush()
    }
}
