//! The table `samples`: figures over time of devices and stacks.

use std::fs::File;
use std::io;

use vramtrace_format::{DeviceId, Sample};

use super::level_name;
use super::series::Span;
use super::table::{Columns, text};
use super::watched::{SeriesKey, Watched};
use crate::analysis::Level;
use crate::replay::{History, State};

/// The tiers of the recorder's history.
const TIERS: [&str; 3] = ["history_run", "history_minutes", "history_seconds"];

/// A row: bytes of a part of the time, or what the driver and NVML reported.
struct SampleRow {
    source: &'static str,
    device: DeviceId,
    from_ns: u64,
    until_ns: u64,
    /// Level, stack, lowest and highest.
    bytes: Option<(Level, Option<u32>, u64, u64)>,
    reported: Option<Sample>,
}

impl SampleRow {
    fn new(source: &'static str, (device, level, stack): SeriesKey, span: Span) -> SampleRow {
        let Span { from_ns, until_ns, lowest, highest } = span;
        let bytes = Some((level, stack.map(|stack| stack.0), lowest, highest));
        SampleRow { source, device, from_ns, until_ns, bytes, reported: None }
    }
}

/// Writes the table of a process: from its events, and from the recorder's history. `state`: at the end.
pub(super) fn write(
    file: File,
    process: u32,
    start_unix_ns: u64,
    watched: Watched,
    state: &State,
) -> io::Result<u64> {
    let (end_ns, history) = (state.time_ns, state.history.as_deref());
    let mut all: Vec<SampleRow> = Vec::new();
    let Watched { devices, stacks, reported, .. } = watched;
    for (line, spans) in devices.finish(end_ns).into_iter().chain(stacks.finish(end_ns)) {
        all.extend(spans.into_iter().map(|span| SampleRow::new("events", line, span)));
    }
    all.extend(reported.into_iter().map(|(device, at)| SampleRow {
        source: "driver",
        device,
        from_ns: at.time_ns,
        until_ns: at.time_ns,
        bytes: None,
        reported: Some(at.sample),
    }));
    history.iter().for_each(|history| add_history(&mut all, history));
    all.sort_by_key(|row| row.from_ns);
    Columns::<SampleRow>::sorted()
        .column("from_ns", |row| row.from_ns)
        .column("until_ns", |row| row.until_ns)
        .column("unix_ns", move |row| start_unix_ns.saturating_add(row.from_ns))
        .column("process", move |_| process)
        .column("source", |row| text(row.source))
        .column("device", |row| row.device)
        .column("level", |row| row.bytes.map(|(level, ..)| text(level_name(level))))
        .column("stack", |row| row.bytes.and_then(|(_, stack, ..)| stack))
        .column("lowest_bytes", |row| row.bytes.map(|(.., lowest, _)| lowest))
        .column("highest_bytes", |row| row.bytes.map(|(.., highest)| highest))
        .column("process_bytes", |row| row.reported?.process_bytes)
        .column("context_bytes", |row| row.reported.map(|sample| sample.context_bytes))
        .column("driver_free_bytes", |row| row.reported?.driver_free)
        .column("driver_total_bytes", |row| row.reported?.driver_total)
        .write(file, all)
}

fn add_history(all: &mut Vec<SampleRow>, history: &History) {
    for (tier, source) in history.tiers.iter().zip(TIERS) {
        for (index, bin) in tier.bins.iter().enumerate() {
            let (from_ns, until_ns) = (bin.from_ns, bin.until_ns);
            let mut add = |line: SeriesKey, lowest, highest| {
                all.push(SampleRow::new(source, line, Span { from_ns, until_ns, lowest, highest }));
            };
            for (device, of) in &bin.devices {
                for level in [Level::Driver, Level::Tensor] {
                    if let Some(bytes) = of.level(level == Level::Tensor) {
                        // Samples miss what comes and goes between them: the peak is exact.
                        let peak = if level == Level::Driver { of.peak } else { 0 };
                        add((*device, level, None), bytes.lowest, bytes.highest.max(peak));
                    }
                }
            }
            for holder in tier.holders(index) {
                let level = if holder.of_framework { Level::Tensor } else { Level::Driver };
                // 0 where its highest bytes are among those of the others.
                let highest = holder.highest.max(holder.lowest);
                add((holder.device, level, Some(holder.stack)), holder.lowest, highest);
            }
        }
    }
}
