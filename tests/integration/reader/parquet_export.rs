//! `vramtrace export --format parquet`: read back with the parquet crate, the tables hold what the traces hold.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use testkit::trace_builder::{MS, SECOND, TraceBuilder, cached, training};
use testkit::{Scratch, vramtrace};
use vramtrace_format::{Kind, PoolId, RefusedBy, Space};

const MIB: u64 = 1 << 20;

/// Exports traces to `out`.
#[track_caller]
fn exported(scratch: &Scratch, words: &str) {
    scratch.text(&format!("export --format parquet -o out {words}"));
}

#[derive(Clone, Debug)]
struct Row(BTreeMap<String, Field>);

impl Row {
    /// `None`: null.
    fn int(&self, column: &str) -> Option<u64> {
        match &self.0[column] {
            Field::Null => None,
            Field::Long(value) => Some(u64::try_from(*value).unwrap()),
            Field::Int(value) => Some(u64::try_from(*value).unwrap()),
            other => panic!("{column}: {other:?}"),
        }
    }

    fn real(&self, column: &str) -> Option<f64> {
        match &self.0[column] {
            Field::Null => None,
            Field::Double(value) => Some(*value),
            other => panic!("{column}: {other:?}"),
        }
    }

    fn text(&self, column: &str) -> &str {
        match &self.0[column] {
            Field::Null => "",
            Field::Str(text) => text,
            other => panic!("{column}: {other:?}"),
        }
    }
}

/// All parquet files below a directory, by their paths there.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

fn rows_of(file: &Path) -> Vec<Row> {
    let reader = SerializedFileReader::new(File::open(file).unwrap()).unwrap();
    let rows = reader.get_row_iter(None).unwrap();
    let row = |row: parquet::record::Row| {
        Row(row.get_column_iter().map(|(name, field)| (name.clone(), field.clone())).collect())
    };
    rows.map(|it| row(it.unwrap())).collect()
}

/// The rows of a table, of all runs and ranks.
fn rows(out: &Path, table: &str) -> Vec<Row> {
    files(&out.join(table)).iter().flat_map(|file| rows_of(file)).collect()
}

fn ascends(rows: &[Row], column: &str) -> bool {
    rows.is_sorted_by_key(|row| row.int(column))
}

/// A: 4 MiB from 1 s to 3 s. B: 1 KiB from 2 s on. A pool reserves 32 MiB at 2.5 s, C of 8 MiB is in it up to 2.6 s.
/// A refusal at 4 s. D: 2 MiB at 5 s, at the address of A.
fn small() -> TraceBuilder {
    let mut trace = TraceBuilder::new().rank(3, 4);
    trace.alloc(SECOND, Kind::Device, 0x7f00_0000_0000, 4 * MIB);
    trace.alloc(2 * SECOND, Kind::Device, 0x7f00_0100_0000, 1024);
    trace.alloc(2500 * MS, Kind::Pool, 0x7f00_0200_0000, 8 * MIB);
    let pool = PoolId(1);
    let state = vramtrace_format::Event::PoolState { pool, reserved: 32 * MIB, used: 8 * MIB };
    trace.event(2510 * MS, state);
    trace.free(2600 * MS, Space::Device, 0x7f00_0200_0000);
    trace.free(3 * SECOND, Space::Device, 0x7f00_0000_0000);
    trace.refused(4 * SECOND, Kind::Device, 99 * MIB, RefusedBy::Cap, 64 * MIB);
    trace.alloc(5 * SECOND, Kind::Device, 0x7f00_0000_0000, 2 * MIB);
    trace.sample(6 * SECOND, Some(900 * MIB), 500 * MIB);
    trace
}

