//! Replays a trace file: to its end, up to a place, or with a stop at each of several places.

use std::iter::Peekable;
use std::vec::IntoIter;

use vramtrace_format::{Cursor, Stamped, TraceReader};

use super::kept::{Kept, Point};
use super::{Observer, Replay, State};
use crate::trace::{DamageFound, Definitions, Trace};

/// Called from time to time while a long trace is read, with the bytes read and the bytes in all.
pub type Progress<'p> = &'p mut dyn FnMut(u64, u64);

/// Who follows a replay: its observer, who is told of the progress, and the points that it keeps.
type How<'h, O> = (&'h mut O, Progress<'h>, Option<&'h mut Kept>);

/// How far to replay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Until {
    End,
    /// Up to and with the event at this file offset.
    Offset(u64),
    /// Up to the last event not later than this, ns since start.
    Time(u64),
}

/// An analysis of the state at places of a trace. Several of them follow one replay.
pub trait Visitor {
    /// The places, in any order.
    fn stops(&self) -> Vec<Until>;
    /// Called once for each place, by its index, in the order of the trace.
    fn visit(&mut self, stop: usize, state: &State);
}

/// Places, and what is called at each of them.
impl<F: FnMut(usize, &State)> Visitor for (Vec<Until>, F) {
    fn stops(&self) -> Vec<Until> {
        self.0.clone()
    }

    fn visit(&mut self, stop: usize, state: &State) {
        self.1(stop, state);
    }
}

/// The result of a replay.
#[derive(Clone, Debug)]
pub struct ReplayResult {
    pub state: State,
    pub damage: DamageFound,
}

impl Trace {
    /// Replays every event.
    pub fn replay(&self, definitions: &Definitions, observer: &mut impl Observer) -> ReplayResult {
        self.replay_until(definitions, Until::End, observer, &mut |_, _| {})
    }

    /// Replays up to the last place of the visitors. Reads nothing if they have none.
    pub fn visit(&self, definitions: &Definitions, visitors: &mut [&mut dyn Visitor]) {
        self.visit_from(None, definitions, visitors, &mut ());
    }

    /// As [`Trace::visit`]; an observer follows up to the last place.
    pub fn visit_observed(
        &self,
        definitions: &Definitions,
        visitors: &mut [&mut dyn Visitor],
        observer: &mut impl Observer,
    ) {
        self.visit_from(None, definitions, visitors, observer);
    }

    /// As [`Trace::visit_observed`], from the last point before the places, of a replay of this trace.
    pub fn visit_from(
        &self,
        kept: Option<&Kept>,
        definitions: &Definitions,
        visitors: &mut [&mut dyn Visitor],
        observer: &mut impl Observer,
    ) {
        let of_visitor = |(visitor, of): (usize, &&mut dyn Visitor)| {
            let stops = of.stops().into_iter().enumerate();
            stops.map(move |(index, stop)| (stop, (visitor, index))).collect::<Vec<_>>()
        };
        let places = visitors.iter().enumerate().flat_map(of_visitor);
        let (stops, owners): (Vec<Until>, Vec<(usize, usize)>) = places.unzip();
        if stops.is_empty() {
            return;
        }
        let begin = kept.and_then(|kept| kept.before(&stops));
        let how: How<_> = (observer, &mut |_, _| {}, None);
        self.replay_with(definitions, (begin, &stops), how, &mut |stop, state| {
            let (visitor, index) = owners[stop];
            visitors[visitor].visit(index, state);
        });
    }

    /// Replays up to a place.
    pub fn replay_until(
        &self,
        definitions: &Definitions,
        until: Until,
        observer: &mut impl Observer,
        progress: Progress,
    ) -> ReplayResult {
        let how: How<_> = (observer, progress, None);
        self.replay_with(definitions, (None, &[until]), how, &mut |_, _| {})
    }

    /// Replays every event, and keeps points, if wanted, from which [`Trace::visit_from`] begins.
    pub fn replay_keeping(
        &self,
        kept: Option<&mut Kept>,
        definitions: &Definitions,
        observer: &mut impl Observer,
        progress: Progress,
    ) -> ReplayResult {
        // The mapped file changes while its process writes it.
        let kept = kept.filter(|_| !self.is_running());
        let how: How<_> = (observer, progress, kept);
        self.replay_with(definitions, (None, &[Until::End]), how, &mut |_, _| {})
    }

