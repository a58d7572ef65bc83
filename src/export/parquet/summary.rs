//! The tables `summary` (a row for each process and device) and `holders` (a row for each stack that held memory at a
//! device's peak, or at the end).

use std::collections::BTreeMap;
use std::fs::File;
use std::io;

use vramtrace_format::{DeviceId, SummaryMoment};

use super::level_name;
use super::table::{Columns, known, text};
use crate::analysis::Level;
use crate::analysis::ranks::{DeviceFigures, ProcessEnd, ProcessFigures};
use crate::replay::{CacheSums, DeviceState, State};
use crate::trace::DeviceInfo;

/// Writes `summary`. A process that used no device has one row, without one.
pub(super) fn write(
    file: File,
    process: u32,
    rank: &ProcessFigures,
    state: &State,
) -> io::Result<u64> {
    /// The device, and its state at the end.
    type DeviceRow<'r> = Option<(DeviceId, &'r DeviceFigures, Option<&'r DeviceState>)>;
    fn of<T>(row: &DeviceRow, figure: fn(&DeviceFigures) -> T) -> Option<T> {
        row.map(|(_, device, _)| figure(device))
    }
    fn info<'r>(row: &DeviceRow<'r>) -> Option<&'r DeviceInfo> {
        row.and_then(|(_, device, _)| device.info.as_ref())
    }
    fn cache<'r>(row: &DeviceRow<'r>) -> Option<&'r CacheSums> {
        row.and_then(|(.., state)| state).map(|state| &state.cache).filter(|cache| cache.is_used())
    }
    let header = &rank.header;
    let mut rows: Vec<DeviceRow> = Vec::new();
    rows.extend(rank.devices.iter().map(|(id, of)| Some((*id, of, state.devices.get(id)))));
    if rows.is_empty() {
        rows.push(None);
    }
    Columns::<DeviceRow>::new()
        .column("process", move |_| process)
        .column("host", |_| text(&header.host))
        .column("pid", |_| header.pid)
        .column("world_size", |_| header.world_size)
        .column("executable", |_| text(&header.executable))
        .column("command", |_| text(&header.command.join(" ")))
        .column("trace", |_| text(&rank.trace.display().to_string()))
        .column("start_unix_ns", |_| header.start_unix_ns)
        .column("end_ns", |_| rank.last_ns)
        .column("ended", |_| text(rank.end().name()))
        .column("failed_unix_ns", |_| failed_unix_ns(rank))
        .column("events", |_| state.events)
        .column("live_is_known", |_| rank.live_is_known)
        .column("device", |row| row.map(|(id, ..)| id))
        .column("device_uuid", |row| info(row).and_then(|info| known(&info.uuid_text())))
        .column("device_name", |row| info(row).and_then(|info| known(&info.name)))
        .column("total_bytes", |row| info(row).map(|info| info.total_bytes))
        .column("cap_bytes", |row| (*row)?.2?.cap_bytes)
        .column("peak_bytes", |row| of(row, |device| device.peak_bytes))
        .column("peak_ns", |row| of(row, |device| device.peak_ns))
        .column("peak_allocated_bytes", |row| cache(row).map(|cache| cache.peak_allocated.bytes))
        .column("peak_reserved_bytes", |row| cache(row).map(|cache| cache.peak_reserved.bytes))
        .column("live_bytes", |row| of(row, |device| device.live_bytes))
        .column("live_allocations", |row| of(row, |device| device.live_allocations))
        .column("allocations", |row| of(row, |device| device.allocations))
        .column("frees", |row| of(row, |device| device.frees))
        .column("refused_by_cap", |row| of(row, |device| device.refused_by_cap))
        .column("refused_by_driver", |row| of(row, |device| device.refused_by_driver))
        .column("nvml_peak_bytes", |row| Some((*row)?.2?.highest_reading()?.0))
        .column("context_bytes", |row| Some((*row)?.2?.context_bytes))
        .column("held_gib_hours", |row| Some((*row)?.1.held_gib_hours?[0]))
        .column("held_gib_hours_error", |row| Some((*row)?.1.held_gib_hours?[1]))
        .write(file, rows)
}

/// The request with which it ended; of a process that was cut off, its last event.
fn failed_unix_ns(rank: &ProcessFigures) -> Option<u64> {
    let at_ns = match rank.end() {
        ProcessEnd::OutOfMemory => rank.failed_ns?,
        ProcessEnd::CutOff => rank.last_ns,
        ProcessEnd::Running | ProcessEnd::InOrder | ProcessEnd::Unknown => return None,
    };
    Some(rank.header.start_unix_ns.saturating_add(at_ns))
}

/// Writes `holders`.
pub(super) fn write_holders(file: File, process: u32, rank: &ProcessFigures) -> io::Result<u64> {
    /// Bytes and allocations, at the peak and at the end.
    type PeakAndEnd = [(u64, u64); 2];
    let mut all: BTreeMap<(DeviceId, bool, u32), PeakAndEnd> = BTreeMap::new();
    for holder in rank.devices.values().flat_map(|device| &device.holders) {
        let key = (holder.device, holder.of_framework, holder.stack.0);
        let moment = match holder.moment {
            SummaryMoment::Peak => 0,
            SummaryMoment::End => 1,
        };
        let (bytes, count) = &mut all.entry(key).or_default()[moment];
        (*bytes, *count) = (bytes.saturating_add(holder.bytes), count.saturating_add(holder.count));
    }
    let level = |of_framework| if of_framework { Level::Tensor } else { Level::Driver };
    Columns::<((DeviceId, bool, u32), PeakAndEnd)>::new()
        .column("process", move |_| process)
        .column("device", |(of, _)| of.0)
        .column("level", move |(of, _)| text(level_name(level(of.1))))
        .column("stack", |(of, _)| of.2)
        .column("peak_bytes", |(_, held)| held[0].0)
        .column("peak_count", |(_, held)| held[0].1)
        .column("end_bytes", |(_, held)| held[1].0)
        .column("end_count", |(_, held)| held[1].1)
        .write(file, all)
}