#[test]
fn tables_have_every_allocation_with_its_end() {
    let scratch = Scratch::new();
    small().write(&scratch.0.join("a.vtrace"));
    exported(&scratch, "a.vtrace");
    let out = scratch.0.join("out");
    let names: Vec<String> = files(&out)
        .iter()
        .map(|file| file.strip_prefix(&out).unwrap().display().to_string())
        .collect();
    let run = names[0].split('/').nth(1).unwrap();
    assert!(run.starts_with("run=20"), "{run}");
    let tables = ["blocks", "holders", "samples", "stacks", "summary"];
    let expected = tables.map(|table| format!("{table}/{run}/rank=3/part-0.parquet"));
    assert_eq!(names, expected);
    assert!(!scratch.0.join("out.partial").exists());

    let blocks = rows(&out, "blocks");
    assert!(ascends(&blocks, "end_ns"));
    let seen: Vec<(u64, u64, &str, Option<u64>)> = blocks
        .iter()
        .map(|row| {
            let ms = |column| row.int(column).unwrap().next_multiple_of(64) / MS;
            (ms("begin_ns"), ms("end_ns"), row.text("end"), row.int("bytes"))
        })
        .collect();
    let expected = [
        (2500, 2600, "freed", Some(8 * MIB)),
        (1000, 3000, "freed", Some(4 * MIB)),
        (2000, 6000, "live", Some(1024)),
        (5000, 6000, "live", Some(2 * MIB)),
    ];
    assert_eq!(seen, expected);
    let mut address = blocks.iter().map(|row| row.int("address").unwrap());
    assert_eq!(address.next_back(), Some(0x7f00_0000_0000));

    let summary = rows(&out, "summary");
    assert_eq!(summary.len(), 1);
    assert_eq!(summary[0].int("peak_bytes"), Some(38 * MIB));
    assert_eq!(summary[0].int("live_bytes"), Some(36 * MIB));
    assert_eq!(summary[0].int("refused_by_cap"), Some(1));
    assert_eq!(summary[0].int("world_size"), Some(4));
    assert_eq!(summary[0].int("nvml_peak_bytes"), Some(900 * MIB));
    // A for 2 s, the page of B for 4 s, the pool for 3.49 s, D for 1 s, in GiB-hours.
    let held = (4.0 * 2.0 + 2.0 * 4.0 + 32.0 * 3.49 + 2.0) / 1024.0 / 3600.0;
    let found = summary[0].real("held_gib_hours").unwrap();
    assert!((found / held - 1.0).abs() < 1e-3, "{found} of {held}");
    assert_eq!(summary[0].real("held_gib_hours_error"), Some(0.0), "all events are there");

    let samples = rows(&out, "samples");
    assert!(ascends(&samples, "from_ns"));
    let highest = samples
        .iter()
        .filter(|row| row.text("source") == "events" && row.0["stack"] == Field::Null);
    assert_eq!(highest.filter_map(|row| row.int("highest_bytes")).max(), Some(38 * MIB));
    let driver: Vec<&Row> = samples.iter().filter(|row| row.text("source") == "driver").collect();
    assert_eq!(driver.len(), 1);
    assert_eq!(driver[0].int("process_bytes"), Some(900 * MIB));
    assert_eq!(driver[0].int("driver_free_bytes"), None);
}

#[test]
fn holders_and_stacks_name_the_lines_of_a_training() {
    let scratch = Scratch::new();
    training().write(&scratch.0.join("a.vtrace"));
    exported(&scratch, "a.vtrace");
    let out = scratch.0.join("out");
    let stacks = rows(&out, "stacks");
    let lines: Vec<(u64, &str, &str)> = stacks
        .iter()
        .map(|row| (row.int("stack").unwrap(), row.text("line"), row.text("library")))
        .collect();
    assert_eq!(lines[0], (1, "modeling_gpt2.py:212", "PyTorch"));
    assert_eq!(lines[2], (3, "modeling_gpt2.py:212", "cuBLAS"));
    assert!(stacks[0].text("frames").contains(';'));
    let holders = rows(&out, "holders");
    let report = scratch.json("report a.vtrace");
    let peak = report["processes"][0]["devices"][0]["peak_bytes"].as_u64();
    let held: u64 = holders.iter().filter_map(|row| row.int("peak_bytes")).sum();
    assert_eq!(Some(held), peak);
}

#[test]
fn blocks_of_a_cache_have_roles_and_lie_beside_their_segments() {
    let scratch = Scratch::new();
    cached().write(&scratch.0.join("a.vtrace"));
    exported(&scratch, "a.vtrace");
    let blocks = rows(&scratch.0.join("out"), "blocks");
    let (of_cache, others): (Vec<&Row>, Vec<&Row>) =
        blocks.iter().partition(|row| row.text("kind") == "block");
    assert!(!of_cache.is_empty() && !others.is_empty());
    assert!(
        of_cache
            .iter()
            .all(|row| row.int("physical_bytes").is_none() && !row.text("role").is_empty())
    );
    assert!(others.iter().all(|row| row.int("physical_bytes").is_some()));
    let summary = &rows(&scratch.0.join("out"), "summary")[0];
    assert!(summary.int("peak_allocated_bytes") > Some(0));
    assert!(summary.int("peak_reserved_bytes") >= summary.int("peak_allocated_bytes"));
}

