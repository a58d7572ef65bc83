//! `vramtrace export --format parquet`: read back with the parquet crate, the tables hold what the traces hold.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use testkit::trace_builder::{MS, SECOND, TraceBuilder, cached, training};
use testkit::{MIB, Said, Scratch, is_kept, vramtrace};
use vramtrace_format::{Event, Kind, PoolId, RefusedBy, Space};

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
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
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

/// Exports this trace; the rows of these tables as text, without what is null.
fn tables(trace: &TraceBuilder, tables: &[&str]) -> (Scratch, String) {
    let scratch = Scratch::with(trace);
    exported(&scratch, "t.vtrace");
    let mut text = String::new();
    for table in tables {
        for row in rows(&scratch.0.join("out"), table) {
            let known = row.0.iter().filter(|(_, value)| **value != Field::Null);
            let known: Vec<_> = known.map(|(column, value)| format!("{column}={value}")).collect();
            writeln!(text, "{table} {}", known.join(" ")).unwrap();
        }
    }
    (scratch, text)
}

/// A: 4 MiB from 1 s to 3 s. B: 1 KiB from 2 s on. A pool reserves 32 MiB at 2.5 s, C of 8 MiB is in it up to 2.6 s.
/// A refusal at 4 s. D: 2 MiB at 5 s, at the address of A.
fn small() -> TraceBuilder {
    let mut trace = TraceBuilder::new().rank(3, 4);
    trace.alloc(SECOND, Kind::Device, 0x7f00_0000_0000, 4 * MIB);
    trace.alloc(2 * SECOND, Kind::Device, 0x7f00_0100_0000, 1024);
    trace.alloc(2500 * MS, Kind::Pool, 0x7f00_0200_0000, 8 * MIB);
    let pool = PoolId(1);
    let state = Event::PoolState { pool, reserved: 32 * MIB, used: 8 * MIB };
    trace.event(2510 * MS, state);
    trace.free(2600 * MS, Space::Device, 0x7f00_0200_0000);
    trace.free(3 * SECOND, Space::Device, 0x7f00_0000_0000);
    trace.refused(4 * SECOND, Kind::Device, 99 * MIB, RefusedBy::Cap, 64 * MIB);
    trace.alloc(5 * SECOND, Kind::Device, 0x7f00_0000_0000, 2 * MIB);
    trace.sample(6 * SECOND, Some(900 * MIB), 500 * MIB);
    trace
}

/// Blocks are sorted by their ends. Held are A for 2 s, the page of B for 4 s, the pool for 3.49 s, D for 1 s; of a cache,
/// blocks have roles and lie beside their segments.
#[test]
fn tables_have_every_allocation_with_its_end_and_every_holder_with_its_line() {
    let (scratch, small) = tables(&small(), &["blocks", "summary"]);
    let (_, training) = tables(&training(), &["stacks", "holders"]);
    let (_, cached) = tables(&cached(), &["blocks", "summary"]);
    is_kept("parquet", &format!("{small}\n{training}\n{cached}"));

    let out = scratch.0.join("out");
    let names = files(&out).into_iter();
    let names: Vec<_> =
        names.map(|file| file.strip_prefix(&out).unwrap().display().to_string()).collect();
    let run = names[0].split('/').nth(1).unwrap();
    assert!(run.starts_with("run=20"), "{run}");
    let tables = ["blocks", "holders", "samples", "stacks", "summary"];
    let expected = tables.map(|table| format!("{table}/{run}/rank=3/part-0.parquet"));
    assert_eq!(names, expected);
    assert!(!scratch.0.join("out.partial").exists());
    let samples = rows(&out, "samples");
    assert!(samples.is_sorted_by_key(|row| row.int("from_ns")));
    let driver: Vec<&Row> = samples.iter().filter(|row| row.text("source") == "driver").collect();
    assert_eq!(driver.len(), 1);
    assert_eq!(driver[0].int("process_bytes"), Some(900 * MIB));
    assert_eq!(driver[0].int("driver_free_bytes"), None);
}

#[test]
fn nothing_is_replaced_and_nothing_stays_of_a_failed_export() {
    let scratch = Scratch::with(&small());
    let out = scratch.0.join("out");
    fs::create_dir(&out).unwrap();
    scratch.write("out/mine", "1");
    let refused = |words: &str, why: &str| {
        scratch.fails(2, &format!("export --format parquet t.vtrace {words}"), why);
    };
    refused("-o out", "out: exists: give a directory");
    assert_eq!(files(&out), [out.join("mine")]);
    fs::create_dir(scratch.0.join("c.partial")).unwrap();
    for (words, why) in [
        ("-o t.vtrace", "t.vtrace: exists"),
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
    let limited = "ulimit -f 1; trap '' XFSZ; exec \"$0\" export --format parquet t.vtrace -o c";
    let mut shell = std::process::Command::new("bash");
    shell.args(["-c", limited]).arg(vramtrace().get_program()).current_dir(&scratch.0);
    let message = Said::by(&mut shell).ended(2).err;
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
                let ordinal = device["device"].as_u64();
                let row = summary.iter().find(|row| row.int("device") == ordinal).unwrap();
                let figures = "peak_bytes live_bytes live_allocations allocations frees \
                    refused_by_driver refused_by_cap";
                for figure in figures.split(' ') {
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
