//! The cards of a run. A UUID identifies a card. The bytes of its processes are summed at the same
//! moment of `CLOCK_REALTIME`.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use vramtrace_format::DeviceId;

use super::{DeviceFigures, ProcessFigures};
use crate::facts;
use crate::trace::DeviceInfo;

/// One card of a run.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Card {
    /// Null: the traces do not describe it.
    pub uuid: Option<String>,
    pub name: Option<String>,
    pub total_bytes: Option<u64>,
    /// Indices in `processes`. The processes that used it, and the number of the device in each.
    #[serde(rename = "processes", serialize_with = "indexes")]
    #[cfg_attr(feature = "schemas", schemars(with = "Vec<usize>"))]
    pub users: Vec<(usize, DeviceId)>,
    /// The most that its processes held together at one moment. Null: its processes overlapped, and the moments of one
    /// were not read.
    pub peak_bytes: Option<u64>,
    /// That moment, in seconds since 1970.
    #[serde(rename = "peak_unix_s", with = "facts::Seconds")]
    pub peak_unix_ns: u64,
    /// The sum of the processes' peaks: more than `peak_bytes` where these are at different times.
    pub sum_of_peaks_bytes: u64,
    pub live_bytes: u64,
    /// Of its size, at that moment.
    pub never_used_share: Option<f64>,
    /// The same as `peak_bytes`; too low where that is not known.
    #[serde(skip)]
    pub most_bytes: u64,
}

fn indexes<S: Serializer>(users: &[(usize, DeviceId)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(users.iter().map(|(process, _)| process))
}

/// What identifies a card: its UUID. One without counts as another one in each process.
type CardKey = (Option<[u8; 16]>, Option<(usize, DeviceId)>);

pub(super) fn by_card(ranks: &[ProcessFigures]) -> BTreeMap<CardKey, Vec<(usize, DeviceId)>> {
    let mut all: BTreeMap<CardKey, Vec<(usize, DeviceId)>> = BTreeMap::new();
    for (index, rank) in ranks.iter().enumerate() {
        for (id, device) in &rank.devices {
            let uuid = device.info.as_ref().map(|info| info.uuid).filter(|uuid| *uuid != [0; 16]);
            let of_process = uuid.is_none().then_some((index, *id));
            all.entry((uuid, of_process)).or_default().push((index, *id));
        }
    }
    all
}

/// First and last moment of a process, ns of `CLOCK_REALTIME`.
fn span(rank: &ProcessFigures) -> (u64, u64) {
    let start = rank.header.start_unix_ns;
    (start, start.saturating_add(rank.last_ns))
}

/// Indexes of the processes that held memory of a card at the same time as another one, sorted.
pub(super) fn sharing(ranks: &[ProcessFigures]) -> Vec<usize> {
    let mut found = Vec::new();
    for users in by_card(ranks).values() {
        let mut spans: Vec<((u64, u64), usize)> = users
            .iter()
            .filter(|(index, id)| ranks[*index].devices[id].peak_bytes > 0)
            .map(|(index, _)| (span(&ranks[*index]), *index))
            .collect();
        spans.sort_unstable();
        // Sorted by begin: a span overlaps an earlier one if it begins before the latest end so far.
        let mut latest: Option<(u64, usize)> = None;
        for ((from, to), index) in spans {
            if let Some((_, other)) = latest.filter(|(end, _)| from <= *end) {
                found.extend([other, index]);
            }
            latest = Some(latest.map_or((to, index), |last| last.max((to, index))));
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// The cards of a run, the fullest first.
pub fn cards(ranks: &[ProcessFigures]) -> Vec<Card> {
    let shared = sharing(ranks);
    let card = |users: Vec<(usize, DeviceId)>| {
        let used: Vec<(&ProcessFigures, &DeviceFigures)> =
            users.iter().map(|(index, id)| (&ranks[*index], &ranks[*index].devices[id])).collect();
        let (most_bytes, peak_unix_ns) = peak_together(&used);
        let sum = |figure: fn(&DeviceFigures) -> u64| {
            used.iter().map(|(_, device)| figure(device)).fold(0, u64::saturating_add)
        };
        let info = used.iter().find_map(|(_, device)| device.info.as_ref());
        let total_bytes = info.map(|info| info.total_bytes).filter(|bytes| *bytes > 0);
        let is_exact = users.iter().zip(&used).all(|((index, _), (_, device))| {
            device.moments.is_some() || users.len() < 2 || shared.binary_search(index).is_err()
        });
        let peak_bytes = is_exact.then_some(most_bytes);
        let unused = |(total, peak): (u64, u64)| facts::part(total.saturating_sub(peak), total);
        Card {
            uuid: info.map(DeviceInfo::uuid_text),
            name: info.map(|info| info.name.clone()),
            total_bytes,
            peak_bytes,
            peak_unix_ns,
            sum_of_peaks_bytes: sum(|device| device.peak_bytes),
            live_bytes: sum(|device| device.live_bytes),
            never_used_share: total_bytes.zip(peak_bytes).map(unused),
            most_bytes,
            users,
        }
    };
    let mut all: Vec<Card> = by_card(ranks).into_values().map(card).collect();
    // A stable sort: cards with the same peak stay in the order of their UUIDs.
    all.sort_by_key(|card| std::cmp::Reverse(card.most_bytes));
    all
}

/// The highest sum of bytes at one moment, and that moment in ns of `CLOCK_REALTIME`.
fn peak_together(used: &[(&ProcessFigures, &DeviceFigures)]) -> (u64, u64) {
    let mut changes: Vec<(u64, usize, u64)> = Vec::new();
    for (index, (rank, device)) in used.iter().enumerate() {
        let (start, end) = span(rank);
        match &device.moments {
            Some(moments) => {
                let points = moments.points.iter();
                changes
                    .extend(points.map(|(at, bytes)| (start.saturating_add(*at), index, *bytes)));
            }
            None => {
                // No other process used the card during this one: the peak is enough.
                changes.push((start.saturating_add(device.peak_ns), index, device.peak_bytes));
            }
        }
        // The driver frees all memory when the process ends.
        changes.push((end.saturating_add(1), index, 0));
    }
    changes.sort_by_key(|(at, index, _)| (*at, *index));
    let mut now = vec![0u64; used.len()];
    let (mut sum, mut most, mut when) = (0u128, 0u128, 0);
    for (at, index, bytes) in changes {
        sum = sum - u128::from(now[index]) + u128::from(bytes);
        now[index] = bytes;
        if sum > most {
            (most, when) = (sum, at);
        }
    }
    (most.min(u64::MAX.into()) as u64, when)
}
