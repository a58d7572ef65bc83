//! What the driver holds for itself has the same bytes in every view of a trace.

use serde_json::Value;
use testkit::{Program, Run, Setup, functions, sum};

use super::page::{facts, section};

/// The rows of this kind of the driver's memory.
fn of_kind(rows: &Value, kind: &str) -> Value {
    let rows = rows.as_array().unwrap().iter();
    rows.filter(|row| row["driver_memory"] == kind).cloned().collect()
}

fn number(bytes: &mut &[u8]) -> u64 {
    let last = bytes.iter().position(|byte| *byte < 128).unwrap();
    let number = bytes.split_off(..=last).unwrap().iter().rev();
    number.fold(0, |value, byte| value << 7 | u64::from(byte & 127))
}

/// Owner and bytes of the memory that the page's stream has as live at the end.
fn live_on_page(mut stream: &[u8]) -> Vec<(usize, u64)> {
    const COLUMNS: [usize; 7] = [0, 1, 8, 10, 7, 3, 4];
    const MEMORY: u8 = 3;
    let mut live = Vec::new();
    while let Some(kind) = stream.split_off_first() {
        let records = number(&mut stream);
        let mut columns = Vec::new();
        for _ in 0..COLUMNS[usize::from(*kind)] {
            let long = number(&mut stream) as usize;
            columns.push(stream.split_off(..long).unwrap());
        }
        for _ in 0..records {
            let values: Vec<u64> = columns.iter_mut().map(number).collect();
            if *kind == MEMORY && values[0] == 0 {
                let share = values[8];
                let bytes = if share.is_multiple_of(2) { share * 256 } else { share / 2 };
                live.push((values[3] as usize, bytes));
            }
        }
    }
    live
}

/// Of the memory that is live at the end on the page: bytes of holders of this kind.
fn on_page(run: &Run, kind: &str) -> u64 {
    run.text("report --html --force -o page.html");
    let page = std::fs::read_to_string(run.scratch.0.join("page.html")).unwrap();
    let process = &facts(&page)["processes"][0];
    let live = live_on_page(&section(&page, "stream-0")).into_iter();
    let of_kind = live.filter(|(owner, _)| {
        let holder = process["owners"][owner][3].as_u64().unwrap() as usize;
        process["holders"][holder]["driver_memory"] == kind
    });
    of_kind.map(|(_, bytes)| bytes).sum()
}

#[test]
fn every_view_has_the_same_bytes() {
    let program = Program::c_with("graph_growth", &["-lpthread"]);
    for (name, requests, kind) in [("kept", "45", "graphs"), ("kept-streams", "300", "streams")] {
        let setup = Setup::simulated().preload().env("VRAMTRACE_STACKS", "native");
        let setup = setup.env("VRAMTRACE_SIM_GRAPHS", "1").env("VRAMTRACE_TEST_CLOCK", "0");
        let run = program.run(setup.arg(name).arg(requests)).ok();

        let report = run.only_report();
        let device = &report["devices"][0];
        let bytes = device["driver_bytes"][kind].as_u64().unwrap();
        assert!(bytes > 16 << 20, "{name}: {device:#}");
        let holders = &run.json("holders --at end")["holders"];
        let all = sum(holders, "bytes");
        let diff: Value =
            serde_json::from_str(&run.text("diff --format json --at 0.0001 --vs end")).unwrap();
        let diff = &diff["devices"][0];
        let leaks = &run.json("leaks")["leaks"];
        for (what, rows, field) in [
            ("report", &device["holders"]["live"], "bytes"),
            ("holders", holders, "bytes"),
            ("diff", &diff["lines"], "after_bytes"),
            ("leaks", leaks, "bytes"),
        ] {
            assert_eq!(sum(&of_kind(rows, kind), field), bytes, "{what}: {rows:#}");
        }
        assert_eq!(on_page(&run, kind), bytes, "the page");
        assert_eq!(on_page(&run, "context"), sum(&of_kind(holders, "context"), "bytes"));
        assert!(device["peak_bytes"].as_u64() >= Some(all), "the peak has it: {device:#}");
        let line = &of_kind(holders, kind)[0];
        assert!(functions(line).iter().any(|function| function.starts_with("leaking_")));
        let folded = run.text("export --format folded --at end -o -");
        let leaf = format!("{kind}, taken by the driver ");
        let folded = folded.lines().filter_map(|line| line.rsplit_once(&*leaf));
        assert_eq!(folded.map(|(_, bytes)| bytes.parse::<u64>().unwrap()).sum::<u64>(), bytes);
        // All lines and the sum.
        let by_role = run.json("holders --at end --by role");
        assert_eq!(sum(&by_role["holders"], "bytes"), all, "by role");
        assert_eq!(diff["in_use"]["after_bytes"], all);
        let text = run.text("holders --at end");
        assert!(text.contains(&format!("{kind}: graph_growth.c:")), "{text}");
    }
}
