//! The memory of a process on one device at its peak, split once: the headline of a report.

use super::layout::{BOLD, DIM, PLAIN, Table, WIDTH, room};
use super::sum_line::sum_line;
use crate::replay::{DeviceState, InUse, SampleAt};
use crate::report::wording;
use crate::units::{gib, seconds};

/// The characters of a row before its text.
const BEFORE: usize = 34;
/// A lower NVML reading than this above the headline is rounding: nvidia-smi counts whole MiB.
const NOTICEABLE: u64 = 2 << 20;

/// The rows of the peak: what nvidia-smi shows, its parts, and what stands beside it.
pub(super) fn add_peak(table: &mut Table, device: &DeviceState) {
    let peak = &device.peak;
    let of = &peak.in_use;
    let at = match (peak.time_ns, peak.bytes) {
        (0, 0) => String::new(),
        (time_ns, _) => format!(", at {}", seconds(time_ns)),
    };
    let what = format!("{}{at}", wording::headline_name(of));
    table.styled([("peak".into(), PLAIN), (gib(of.headline()), BOLD), (what, PLAIN)]);
    if peak.bytes == 0 {
        return;
    }
    let parts = parts(of);
    if parts.len() > 1 {
        let (total, parts) = sum_line(&parts);
        let unit = total.rsplit(' ').next().unwrap_or_default();
        for line in lines(&format!("= {parts} {unit}"), room(BEFORE).min(WIDTH - BEFORE)) {
            table.styled([(String::new(), PLAIN), (String::new(), PLAIN), (line, DIM)]);
        }
    }
    if of.managed > 0 && of.in_nvidia_smi().is_some() {
        let what = "besides: nvidia-smi leaves it out, a cap counts it";
        table.styled([("  managed".into(), DIM), (gib(of.managed), DIM), (what.into(), DIM)]);
    }
    if let Some((bytes, at)) = highest_reading(device) {
        let what = format!("the highest reading of NVML, at {}", seconds(at.time_ns));
        table.styled([("  highest".into(), DIM), (gib(bytes), DIM), (what, DIM)]);
    }
}

/// A sum in lines of at most `most` characters, each new one with its sign first.
fn lines(sum: &str, most: usize) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for (index, part) in sum.split(" + ").enumerate() {
        let part = if index == 0 { part.to_string() } else { format!("+ {part}") };
        match all.last_mut() {
            Some(last) if last.chars().count() + 1 + part.chars().count() <= most => {
                last.push(' ');
                last.push_str(&part);
            }
            _ => all.push(part),
        }
    }
    all
}

/// NVML's highest reading, if the memory that was recorded was highest at another moment.
fn highest_reading(device: &DeviceState) -> Option<(u64, SampleAt)> {
    let at = device.peak_sample?;
    let bytes = at.sample.process_bytes?;
    (bytes > device.peak.in_use.headline().saturating_add(NOTICEABLE)).then_some((bytes, at))
}

/// The parts that add up to the headline, without those of 0 B.
fn parts(of: &InUse) -> Vec<(&'static str, i64)> {
    let number = |bytes: u64| bytes.min(i64::MAX as u64) as i64;
    // The words of `oom`.
    let allocated = if of.cache.is_some() { "tensors" } else { "allocated" };
    let mut all = vec![
        (allocated, number(of.allocated())),
        ("torch cache", number(of.free_in_cache())),
        ("other", number(of.beside_cache())),
        ("context", number(of.contexts)),
        ("driver", number(of.taken_by_driver())),
        ("unattributed", of.of_unknown_cause()),
    ];
    if of.in_nvidia_smi().is_none() {
        all.push(("managed", number(of.managed)));
    }
    all.retain(|(_, bytes)| *bytes != 0);
    all
}
