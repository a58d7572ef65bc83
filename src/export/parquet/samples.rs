//! The table `samples`: figures over time of devices and stacks.

use std::fs::File;
use std::io;

use vramtrace_format::DeviceId;

use super::columns::{level_name, ordinal};
use super::series::Span;
use super::table::{Column, TableFile};
use super::watched::{Line, Watched};
use crate::analysis::Level;
use crate::replay::{History, SampleAt};

const COLUMNS: [Column; 14] = [
    Column::int("from_ns").ascending(),
    Column::int("until_ns"),
    Column::int("unix_ns"),
    Column::small("process"),
    Column::text("source"),
    Column::small("device").or_null(),
    Column::text("level").or_null(),
    Column::small("stack").or_null(),
    Column::int("lowest_bytes").or_null(),
    Column::int("highest_bytes").or_null(),
    Column::int("process_bytes").or_null(),
    Column::int("context_bytes").or_null(),
    Column::int("driver_free_bytes").or_null(),
    Column::int("driver_total_bytes").or_null(),
];

/// The tiers of the recorder's history.
const TIERS: [&str; 3] = ["history_run", "history_minutes", "history_seconds"];

enum Figures {
    Bytes(Level, Span),
    Reported(SampleAt),
}

struct Sample {
    source: &'static str,
    device: DeviceId,
    stack: Option<u32>,
    figures: Figures,
}

impl Sample {
    fn begin_ns(&self) -> u64 {
        match &self.figures {
            Figures::Bytes(_, span) => span.from_ns,
            Figures::Reported(at) => at.time_ns,
        }
    }
}

/// Writes the table of a process: from its events up to `end_ns`, and from the recorder's history.
pub(super) fn write(
    file: File,
    process: u32,
    start_unix_ns: u64,
    watched: Watched,
    history: Option<&History>,
    end_ns: u64,
) -> io::Result<u64> {
    let mut all: Vec<Sample> = Vec::new();
    let Watched { devices, stacks, reported, .. } = watched;
    let lines = devices.finish(end_ns).into_iter().chain(stacks.finish(end_ns));
    for ((device, level, stack), spans) in lines {
        let sample = |span| Sample {
            source: "events",
            device,
            stack: stack.map(|stack| stack.0),
            figures: Figures::Bytes(level, span),
        };
        all.extend(spans.into_iter().map(sample));
    }
    all.extend(reported.into_iter().map(|(device, at)| Sample {
        source: "driver",
        device,
        stack: None,
        figures: Figures::Reported(at),
    }));
    history.iter().for_each(|history| add_history(&mut all, history));
    all.sort_by_key(Sample::begin_ns);
    let mut table = TableFile::new(file, &COLUMNS)?;
    for sample in &all {
        table.row(|row| {
            let from_ns = sample.begin_ns();
            let until_ns = match &sample.figures {
                Figures::Bytes(_, span) => span.until_ns,
                Figures::Reported(_) => from_ns,
            };
            row.int(from_ns);
            row.int(until_ns);
            row.int(start_unix_ns.saturating_add(from_ns));
            row.small(process);
            row.text(sample.source);
            row.small(ordinal(sample.device));
            match &sample.figures {
                Figures::Bytes(level, span) => {
                    row.text(level_name(*level));
                    row.small(sample.stack);
                    row.int(span.lowest);
                    row.int(span.highest);
                    (0..4).for_each(|_| row.int(None));
                }
                Figures::Reported(SampleAt { sample, .. }) => {
                    row.text("");
                    row.small(None);
                    (0..2).for_each(|_| row.int(None));
                    row.int(sample.process_bytes);
                    row.int(sample.context_bytes);
                    row.int(sample.driver_free);
                    row.int(sample.driver_total);
                }
            }
        })?;
    }
    table.finish()
}

fn add_history(all: &mut Vec<Sample>, history: &History) {
    for (tier, source) in history.tiers.iter().zip(TIERS) {
        for (index, bin) in tier.bins.iter().enumerate() {
            let (from_ns, until_ns) = (bin.from_ns, bin.until_ns);
            let mut add = |(device, level, stack): Line, lowest, highest| {
                let span = Span { from_ns, until_ns, lowest, highest };
                let (stack, figures) = (stack.map(|it| it.0), Figures::Bytes(level, span));
                all.push(Sample { source, device, stack, figures });
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
