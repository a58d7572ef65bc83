//! The tables `summary` (a row for each process and device) and `holders` (a row for each stack that held memory at a
//! device's peak, or at the end).

use std::collections::BTreeMap;
use std::fs::File;
use std::io;

use vramtrace_format::{DeviceId, SummaryMoment};

use super::columns::{level_name, ordinal};
use super::table::{Column, TableFile};
use crate::analysis::Level;
use crate::analysis::ranks::{Rank, RankDevice, RankEnd};
use crate::replay::State;

const SUMMARY: [Column; 32] = [
    Column::small("process"),
    Column::text("host"),
    Column::small("pid"),
    Column::small("world_size").or_null(),
    Column::text("executable"),
    Column::text("command"),
    Column::text("trace"),
    Column::int("start_unix_ns"),
    Column::int("end_ns"),
    Column::text("ended"),
    Column::int("failed_unix_ns").or_null(),
    Column::int("events"),
    Column::bool("live_is_known"),
    Column::small("device").or_null(),
    Column::text("device_uuid").or_null(),
    Column::text("device_name").or_null(),
    Column::int("total_bytes").or_null(),
    Column::int("cap_bytes").or_null(),
    Column::int("peak_bytes").or_null(),
    Column::int("peak_ns").or_null(),
    Column::int("peak_allocated_bytes").or_null(),
    Column::int("peak_reserved_bytes").or_null(),
    Column::int("live_bytes").or_null(),
    Column::int("live_allocations").or_null(),
    Column::int("allocations").or_null(),
    Column::int("frees").or_null(),
    Column::int("refused_by_cap").or_null(),
    Column::int("refused_by_driver").or_null(),
    Column::int("nvml_peak_bytes").or_null(),
    Column::int("context_bytes").or_null(),
    Column::real("held_gib_hours").or_null(),
    Column::real("held_gib_hours_error").or_null(),
];

const HOLDERS: [Column; 8] = [
    Column::small("process"),
    Column::small("device").or_null(),
    Column::text("level"),
    Column::small("stack"),
    Column::int("peak_bytes"),
    Column::int("peak_count"),
    Column::int("end_bytes"),
    Column::int("end_count"),
];

/// Writes `summary`. A process that used no device has one row, without one.
pub(super) fn write(file: File, process: u32, rank: &Rank, state: &State) -> io::Result<u64> {
    let mut table = TableFile::new(file, &SUMMARY)?;
    let devices: Vec<_> = match rank.devices.is_empty() {
        true => vec![None],
        false => rank.devices.iter().map(Some).collect(),
    };
    for device in devices {
        table.row(|row| {
            let header = &rank.header;
            row.small(process);
            row.text(&header.host);
            row.small(header.pid);
            row.small(header.world_size);
            row.text(&header.executable);
            row.text(&header.command.join(" "));
            row.text(&rank.trace.display().to_string());
            row.int(header.start_unix_ns);
            row.int(rank.last_ns);
            row.text(rank.end().name());
            row.int(failed_unix_ns(rank));
            row.int(state.events);
            row.bool(rank.live_is_known);
            row.small(device.and_then(|(id, _)| ordinal(*id)));
            let info = device.and_then(|(_, of)| of.info.as_ref());
            row.text(&info.map_or(String::new(), |info| info.uuid_text()));
            row.text(info.map_or("", |info| &info.name));
            row.int(info.map(|info| info.total_bytes));
            let at_end = device.and_then(|(id, _)| state.devices.get(id));
            row.int(at_end.and_then(|of| of.cap_bytes));
            let of = |figure: fn(&RankDevice) -> u64| device.map(|(_, of)| figure(of));
            row.int(of(|of| of.peak_bytes));
            row.int(of(|of| of.peak_ns));
            let cache = at_end.map(|of| &of.cache).filter(|cache| cache.is_used());
            row.int(cache.map(|cache| cache.peak_allocated.bytes));
            row.int(cache.map(|cache| cache.peak_reserved.bytes));
            row.int(of(|of| of.live_bytes));
            row.int(of(|of| of.live_allocations));
            row.int(of(|of| of.allocations));
            row.int(of(|of| of.frees));
            row.int(of(|of| of.refused_by_cap));
            row.int(of(|of| of.refused_by_driver));
            let peak = at_end.and_then(|of| of.peak_sample);
            row.int(peak.and_then(|at| at.sample.process_bytes));
            row.int(at_end.map(|of| of.context_bytes));
            let held = device.and_then(|(_, of)| of.held_gib_hours);
            row.real_or_null(held.map(|[hours, _]| hours));
            row.real_or_null(held.map(|[_, error]| error));
        })?;
    }
    table.finish()
}

/// The request with which it ended; of a process that was cut off, its last event.
fn failed_unix_ns(rank: &Rank) -> Option<u64> {
    let at_ns = match rank.end() {
        RankEnd::OutOfMemory => rank.failed_ns?,
        RankEnd::CutOff => rank.last_ns,
        RankEnd::Running | RankEnd::InOrder | RankEnd::Unknown => return None,
    };
    Some(rank.header.start_unix_ns.saturating_add(at_ns))
}

/// Writes `holders`.
pub(super) fn write_holders(file: File, process: u32, rank: &Rank) -> io::Result<u64> {
    /// Bytes and allocations, at the peak and at the end.
    type Held = [(u64, u64); 2];
    let mut all: BTreeMap<(DeviceId, bool, u32), Held> = BTreeMap::new();
    for holder in rank.devices.values().flat_map(|device| &device.holders) {
        let key = (holder.device, holder.of_framework, holder.stack.0);
        let moment = match holder.moment {
            SummaryMoment::Peak => 0,
            SummaryMoment::End => 1,
        };
        all.entry(key).or_default()[moment] = (holder.bytes, holder.count);
    }
    let mut table = TableFile::new(file, &HOLDERS)?;
    for ((device, of_framework, stack), [peak, end]) in all {
        table.row(|row| {
            row.small(process);
            row.small(ordinal(device));
            row.text(level_name(if of_framework { Level::Tensor } else { Level::Driver }));
            row.small(stack);
            row.int(peak.0);
            row.int(peak.1);
            row.int(end.0);
            row.int(end.1);
        })?;
    }
    table.finish()
}
