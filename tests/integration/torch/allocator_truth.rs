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

/// GPT-2 small, 40 training steps of random length: (setting, measured peak reserved).
const VARLEN: [(&str, u64); 8] = [
    ("default", 27_426_553_856),
    ("expandable_segments:True", 14_443_085_824),
    ("max_split_size_mb:64", 103_582_531_584),
    ("max_split_size_mb:256", 78_504_787_968),
    ("roundup_power2_divisions:4", 23_211_278_336),
    ("roundup_power2_divisions:8", 22_485_663_744),
    ("max_split_size_mb:128,roundup_power2_divisions:4", 55_985_569_792),
    ("large_segment_size_mb:64", 26_661_093_376),
];

#[test]
fn eight_settings_reserve_what_was_measured() {
    let log = recorded("varlen_s1.csv.gz");
    for (text, measured) in VARLEN {
        let outcome = replay(&log, &Conf::parse(text).unwrap(), None);
        assert_eq!(outcome.peak_reserved, measured, "{text}");
    }
}

/// ResNet-50, 30 training steps of random resolution: (setting, limit in GiB or 0, fits, measured peak reserved,
/// measured retries).
const RESVAR: [(&str, u64, bool, u64, u64); 10] = [
    ("default", 0, true, 9_560_915_968, 0),
    ("expandable_segments:True", 0, true, 7_201_619_968, 0),
    ("max_split_size_mb:64", 0, true, 19_824_377_856, 0),
    ("max_split_size_mb:512", 0, true, 9_560_915_968, 0),
    ("roundup_power2_divisions:4", 0, true, 9_179_234_304, 0),
    ("default", 8, true, 8_554_283_008, 1),
    ("default", 7, true, 7_484_735_488, 2),
    ("default", 6, false, 6_427_770_880, 2),
    ("default", 5, false, 5_297_405_952, 2),
    ("default", 4, false, 4_169_138_176, 2),
];

#[test]
fn requests_fit_under_a_limit_as_measured() {
    let log = recorded("resvar_s5.csv.gz");
    for (text, limit, fits, measured, retries) in RESVAR {
        let outcome = replay(&log, &Conf::parse(text).unwrap(), (limit > 0).then_some(limit * GIB));
        let found = (outcome.fits(), outcome.peak_reserved, outcome.retries);
        assert_eq!(found, (fits, measured, retries), "{text} in {limit} GiB");
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
