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
    NEEDS_STATE, ProcessDescriptor, STATE_CLEARED, TracePacket, TrackDescriptor, TrackEvent, Unit,
};
use super::counter::Counter;
use super::lanes::MOST_LANES;
use super::phases::{Edge, ExportedPhase};
use super::processes::TracedProcess;
use super::sink::{Detail, Refusal, RoleSums, Sink, Slice, SliceEnd, device_name};
use crate::analysis::roles::Role;
use crate::trace::Definitions;
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
    /// What the counters of roles show.
    roles: HashMap<(DeviceId, Role), u64>,
    categories: Names,
    names: Names,
    annotations: Names,
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

    /// `fill`: the event, without its track and type.
    fn event(
        &mut self,
        at_ns: u64,
        track: Track,
        kind: EventType,
        fill: impl FnOnce(&mut Self) -> TrackEvent,
    ) -> io::Result<()> {
        let track_uuid = Some(self.track(track)?);
        let event = TrackEvent { track_uuid, r#type: Some(kind.into()), ..fill(self) };
        self.packet(TracePacket {
            timestamp: Some(at_ns),
            track_event: Some(event),
            ..TracePacket::default()
        })
    }

    fn count(&mut self, at_ns: u64, track: Track, bytes: u64) -> io::Result<()> {
        let counter_value = Some(i64::try_from(bytes).unwrap_or(i64::MAX));
        let event = TrackEvent { counter_value, ..TrackEvent::default() };
        self.event(at_ns, track, EventType::Counter, |_| event)
    }

    /// An event with a name.
    fn named(
        &mut self,
        category: &str,
        name: &str,
        debug_annotations: Vec<DebugAnnotation>,
    ) -> TrackEvent {
        TrackEvent {
            category_iids: vec![self.sequence.categories.id(category)],
            name_iid: Some(self.sequence.names.id(name)),
            debug_annotations,
            ..TrackEvent::default()
        }
    }

    /// The uuid of a track; describes it before its first use.
    fn track(&mut self, track: Track) -> io::Result<u64> {
        if let Some(uuid) = self.sequence.tracks.get(&track) {
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
            _ => self.sequence.process_track,
        };
        let uuid = self.describe(TrackDescriptor {
            name: Some(name),
            parent_uuid: Some(parent),
            counter,
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

    fn annotations<'s>(
        &mut self,
        details: impl IntoIterator<Item = (&'static str, Detail<'s>)>,
    ) -> Vec<DebugAnnotation> {
        let value = |detail| match detail {
            Detail::Text(text) => AnnotationValue::Text(text.into_owned()),
            Detail::Number(number) => AnnotationValue::Uint(number),
            Detail::Pointer(address) => AnnotationValue::Pointer(address),
            Detail::Seconds(seconds) => AnnotationValue::Double(seconds),
        };
        let mut name_iid = |name| Some(self.sequence.annotations.id(name));
        let details = details.into_iter();
        details
            .map(|(name, of)| DebugAnnotation { name_iid: name_iid(name), value: Some(value(of)) })
            .collect()
    }
}

impl Sink for Perfetto<'_> {
    fn process(&mut self, process: &TracedProcess, _definitions: &Definitions) -> io::Result<()> {
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

    fn counter(
        &mut self,
        at_ns: u64,
        device: Option<DeviceId>,
        what: Counter,
        bytes: u64,
    ) -> io::Result<()> {
        self.count(at_ns, Track::Counter(device, what), bytes)
    }

    fn begin(&mut self, at_ns: u64, slice: &Slice) -> io::Result<()> {
        self.event(at_ns, Track::of(slice), EventType::SliceBegin, |to| {
            let annotations = to.annotations(slice.details());
            to.named(slice.live.kind.name(), &slice.name(), annotations)
        })
    }

    fn end(&mut self, at_ns: u64, slice: &Slice, how: SliceEnd) -> io::Result<()> {
        self.event(at_ns, Track::of(slice), EventType::SliceEnd, |to| TrackEvent {
            debug_annotations: to.annotations(slice.end_details(at_ns, how)),
            ..TrackEvent::default()
        })
    }

    fn refusal(&mut self, at_ns: u64, refusal: &Refusal) -> io::Result<()> {
        let refused = &refusal.refused;
        self.event(at_ns, Track::Refusals(refusal.device), EventType::Instant, |to| {
            let annotations = to.annotations([
                ("size", Detail::Text(size(refused.size).into())),
                ("bytes", Detail::Number(refused.size)),
                ("counted_bytes", Detail::Number(refused.counted)),
                ("cap_bytes", Detail::Number(refused.limit)),
                ("result", Detail::Text(refused.result.to_string().into())),
                ("api", Detail::Text((&*refusal.api).into())),
            ]);
            to.named("refusal", &format!("refused by {}", refused.by.name()), annotations)
        })
    }

    fn phase(&mut self, at_ns: u64, phase: &ExportedPhase) -> io::Result<()> {
        let kind = match phase.what {
            Edge::Begin => EventType::SliceBegin,
            Edge::End => EventType::SliceEnd,
            Edge::Moment => EventType::Instant,
        };
        let track = phase.tid.map_or(Track::Range(phase.id), Track::Phases);
        self.event(at_ns, track, kind, |to| to.named("phase", phase.name, Vec::new()))
    }

    fn lanes(&self) -> Option<u32> {
        Some(MOST_LANES)
    }

    fn roles(&mut self, at_ns: u64, device: DeviceId, sums: &RoleSums) -> io::Result<()> {
        for role in Role::ALL {
            let bytes = sums[role.index()];
            let before = self.sequence.roles.insert((device, role), bytes);
            if before.unwrap_or(0) == bytes {
                continue;
            }
            self.count(at_ns, Track::Role(device, role), bytes)?;
        }
        Ok(())
    }

    fn finish(self) -> io::Result<()> {
        self.out.flush()
    }
}
