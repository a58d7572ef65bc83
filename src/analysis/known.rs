//! Moments of which the trace does not tell what was live: their events were let go to bound the
//! file, or are broken.

use std::fmt;

use vramtrace_format::{DeviceId, Stamped};

use super::Moment;
use crate::replay::{Observer, State, Until};
use crate::trace::{Definitions, Trace};
use crate::units::{seconds, size};

/// Why a moment cannot be shown, and which next to it can.
#[derive(Clone, Debug, PartialEq)]
pub struct NotKnown {
    pub asked_ns: u64,
    /// Up to here, before the moment, all is known. `None`: nothing before it is.
    pub until_ns: Option<u64>,
    /// The first later moment of which all that is live is known.
    pub next: Option<KnownAgain>,
    /// The limit of the file; where there is none, events can only have been damaged.
    pub max_bytes: Option<u64>,
}

/// The first moment behind missing events.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KnownAgain {
    pub time_ns: u64,
    /// Live bytes then.
    pub live: Vec<(DeviceId, u64)>,
}

/// What the state of a moment is worth.
#[derive(Clone, Debug, PartialEq)]
pub enum Knowledge {
    Known,
    /// Events before it are missing and nothing tells anew what is live: it may be wrong.
    Unsure,
    NotKnown(NotKnown),
}

/// `state`: what was read of the trace for this moment.
pub fn knowledge(
    trace: &Trace,
    definitions: &Definitions,
    state: &State,
    moment: Moment,
) -> Knowledge {
    let asked_ns = match moment {
        _ if state.live_is_known() => return Knowledge::Known,
        Moment::At(time_ns) => time_ns,
        Moment::End | Moment::Peak | Moment::AllocatedPeak => return Knowledge::Unsure,
    };
    let next = known_again(trace, definitions, asked_ns);
    if next.is_none() && !state.is_in_gap() {
        return Knowledge::Unsure;
    }
    let max_bytes = trace.header().max_bytes;
    Knowledge::NotKnown(NotKnown { asked_ns, until_ns: state.known_until_ns, next, max_bytes })
}

/// Reads the trace once more.
fn known_again(trace: &Trace, definitions: &Definitions, after_ns: u64) -> Option<KnownAgain> {
    let mut found = FirstResume { after_ns, found: None };
    trace.replay_until(definitions, Until::End, &mut found, &mut |_, _| {});
    found.found
}

struct FirstResume {
    after_ns: u64,
    found: Option<KnownAgain>,
}

impl Observer for FirstResume {
    fn on_resume(&mut self, at: &Stamped, state: &State) {
        if at.time_ns >= self.after_ns && self.found.is_none() {
            let devices = state.devices.iter().filter(|(_, device)| device.was_used());
            let live = devices.map(|(id, device)| (*id, device.live_bytes)).collect();
            self.found = Some(KnownAgain { time_ns: at.time_ns, live });
        }
    }
}

impl fmt::Display for NotKnown {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "what was live at {} is not in the file: its events ", seconds(self.asked_ns))?;
        match self.max_bytes {
            Some(most) => {
                write!(f, "were let go to bound the file (VRAMTRACE_MAX={})", size(most))?
            }
            None => write!(f, "are damaged")?,
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
