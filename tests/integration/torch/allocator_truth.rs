//! The replayed allocator against torch 2.11: two recorded runs, each measured on an H200 under several settings and limits,
//! and the requests of two programs, measured on an H100, one process per row.

use vramtrace_reader::allocator::{Conf, Log, replay, smallest_capacity};

const GIB: u64 = 1 << 30;

/// The recorded requests, from the columns action,addr,size,stream.
fn recorded(name: &str) -> Log {
    let text = String::from_utf8(testkit::unpacked(&format!("tests/data/{name}"))).unwrap();
    let (mut log, mut streams) = (Log::default(), Vec::new());
    for line in text.lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let (address, size) = (fields[1].parse().unwrap(), fields[2].parse().unwrap());
        match fields[0] {
            "alloc" => {
                let known = streams.iter().position(|known| *known == fields[3]);
                let stream = known.unwrap_or_else(|| {
                    streams.push(fields[3]);
                    streams.len() - 1
                });
                log.alloc(address, size, stream as u32, 0);
            }
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

/// Bytes of the card on which the programs below ran.
const CARD: u64 = 85_017_755_648;

/// tests/gpu/programs/cache_run.py: (mode, setting, limit in MiB or 0, measured: fits, peak reserved in thousandths of a
/// GiB, retries). H100, driver 580, torch 2.11, 2026-11-24. The requests of a mode are the same in each run.
const PROGRAMS: [(&str, &str, u64, bool, u64, u64); 11] = [
    ("turns", "default", 0, true, 2346, 0),
    ("turns", "expandable_segments:True", 0, true, 2084, 0),
    ("turns", "roundup_power2_divisions:4", 0, true, 2441, 0),
    ("churn", "default", 0, true, 1500, 0),
    ("churn", "default", 1400, true, 1367, 4),
    ("churn", "garbage_collection_threshold:0.6", 1400, true, 1336, 0),
    ("churn", "garbage_collection_threshold:0.8", 1400, false, 1355, 1),
    ("churn", "max_split_size_mb:20", 1400, true, 1367, 1),
    ("churn", "default", 1300, false, 1268, 4),
    ("churn", "garbage_collection_threshold:0.6", 1300, false, 1238, 1),
    ("churn", "garbage_collection_threshold:0.8", 1300, false, 1264, 2),
];

#[test]
fn requests_of_streams_and_under_limits_take_what_was_measured() {
    let logs = ["cache_churn.csv.gz", "cache_turns.csv.gz"].map(|file| (file, recorded(file)));
    for (mode, setting, limit, fits, reserved, retries) in PROGRAMS {
        let (_, log) = logs.iter().find(|(file, _)| file.contains(mode)).unwrap();
        let mut conf = Conf::parse(setting).unwrap();
        if limit > 0 {
            conf.per_process_memory_fraction = Some((limit << 20) as f64 / CARD as f64);
        }
        let outcome = replay(log, &conf, Some(CARD));
        let thousandths = (outcome.peak_reserved as f64 / GIB as f64 * 1000.0).round() as u64;
        let found = (outcome.fits(), thousandths, outcome.retries);
        assert_eq!(found, (fits, reserved, retries), "{mode} under {setting} in {limit} MiB");
    }
}
