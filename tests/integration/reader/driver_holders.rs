//! What the driver holds for itself has the same bytes in every view of a trace.

use std::io::Read;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use testkit::{Program, Scratch, Setup, vramtrace};

fn output(args: &[&str], trace: &Path) -> String {
    let output = vramtrace().args(args).arg(trace).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(args: &[&str], trace: &Path) -> Value {
    serde_json::from_str(&output(args, trace)).unwrap()
}

fn sum(all: &Value, wanted: impl Fn(&Value) -> bool, bytes: &str) -> u64 {
    let all = all.as_array().unwrap().iter().filter(|one| wanted(one));
    all.map(|one| one[bytes].as_u64().unwrap()).sum()
}

fn section(page: &str, id: &str) -> Vec<u8> {
    let begin = format!("<script type=\"application/vnd.vramtrace\" id=\"{id}\">");
    let (_, rest) = page.split_once(&begin).expect("the section");
    let bytes = STANDARD.decode(rest.split_once("</script>").unwrap().0).unwrap();
    let mut plain = Vec::new();
    flate2::read::ZlibDecoder::new(&bytes[..]).read_to_end(&mut plain).unwrap();
    plain
}

fn number(bytes: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        value |= u64::from(byte & 127) << shift;
        shift += 7;
        if byte < 128 {
            return value;
        }
    }
}

/// Owner and bytes of the memory that the page's stream has as live at the end.
fn live_on_page(mut stream: &[u8]) -> Vec<(usize, u64)> {
    const COLUMNS: [usize; 7] = [0, 1, 8, 10, 7, 3, 4];
    const MEMORY: u8 = 3;
    let mut live = Vec::new();
    while let Some((kind, rest)) = stream.split_first() {
        stream = rest;
        let records = number(&mut stream);
        let mut columns = Vec::new();
        for _ in 0..COLUMNS[usize::from(*kind)] {
            let long = number(&mut stream) as usize;
            let (column, rest) = stream.split_at(long);
            columns.push(column);
            stream = rest;
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
fn on_page(trace: &Path, kind: &str) -> u64 {
    let scratch = Scratch::new();
    let file = scratch.0.join("page.html");
    output(&["report", "--html", "-o", file.to_str().unwrap()], trace);
    let page = std::fs::read_to_string(file).unwrap();
    let facts: Value = serde_json::from_slice(&section(&page, "facts")).unwrap();
    let process = &facts["processes"][0];
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
        let trace = run.only_trace();
        let of_kind = |one: &Value| one["driver_memory"] == kind;

        let report = json(&["report", "--json"], &trace);
        let device = &report["processes"][0]["devices"][0];
        let bytes = device["driver_bytes"][kind].as_u64().unwrap();
        assert!(bytes > 16 << 20, "{name}: {device:#}");
        let lines = &device["holders"]["live"];
        assert_eq!(sum(lines, of_kind, "bytes"), bytes, "report: {lines:#}");

        let held = json(&["holders", "--json", "--at", "end"], &trace);
        let held = &held["holders"];
        assert_eq!(sum(held, of_kind, "bytes"), bytes, "holders: {held:#}");
        let line = held.as_array().unwrap().iter().find(|one| of_kind(one)).unwrap();
        let frames = line["frames"].as_array().unwrap();
        assert!(
            frames.iter().any(|frame| frame["function"].as_str().unwrap().starts_with("leaking_"))
        );

        let by_role = json(&["holders", "--json", "--at", "end", "--by", "role"], &trace);
        let all = |_: &Value| true;
        assert_eq!(sum(&by_role["holders"], all, "bytes"), sum(held, all, "bytes"), "by role");

        let tree = json(&["tree", "--json", "--at", "end"], &trace);
        let root = &tree["devices"][0]["bytes"];
        assert_eq!(root.as_u64().unwrap(), sum(held, all, "bytes"), "{tree:#}");
        let folded = output(&["export", "--format", "folded", "--at", "end", "-o", "-"], &trace);
        let leaf = format!("{kind}, taken by the driver ");
        let folded = folded.lines().filter_map(|line| line.rsplit_once(&*leaf));
        assert_eq!(folded.map(|(_, bytes)| bytes.parse::<u64>().unwrap()).sum::<u64>(), bytes);

        let diff = json(&["diff", "--format", "json", "--at", "0.0001", "--vs", "end"], &trace);
        let changed = &diff["devices"][0];
        assert_eq!(sum(&changed["lines"], of_kind, "after_bytes"), bytes, "{changed:#}");
        let in_use = changed["in_use"]["after_bytes"].as_u64().unwrap();
        assert_eq!(in_use, sum(held, all, "bytes"), "all lines and the sum");

        let leaks = json(&["leaks", "--json"], &trace);
        let leaks = &leaks["leaks"];
        assert_eq!(sum(leaks, of_kind, "bytes"), bytes, "leaks: {leaks:#}");

        assert_eq!(on_page(&trace, kind), bytes, "the page");
        let text = output(&["holders", "--at", "end"], &trace);
        assert!(text.contains(&format!("{kind}: graph_growth.c:")), "{text}");
    }
}