#[test]
fn nothing_is_replaced_and_nothing_stays_of_a_failed_export() {
    let scratch = Scratch::new();
    small().write(&scratch.0.join("a.vtrace"));
    let out = scratch.0.join("out");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("mine"), "1").unwrap();
    let refused = |words: &str, why: &str| {
        scratch.fails(2, &format!("export --format parquet a.vtrace {words}"), why);
    };
    refused("-o out", "out: exists: give a directory");
    assert_eq!(files(&out), [out.join("mine")]);
    fs::create_dir(scratch.0.join("c.partial")).unwrap();
    for (words, why) in [
        ("-o a.vtrace", "a.vtrace: exists"),
        ("-o none/out", "must exist"),
        ("-o -", "a directory of files"),
        ("", "for parquet -o DIR"),
        ("-o b --force", "--force is not for parquet"),
        ("-o b --from 1", "--from is not for parquet"),
        ("-o c", "c.partial exists"),
    ] {
        refused(words, why);
    }
    fs::remove_dir(scratch.0.join("c.partial")).unwrap();
    assert!(!scratch.0.join("b").exists() && !scratch.0.join("c").exists());
    // A file that cannot be written as a whole.
    let limited = "ulimit -f 1; trap '' XFSZ; exec \"$0\" export --format parquet a.vtrace -o c";
    let mut shell = std::process::Command::new("bash");
    let program = vramtrace().get_program().to_owned();
    let output = shell.args(["-c", limited]).arg(program).current_dir(&scratch.0).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("c: ") && message.contains("File too large"), "{message}");
    assert!(!scratch.0.join("c").exists() && !scratch.0.join("c.partial").exists());
}

/// What a random program does: an allocation of a kind, or the free of one that is live.
fn program() -> impl Strategy<Value = Vec<(u8, u64, u64)>> {
    prop::collection::vec((0u8..8, 1u64..64 * MIB, 0u64..SECOND), 1..120)
}

fn trace_of(rank: u32, steps: &[(u8, u64, u64)]) -> TraceBuilder {
    let mut trace = TraceBuilder::new().rank(rank, 2);
    let (mut at_ns, mut next, mut live) = (SECOND, 0x7f00_0000_0000u64, Vec::new());
    for (what, number, after_ns) in steps.iter().copied() {
        at_ns += after_ns;
        let kind = match what {
            0..=2 => Kind::Device,
            3 => Kind::Managed,
            4 => Kind::HostPinned,
            5 => {
                trace.refused(at_ns, Kind::Device, number, RefusedBy::Driver, 0);
                continue;
            }
            _ => {
                if !live.is_empty() {
                    let index = number as usize % live.len();
                    let (space, address) = live.swap_remove(index);
                    trace.free(at_ns, space, address);
                }
                continue;
            }
        };
        let device = u8::from(what == 2);
        next += 128 * MIB;
        trace.alloc_on(at_ns, kind, device, next, number);
        live.push((kind.space(), next));
    }
    trace
}

#[test]
fn totals_are_those_of_the_report() {
    let mut runner = TestRunner::new(ProptestConfig { cases: 24, ..ProptestConfig::default() });
    let checked = runner.run(&(program(), program()), |(first, second)| {
        let scratch = Scratch::new();
        for (rank, steps) in [(0, &first), (1, &second)] {
            trace_of(rank, steps).write(&scratch.0.join(format!("{rank}.vtrace")));
        }
        exported(&scratch, "0.vtrace 1.vtrace");
        let report = scratch.json("report 0.vtrace 1.vtrace");
        for process in report["processes"].as_array().unwrap() {
            let rank = process["rank"].as_u64().unwrap();
            let of_rank = format!("rank={rank}");
            let part = |table: &str| -> Vec<Row> {
                let all = files(&scratch.0.join("out").join(table));
                let of_rank = all.iter().filter(|file| file.parent().unwrap().ends_with(&of_rank));
                of_rank.flat_map(|file| rows_of(file)).collect()
            };
            let (summary, blocks, samples) = (part("summary"), part("blocks"), part("samples"));
            let devices = process["devices"].as_array().unwrap();
            prop_assert_eq!(
                devices.len(),
                summary.iter().filter(|row| row.int("device").is_some()).count()
            );
            for device in devices {
                let ordinal = device["ordinal"].as_u64();
                let row = summary.iter().find(|row| row.int("device") == ordinal).unwrap();
                for figure in [
                    "peak_bytes",
                    "live_bytes",
                    "live_allocations",
                    "allocations",
                    "frees",
                    "refused_by_driver",
                    "refused_by_cap",
                ] {
                    prop_assert_eq!(row.int(figure), device[figure].as_u64(), "{}", figure);
                }
                let of = |rows: &[Row]| -> Vec<Row> {
                    rows.iter().filter(|row| row.int("device") == ordinal).cloned().collect()
                };
                let blocks = of(&blocks);
                prop_assert_eq!(Some(blocks.len() as u64), device["allocations"].as_u64());
                let live = blocks.iter().filter(|row| row.text("end") == "live");
                let bytes: u64 = live.filter_map(|row| row.int("bytes")).sum();
                prop_assert_eq!(Some(bytes), device["requested_live_bytes"].as_u64());
                let sums = of(&samples).into_iter().filter(|row| row.0["stack"] == Field::Null);
                let highest = sums.filter_map(|row| row.int("highest_bytes")).max().unwrap_or(0);
                prop_assert_eq!(Some(highest), device["peak_bytes"].as_u64());
            }
        }
        Ok(())
    });
    checked.unwrap();
}
