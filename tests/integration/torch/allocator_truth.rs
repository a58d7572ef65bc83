//! The replayed allocator against torch 2.11 on an H200: two recorded runs, each measured under
//! several settings and limits, one process per row.

use std::io::Read;
use vramtrace_reader::allocator::{Conf, Log, replay, smallest_capacity};

const GIB: u64 = 1 << 30;

/// The recorded requests, from the columns action,addr,size,stream.
fn recorded(name: &str) -> Log {
    let path = format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
    let mut text = String::new();
    flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap())
        .read_to_string(&mut text)
        .unwrap();
    let mut log = Log::default();
    for line in text.lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let (address, size) = (fields[1].parse().unwrap(), fields[2].parse().unwrap());
        match fields[0] {
            "alloc" => log.alloc(address, size, 0, 0),
            "free_completed" => {
                log.free(address);
            }
            _ => {}
        }
    }
    log
}

#[track_caller]
fn within(predicted: u64, measured: u64, percent: f64, what: &str) {
    let off = (predicted as f64 / measured as f64 - 1.0).abs() * 100.0;
    assert!(off <= percent, "{what}: predicted {predicted}, measured {measured}: {off:.2} % off");
}

/// GPT-2 small, 40 training steps of random length: (setting, measured peak reserved, exact?).
const VARLEN: [(&str, u64, bool); 8] = [
    ("default", 27_426_553_856, false),
    ("expandable_segments:True", 14_443_085_824, true),
    ("max_split_size_mb:64", 103_582_531_584, true),
    ("max_split_size_mb:256", 78_504_787_968, false),
    ("roundup_power2_divisions:4", 23_211_278_336, false),
    ("roundup_power2_divisions:8", 22_485_663_744, true),
    ("max_split_size_mb:128,roundup_power2_divisions:4", 55_985_569_792, false),
    ("large_segment_size_mb:64", 26_661_093_376, false),
];

#[test]
fn eight_settings_reserve_what_was_measured() {
    let log = recorded("varlen_s1.csv.gz");
    let mut ranking = Vec::new();
    for (text, measured, exact) in VARLEN {
        let outcome = replay(&log, &Conf::parse(text).unwrap(), None);
        within(outcome.peak_reserved, measured, if exact { 0.0 } else { 1.0 }, text);
        ranking.push((outcome.peak_reserved, measured));
    }
    ranking.sort();
    assert!(
        ranking.is_sorted_by_key(|(_, measured)| *measured),
        "the ranking is wrong: {ranking:?}"
    );
}

/// ResNet-50, 30 training steps of random resolution: (setting, limit in GiB or 0, fits, measured
/// peak reserved).
const RESVAR: [(&str, u64, bool, u64); 10] = [
    ("default", 0, true, 9_560_915_968),
    ("expandable_segments:True", 0, true, 7_201_619_968),
    ("max_split_size_mb:64", 0, true, 19_824_377_856),
    ("max_split_size_mb:512", 0, true, 9_560_915_968),
    ("roundup_power2_divisions:4", 0, true, 9_179_234_304),
    ("default", 8, true, 8_554_283_008),
    ("default", 7, true, 7_484_735_488),
    ("default", 6, false, 6_427_770_880),
    ("default", 5, false, 5_297_405_952),
    ("default", 4, false, 4_169_138_176),
];

#[test]
fn requests_fit_under_a_limit_as_measured() {
    let log = recorded("resvar_s5.csv.gz");
    for (text, limit, fits, measured) in RESVAR {
        let outcome = replay(&log, &Conf::parse(text).unwrap(), (limit > 0).then_some(limit * GIB));
        let what = format!("{text} in {limit} GiB");
        assert_eq!(outcome.fits(), fits, "{what}");
        within(outcome.peak_reserved, measured, if limit == 0 { 1.0 } else { 5.0 }, &what);
        assert_eq!(outcome.retries > 0, limit > 0, "{what}");
    }
}

#[test]
fn the_smallest_capacity_lies_between_the_measured_verdicts() {
    let log = recorded("resvar_s5.csv.gz");
    let conf = Conf::default();
    let smallest = smallest_capacity(&log, &conf, &replay(&log, &conf, None)).unwrap();
    assert!(replay(&log, &conf, Some(smallest)).fits(), "the answer itself fits");
    assert!((6 * GIB..=7 * GIB).contains(&smallest), "{smallest}");
}
