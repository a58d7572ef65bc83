//! Moments whose live memory is not in the trace: the events before them were erased to bound the file,
//! or are damaged.

use std::fmt;

use vramtrace_format::{DeviceId, Stamped};

use crate::analysis::Moment;
use crate::replay::{Observer, OffSpan, State, Until};
use crate::trace::{Definitions, Trace};
use crate::units::{seconds, size};

/// Why a moment cannot be shown, and the nearest moments that can. Times are ns since the start.
#[derive(Clone, Debug, PartialEq)]
pub struct UnknownMoment {
    pub asked_ns: u64,
    /// The last known time before the moment. `None`: nothing before it is known.
    pub until_ns: Option<u64>,
    /// The first later moment at which all live memory is known.
    pub next: Option<ResumePoint>,
    /// The limit of the file in bytes. `None`: no limit, so the events are damaged.
    pub max_bytes: Option<u64>,
    /// The recording was switched off then.
    pub off: Option<OffSpan>,
}

/// The first moment after missing events at which all live memory is known: a whole checkpoint.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResumePoint {
    pub time_ns: u64,
    /// Live bytes of each device at that moment.
    pub live: Vec<(DeviceId, u64)>,
}

/// Whether the state of a moment is known.
#[derive(Clone, Debug, PartialEq)]
pub enum Knowledge {
    Known,
    /// Events before it are missing and no checkpoint follows: the state may be wrong.
    Unsure,
    NotKnown(UnknownMoment),
}

/// Whether `state`, the replay up to this moment, is known to be right.
pub fn knowledge(
    trace: &Trace,
    definitions: &Definitions,
    state: &State,
    moment: Moment,
) -> Knowledge {
    let asked_ns = match moment {
        _ if state.live_is_known() => return Knowledge::Known,
        Moment::At(time_ns) | Moment::Event { time_ns, .. } => time_ns,
        Moment::End
        | Moment::Peak
        | Moment::AllocatedPeak
        | Moment::OutOfMemory
        | Moment::Step(_) => {
            return Knowledge::Unsure;
        }
    };
    let next = resume_point_after(trace, definitions, asked_ns);
    if next.is_none() && !state.is_in_gap() {
        return Knowledge::Unsure;
    }
    let max_bytes = trace.header().max_bytes;
    let off = state.off.last().filter(|span| span.until_ns.is_none()).copied();
    let until_ns = state.known_until_ns;
    Knowledge::NotKnown(UnknownMoment { asked_ns, until_ns, next, max_bytes, off })
}

/// The first whole checkpoint at or after a time. Reads the trace once more.
fn resume_point_after(
    trace: &Trace,
    definitions: &Definitions,
    after_ns: u64,
) -> Option<ResumePoint> {
    let mut found = FirstResume { after_ns, found: None };
    trace.replay_until(definitions, Until::End, &mut found, &mut |_, _| {});
    found.found
}

struct FirstResume {
    after_ns: u64,
    found: Option<ResumePoint>,
}

impl Observer for FirstResume {
    fn on_resume(&mut self, at: &Stamped, state: &State) {
        if at.time_ns >= self.after_ns && self.found.is_none() {
            let devices = state.devices.iter().filter(|(_, device)| device.was_used());
            let live = devices.map(|(id, device)| (*id, device.live_bytes)).collect();
            self.found = Some(ResumePoint { time_ns: at.time_ns, live });
        }
    }
}

impl fmt::Display for UnknownMoment {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "what was live at {} is not in the file: ", seconds(self.asked_ns))?;
        match self.max_bytes {
            _ if self.off.is_some() => write!(f, "the recording was switched off")?,
            Some(most) => write!(
                f,
                "its events were erased to bound the file (VRAMTRACE_MAX={})",
                size(most)
            )?,
            None => write!(f, "its events are damaged")?,
        }
        if let Some(until) = self.until_ns {
            write!(f, "; all is known up to {}", seconds(until))?;
        }
        let Some(next) = &self.next else { return Ok(()) };
        write!(f, "; from {} on it is known", seconds(next.time_ns))?;
        let live = next.live.iter().map(|(device, bytes)| match *device {
            DeviceId::UNKNOWN => format!("{} on an unknown device", size(*bytes)),
            DeviceId(ordinal) => format!("{} on GPU {ordinal}", size(*bytes)),
        });
        let live: Vec<String> = live.collect();
        match live.is_empty() {
            true => Ok(()),
            false => write!(f, ", and {} were live then", live.join(", ")),
        }
    }
}
