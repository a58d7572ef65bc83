//! `vramtrace whatif`: what another PYTORCH_CUDA_ALLOC_CONF would have reserved.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use vramtrace_format::size;
use vramtrace_reader::allocator::{Conf, Log, Outcome as Replayed, replay, smallest_capacity};
use vramtrace_reader::import::{self, Imported};
use vramtrace_reader::units::gib;

use super::{DONE, Failure, Outcome};

#[derive(clap::Args)]
#[command(
    long_about = "Replay the requests of one recorded PyTorch run under other allocator settings.\n\n\
        FILE is a PyTorch memory snapshot (torch.cuda.memory._dump_snapshot, plain or gzip) or a \
        CSV with the columns action,addr,size,stream. Sizes in both are requested bytes.",
    after_help = "Examples:\n  \
        vramtrace whatif snapshot.pickle\n  \
        vramtrace whatif snapshot.pickle --capacity 24GiB --conf expandable_segments:True"
)]
pub struct Args {
    /// A PyTorch memory snapshot or a CSV of requests
    file: PathBuf,
    /// A setting to try, as in PYTORCH_CUDA_ALLOC_CONF; may be repeated [default: a grid]
    #[arg(long, value_name = "STRING")]
    conf: Vec<String>,
    /// What PyTorch may reserve, e.g. 24GiB; may be repeated
    #[arg(long, value_name = "SIZE")]
    capacity: Vec<String>,
    /// Print JSON (schema vramtrace.whatif/1)
    #[arg(long)]
    json: bool,
}

const GRID: [&str; 9] = [
    "default",
    "expandable_segments:True",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "max_split_size_mb:64",
    "max_split_size_mb:256",
    "max_split_size_mb:512",
    "max_split_size_mb:128,roundup_power2_divisions:4",
    "large_segment_size_mb:64",
];

struct Setting {
    conf: String,
    free: Replayed,
    at: Vec<(u64, Replayed)>,
    smallest: Option<u64>,
}

pub fn run(args: Args) -> Outcome {
    let capacities = args
        .capacity
        .iter()
        .map(|text| size::parse(text).map_err(|e| Failure::new(format!("--capacity {text}: {e}"))))
        .collect::<Result<Vec<u64>, Failure>>()?;
    let confs: Vec<String> = if args.conf.is_empty() {
        GRID.map(String::from).to_vec()
    } else {
        args.conf.iter().map(|c| if c.is_empty() { "default".into() } else { c.clone() }).collect()
    };
    let parsed = confs
        .iter()
        .map(|text| Conf::parse(text).map_err(|e| Failure::new(format!("--conf \"{text}\": {e}"))))
        .collect::<Result<Vec<Conf>, Failure>>()?;
    let imported = import::open(&args.file)?;

    let mut devices = Vec::new();
    for (ordinal, log) in &imported.devices {
        devices.push((*ordinal, log, settings(log, &confs, &parsed, &capacities)));
    }
    if args.json {
        println!("{}", as_json(&devices));
    } else {
        print!("{}", as_text(&args, &imported, &devices, &capacities));
    }
    Ok(DONE)
}

/// Every setting, best first: what fits before what does not, then by the peak.
fn settings(log: &Log, confs: &[String], parsed: &[Conf], capacities: &[u64]) -> Vec<Setting> {
    let progress = indicatif::ProgressBar::new(confs.len() as u64).with_message("replaying");
    progress.enable_steady_tick(Duration::from_millis(200));
    let mut settings: Vec<Setting> = confs
        .iter()
        .zip(parsed)
        .map(|(text, conf)| {
            let at = capacities.iter().map(|&c| (c, replay(log, conf, Some(c)))).collect();
            progress.inc(1);
            let free = replay(log, conf, None);
            let smallest = smallest_capacity(log, conf, &free);
            Setting { conf: text.clone(), free, at, smallest }
        })
        .collect();
    progress.finish_and_clear();
    settings.sort_by_key(|s| {
        let misses = s.at.iter().filter(|(_, outcome)| !outcome.fits()).count();
        (misses, s.free.peak_reserved, s.free.driver_allocations)
    });
    settings
}

