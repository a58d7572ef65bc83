//! Free memory of PyTorch's cache that could not serve a request. Known of imports alone: their segments have streams, and
//! their freed blocks may wait.

use std::collections::BTreeMap;

use serde::Serialize;
use vramtrace_format::holes::holes;

use super::Oom;
use crate::facts::is_zero;
use crate::replay::{SegmentAt, State};
use crate::trace::Definitions;

/// Sizes are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct OtherStreams {
    /// Freed, but another stream still uses it.
    #[serde(skip_serializing_if = "is_zero")]
    pub waiting_bytes: u64,
    /// Free in segments of other streams.
    #[serde(skip_serializing_if = "is_zero")]
    pub other_stream_bytes: u64,
}

impl OtherStreams {
    /// Of the segments of the common pool: with what else was free, and the longest range of it. The trace does not say for
    /// which stream a request was: for none that had a range as long.
    pub(super) fn of<'s>(
        state: &State,
        definitions: &Definitions,
        oom: &Oom,
        segments: impl Iterator<Item = &'s &'s SegmentAt<'s>>,
    ) -> (OtherStreams, u64, u64) {
        let waiting = state.cache.pending.iter().filter(|(_, live)| live.device == oom.device);
        let waiting: BTreeMap<u64, u64> =
            waiting.map(|(address, live)| (*address, live.size)).collect();
        let mut found = OtherStreams::default();
        let mut by_stream: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for segment in segments {
            let usable = segment.holes().flat_map(|(start, bytes)| {
                let end = start.saturating_add(bytes);
                holes(start..end, waiting.range(start..end).map(|(at, size)| (*at, *size)))
            });
            let (free, hole) = usable.fold((0, 0), |(free, hole), (_, bytes)| {
                (bytes.saturating_add(free), bytes.max(hole))
            });
            found.waiting_bytes += segment.free() - free;
            let made = segment.allocation(state).or_else(|| segment.objects(state).next());
            let site = made.and_then(|(_, live)| definitions.site(live.site));
            let stream = site.map_or(0, |site| site.stream);
            let of = by_stream.entry(stream).or_default();
            *of = (of.0.saturating_add(free), of.1.max(hole));
        }
        let (mut rest, mut longest) = (0u64, 0);
        for (free, hole) in by_stream.into_values() {
            match hole >= oom.size {
                true => found.other_stream_bytes = found.other_stream_bytes.saturating_add(free),
                false => (rest, longest) = (rest.saturating_add(free), hole.max(longest)),
            }
        }
        (found, rest, longest)
    }
}