    /// Replays from a point, or else from the first event, up to the last of some places.
    fn replay_with<O: Observer>(
        &self,
        definitions: &Definitions,
        (begin, stops): (Option<&Point>, &[Until]),
        (observer, progress, mut kept): How<O>,
        visit: &mut dyn FnMut(usize, &State),
    ) -> ReplayResult {
        let (mut replay, cursor) = match begin {
            Some(point) => (point.replay.clone(), point.cursor),
            None => {
                self.count_decode();
                (Replay::new(), Cursor::default())
            }
        };
        let mut stops: Vec<(usize, Until)> = stops.iter().copied().enumerate().collect();
        // Places are looked at before what a moment may find missing behind them.
        stops.sort_by_key(|(_, stop)| matches!(stop, Until::Time(_)));
        // It was readable when it was opened.
        let Some(reader) = self.reader() else {
            return ReplayResult { state: replay.into_state(), damage: DamageFound::default() };
        };
        let mut gaps = Gaps::after(&reader, cursor);
        let mut events =
            if self.is_running() { reader.tail(cursor) } else { reader.events_from(cursor) };
        let mut next_progress = 0;
        let mut at = Stamped::default();
        while events.read(&mut at) {
            let missing = gaps.are_before(&at, events.damage().len());
            if stops.iter().any(|(_, stop)| stop.is_before(&at)) {
                stops.retain(|(index, stop)| {
                    let reached = stop.is_before(&at);
                    if reached {
                        // A moment between the events is one of those that are missing.
                        let last_ns = replay.state().time_ns;
                        if missing && matches!(*stop, Until::Time(time_ns) if time_ns > last_ns) {
                            replay.gap();
                        }
                        visit(*index, replay.state());
                    }
                    !reached
                });
                if stops.is_empty() {
                    break;
                }
            }
            if missing {
                replay.gap();
            }
            if at.offset >= next_progress {
                progress(at.offset.min(self.len()), self.len());
                next_progress = at.offset + PROGRESS_STEP;
            }
            replay.apply(definitions, &at, observer);
            observer.on_applied(&at, replay.state());
            if let Some(kept) = &mut kept {
                kept.note(&replay, &at, || events.cursor());
            }
        }
        // A part behind the last event may be damaged.
        if events.damage().len() > gaps.damaged {
            replay.gap();
        }
        let mut damage = DamageFound::of(&reader, &events);
        damage.ranges.extend(self.missing_tail());
        self.note_damage(&damage);
        replay.finish();
        if let Some(kept) = kept {
            kept.finish(replay.state());
        }
        for (index, _) in stops {
            visit(index, replay.state());
        }
        ReplayResult { state: replay.into_state(), damage }
    }
}

/// Where events are missing: between windows, and in damaged parts.
pub(super) struct Gaps {
    places: Peekable<IntoIter<u64>>,
    damaged: usize,
}

impl Gaps {
    pub(super) fn after(reader: &TraceReader, cursor: Cursor) -> Gaps {
        let places: Vec<u64> = reader.gaps_after(cursor).collect();
        Gaps { places: places.into_iter().peekable(), damaged: 0 }
    }

    /// Whether events are missing between the one before and this one. `damaged`: number of damaged parts so far.
    pub(super) fn are_before(&mut self, at: &Stamped, damaged: usize) -> bool {
        let mut missing = damaged > self.damaged;
        self.damaged = damaged;
        while self.places.next_if(|offset| *offset <= at.offset).is_some() {
            missing = true;
        }
        missing
    }
}

impl Until {
    fn is_before(&self, at: &Stamped) -> bool {
        match *self {
            Until::End => false,
            Until::Offset(offset) => at.offset > offset,
            Until::Time(time_ns) => at.time_ns > time_ns,
        }
    }
}

/// Bytes between two calls of a [`Progress`].
const PROGRESS_STEP: u64 = 4 << 20;