fn as_json(devices: &[(u32, &Log, Vec<Setting>)]) -> serde_json::Value {
    let setting = |s: &Setting| {
        let fits: serde_json::Map<String, serde_json::Value> =
            s.at.iter().map(|(c, o)| (c.to_string(), json!(o.fits()))).collect();
        let at: Vec<_> =
            s.at.iter()
                .map(|(c, o)| {
                    json!({
                        "capacity_bytes": c,
                        "fits": o.fits(),
                        "peak_reserved_bytes": o.peak_reserved,
                        "retries": o.retries,
                    })
                })
                .collect();
        json!({
            "conf": s.conf,
            "peak_reserved_bytes": s.free.peak_reserved,
            "peak_allocated_bytes": s.free.peak_allocated,
            "driver_allocations": s.free.driver_allocations,
            "driver_frees": s.free.driver_frees,
            "retries": s.free.retries,
            "fits": fits,
            "at_capacity": at,
            "smallest_capacity_bytes": s.smallest,
            "compatible": true,
            "reason": null,
        })
    };
    let devices: Vec<_> = devices
        .iter()
        .map(|(ordinal, _, settings)| {
            json!({"ordinal": ordinal, "settings": settings.iter().map(setting).collect::<Vec<_>>()})
        })
        .collect();
    json!({"schema": "vramtrace.whatif/1", "devices": devices})
}

fn as_text(
    args: &Args,
    imported: &Imported,
    devices: &[(u32, &Log, Vec<Setting>)],
    capacities: &[u64],
) -> String {
    use std::fmt::Write;
    let mut out = String::new();
    let in_force = imported.conf.as_deref().map(|c| if c.is_empty() { "default" } else { c });
    for (ordinal, log, settings) in devices {
        let _ = writeln!(
            out,
            "{}  cuda:{ordinal}  {} allocations{}",
            args.file.display(),
            log.allocations(),
            in_force.map(|c| format!("  recorded under {c}")).unwrap_or_default()
        );
        let width = settings.iter().map(|s| s.conf.len()).max().unwrap_or(0).max(7);
        let _ = write!(
            out,
            "\n  {:width$}  {:>10}  {:>9}  {:>7}  {:>10}",
            "setting", "reserved", "unused", "mallocs", "fits in"
        );
        for c in capacities {
            let _ = write!(out, "  {:>12}", gib(*c));
        }
        out.push('\n');
        for s in settings {
            let unused = s.free.peak_reserved.saturating_sub(s.free.peak_allocated);
            let share = 100 * unused / s.free.peak_reserved.max(1);
            let smallest = s.smallest.map_or("?".into(), gib);
            let _ = write!(
                out,
                "  {:width$}  {:>10}  {:>7} %  {:>7}  {:>10}",
                s.conf,
                gib(s.free.peak_reserved),
                share,
                s.free.driver_allocations,
                smallest
            );
            for (_, outcome) in &s.at {
                let verdict = match outcome.failure {
                    Some(_) => "no".to_string(),
                    None if outcome.retries == 1 => "yes, 1 retry".to_string(),
                    None if outcome.retries > 0 => format!("yes, {} retries", outcome.retries),
                    None => "yes".to_string(),
                };
                let _ = write!(out, "  {verdict:>12}");
            }
            out.push('\n');
        }
        if let Some(best) = settings.first() {
            let _ = writeln!(
                out,
                "\n  Live at the peak: {} at the least, whatever the setting.",
                gib(settings.iter().map(|s| s.free.peak_allocated).min().unwrap_or(0))
            );
            if best.conf == "default" || Some(best.conf.as_str()) == in_force {
                out.push_str("  None of these settings would have reserved less.\n");
            } else {
                let _ = writeln!(out, "  Try  export PYTORCH_CUDA_ALLOC_CONF={}", best.conf);
            }
        }
    }
    for caveat in &imported.caveats {
        let _ = writeln!(out, "  Note: {caveat}.");
    }
    out
}
