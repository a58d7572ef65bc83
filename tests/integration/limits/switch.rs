//! The switch of the recording: by `vramtrace record`, and by a file of the host. Here the file is that of the user,
//! since that of the host would switch the other tests off.

use std::os::unix::fs::{DirBuilderExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use prost::Message;
use serde_json::{Value, json};
use testkit::torch_stand_ins::libraries;
use testkit::{InteractiveProgram, Setup, SharedMemory, eventually, has, vramtrace};
use vramtrace_reader::export::perfetto::proto::Trace as Timeline;

const MIB: u64 = 1 << 20;

fn start(setup: Setup) -> InteractiveProgram {
    InteractiveProgram::start(setup)
}

fn with_blocks(place: &SharedMemory) -> Setup {
    place.setup().arg(libraries().join("libc10_cuda.so").display())
}

/// The file of the user.
fn file(place: &SharedMemory) -> PathBuf {
    let directory = place.0.join("vramtrace");
    std::fs::DirBuilder::new().mode(0o700).recursive(true).create(&directory).unwrap();
    directory.join("off")
}

#[track_caller]
fn record(place: &SharedMemory, wanted: &str, pid: u32) -> String {
    place.says(&[], &format!("record {wanted} --pid {pid}"))
}

/// Switches, and makes the call that follows the order.
#[track_caller]
fn switch(place: &SharedMemory, wanted: &str, process: &mut InteractiveProgram) {
    record(place, wanted, process.pid());
    process.ask("i");
}

fn reported(trace: &Path) -> Value {
    testkit::report(&[trace.into()])["processes"][0].clone()
}

/// Waits until the process has switched; it makes calls all the time. Returns how long that took.
#[track_caller]
fn wait_for(place: &SharedMemory, pid: u32, off_by: Value) -> Duration {
    let began = Instant::now();
    eventually(|| place.shown(pid)["recording_off_by"].clone(), |by| *by == off_by);
    began.elapsed()
}

/// A program with 100 MiB, whose recording was then switched off.
fn switched_off(place: &SharedMemory, setup: Setup) -> InteractiveProgram {
    let mut process = start(setup);
    assert_eq!(process.result("a 100"), 0);
    switch(place, "off", &mut process);
    process
}

#[test]
fn off_and_on_again_the_trace_names_the_time_and_has_what_is_live() {
    let place = SharedMemory::new();
    let mut process = start(place.setup());
    let pid = process.pid();
    assert_eq!(process.result("a 100"), 0);
    let printed = record(&place, "off", pid);
    let said = "recording off; its limits stay in force (from its next";
    assert!(printed.contains(said), "{printed}");
    process.ask("i");
    assert_eq!(process.result("a 200"), 0);
    let now = place.shown(pid);
    assert_eq!(now["recording_off_by"], json!(["record"]), "{now}");
    assert_eq!(now["devices"][0]["live_bytes"], 300 * MIB, "counted on");
    assert!(place.says(&[], "ps").contains("(recording off)"));
    let text = place.command(&[], &["doctor"]).1;
    let trace = process.traces()[0].clone();
    assert!(text.contains(&format!("recording is off in process {pid}")), "{text}");
    let report = reported(&trace);
    assert_eq!(report["devices"][0]["live_bytes"], 100 * MIB, "what is off is not in the trace");
    assert_eq!(report["live_is_known"], false);
    switch(&place, "on", &mut process);
    assert_eq!(process.result("a 10"), 0);
    assert_eq!(place.shown(pid)["recording_off_by"], json!([]));
    let report = reported(&trace);
    assert_eq!(report["live_is_known"], true, "{report:#}");
    has(&report["devices"][0], json!({ "live_bytes": 310 * MIB, "allocations": 3 }));
    let off = &report["recording_off"];
    assert_eq!((off.as_array().unwrap().len(), &off[0]["by"]), (1, &json!("record")), "{off}");
    assert!(off[0]["until_s"].as_f64().unwrap() > off[0]["from_s"].as_f64().unwrap(), "{off}");
    for name in ["report", "leaks"] {
        let text = process.scratch.text(&format!("{name} ."));
        assert!(text.contains("the recording was off from"), "{name}: {text}");
        assert!(!text.contains("were erased"), "{name}: {text}");
    }
    // A moment in between is not known, and the reason is said.
    let middle = ["from_s", "until_s"].map(|key| off[0][key].as_f64().unwrap() / 2.0);
    let at = format!("holders . --at {}", middle[0] + middle[1]);
    process.scratch.fails(2, &at, "the recording was switched off");
    let timeline = vramtrace().args(["export", "-o", "-"]).arg(&trace).output().unwrap().stdout;
    let timeline = Timeline::decode(&*timeline).unwrap().packet;
    let names = timeline.iter().filter_map(|packet| packet.interned_data.as_ref());
    let off = names.flat_map(|names| &names.event_names).find(|of| of.name() == "recording off");
    let events = timeline.iter().filter_map(|packet| packet.track_event.as_ref());
    let drawn = events.filter(|event| event.name_iid == off.unwrap().iid).count();
    assert_eq!(drawn, 2, "begin and end");
    let report = process.end();
    assert_eq!(report["devices"][0]["live_bytes"], 310 * MIB);
    has(&report, json!({ "ended_in_order": true, "live_is_known": true }));
}

#[test]
fn four_threads_allocate_while_it_goes_off_and_on() {
    let place = SharedMemory::new();
    let mut process = start(place.setup());
    let pid = process.pid();
    assert_eq!(process.result("w"), 0);
    for _ in 0..12 {
        record(&place, "off", pid);
        wait_for(&place, pid, json!(["record"]));
        record(&place, "on", pid);
        wait_for(&place, pid, json!([]));
    }
    let left = process.ask("q");
    let (allocations, mib) = left.split_once(' ').unwrap();
    // The last checkpoint is written in slices, at the ends of calls; the figures of the page once a millisecond.
    assert_eq!(process.result("c 2000"), 0);
    let both = || {
        assert_eq!(process.result("c 1"), 0);
        (place.shown(pid), reported(&process.traces()[0]))
    };
    // All allocations, also those of which no event was recorded.
    let count = |process: &Value| process["devices"][0]["allocations"].clone();
    let (now, report) = eventually(both, |(now, report)| count(now) == count(report));
    let mib = mib.parse::<u64>().unwrap();
    assert_eq!(now["devices"][0]["live_bytes"], mib * MIB);
    assert_eq!(report["recording_off"].as_array().unwrap().len(), 12);
    assert_eq!(report["live_is_known"], true, "{report:#}");
    let device = &report["devices"][0];
    assert_eq!(device["live_bytes"], mib * MIB, "{report:#}");
    assert_eq!(device["live_allocations"], allocations.parse::<u64>().unwrap());
    let sound = report["inconsistencies"].as_object().unwrap().values().all(|n| *n == 0);
    assert!(sound, "{:#}", report["inconsistencies"]);
    assert_eq!(process.end()["devices"][0]["live_bytes"], mib * MIB);
}

#[test]
fn while_it_is_off_the_cap_refuses_and_can_be_changed() {
    let place = SharedMemory::new();
    let mut process = switched_off(&place, place.setup().cap("1GiB"));
    assert_eq!(process.results("a 200, a 2000"), [0, 2]);
    place.says(&[], &format!("cap --pid {} 3GiB", process.pid()));
    assert_eq!(process.results("a 2000, a 2000"), [0, 2]);
    let figures = json!({ "live_bytes": 2300 * MIB, "cap_bytes": 3072 * MIB });
    let device = place.shown(process.pid())["devices"][0].clone();
    has(&device, figures.clone());
    assert_eq!(device["refused_by_cap"], 2);
    switch(&place, "on", &mut process);
    assert_eq!(process.result("a 2000"), 2);
    let device = process.end()["devices"][0].clone();
    has(&device, figures);
    has(&device, json!({ "refused_by_cap": 3, "peak_bytes": 2820 * MIB }));
}

#[test]
fn killed_while_it_is_off_the_trace_ends_there() {
    let place = SharedMemory::new();
    let mut process = switched_off(&place, place.setup());
    assert_eq!(process.result("a 200"), 0);
    process.kill();
    let trace = process.traces()[0].clone();
    let report = reported(&trace);
    assert_eq!(report["recording_off"][0]["until_s"], Value::Null, "{report:#}");
    has(&report, json!({ "ended_in_order": false, "live_is_known": false }));
    assert_eq!(report["devices"][0]["live_bytes"], 100 * MIB);
    let text = process.scratch.text("report .");
    assert!(text.contains("to the end (vramtrace record)"), "{text}");
    assert!(text.contains("while the recording was off"), "{text}");
}

#[test]
fn an_orderly_end_while_it_is_off_leaves_what_was_live() {
    let place = SharedMemory::new();
    let mut process = switched_off(&place, place.setup());
    assert_eq!(process.result("a 200"), 0);
    let report = process.end();
    has(&report, json!({ "ended_in_order": true, "live_is_known": true }));
    let device = &report["devices"][0];
    has(device, json!({ "live_bytes": 300 * MIB, "allocations": 2 }));
    assert!(report["recording_off"][0]["until_s"].is_f64(), "{report:#}");
}

#[test]
fn blocks_of_pytorch_are_followed_while_it_is_off() {
    let place = SharedMemory::new();
    let mut process = start(with_blocks(&place));
    process.scratch.contradicts();
    assert_eq!((process.result("b 0 512"), process.result("b 4096 1024")), (0, 0));
    switch(&place, "off", &mut process);
    assert_eq!((process.result("b 0 -512"), process.result("b 8192 2048")), (0, 0));
    // Blocks alone lead to no call of the driver: here the next one does.
    switch(&place, "on", &mut process);
    assert_eq!((process.result("b 4096 -1024"), process.result("b 16384 512")), (0, 0));
    let torch = process.end()["devices"][0]["torch"].clone();
    has(&torch, json!({ "blocks": 2, "allocated_bytes": 2560, "disagreements": 0 }));
    has(&torch, json!({ "allocations": 4, "frees": 2 }));
}

#[test]
fn a_fork_while_it_is_off_changes_nothing_for_the_parent() {
    let place = SharedMemory::new();
    let mut process = start(with_blocks(&place));
    switch(&place, "off", &mut process);
    assert_eq!((process.result("b 0 512"), process.result("k"), process.result("a 30")), (0, 0, 0));
    let now = place.shown(process.pid());
    assert_eq!(now["recording_off_by"], json!(["record"]), "{now}");
    switch(&place, "on", &mut process);
    let report = process.end();
    assert_eq!(report["devices"][0]["live_bytes"], 50 * MIB, "{report:#}");
    assert_eq!(report["devices"][0]["torch"]["blocks"], 1, "{report:#}");
}

#[test]
fn a_file_switches_running_processes_within_a_second() {
    let place = SharedMemory::new();
    let mut process = start(place.setup());
    let pid = process.pid();
    assert_eq!(process.result("w"), 0);
    std::fs::write(file(&place), "").unwrap();
    let off = wait_for(&place, pid, json!(["host_file"]));
    let problem = format!("recording is off: {} exists", file(&place).display());
    let (status, out, _) = place.command(&[], &["doctor", "--json"]);
    assert!(status == 1 && out.contains(&problem), "{out}");
    // An order does not overrule it.
    let printed = record(&place, "on", pid);
    assert!(printed.contains("recording stays off"), "{printed}");
    record(&place, "off", pid);
    wait_for(&place, pid, json!(["record", "host_file"]));
    std::fs::remove_file(file(&place)).unwrap();
    wait_for(&place, pid, json!(["record"]));
    record(&place, "on", pid);
    wait_for(&place, pid, json!([]));
    std::fs::write(file(&place), "").unwrap();
    wait_for(&place, pid, json!(["host_file"]));
    std::fs::remove_file(file(&place)).unwrap();
    let on = wait_for(&place, pid, json!([]));
    // It reads the file twice a second; the rest is this machine's other work.
    assert!(off.min(on) < Duration::from_secs(1), "{off:?} {on:?}");
    let left = process.ask("q");
    let mib: u64 = left.split_once(' ').unwrap().1.parse().unwrap();
    let report = process.end();
    assert_eq!(report["devices"][0]["live_bytes"], mib * MIB);
    assert_eq!(report["recording_off"].as_array().unwrap().len(), 2, "{report:#}");
    assert_eq!(report["recording_off"][0]["by"], "host_file");
}

#[test]
fn a_process_that_starts_while_the_file_is_there_records_from_its_removal_on() {
    let place = SharedMemory::new();
    std::fs::write(file(&place), "").unwrap();
    let mut never = start(place.setup());
    assert_eq!(never.result("a 100"), 0);
    let mut process = start(place.setup());
    assert_eq!(process.result("a 100"), 0);
    assert_eq!(place.shown(process.pid())["recording_off_by"], json!(["host_file"]));
    assert_eq!(place.shown(process.pid())["devices"][0]["live_bytes"], 100 * MIB);
    never.finish();
    assert!(never.traces().is_empty(), "it recorded nothing");
    std::fs::remove_file(file(&place)).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    process.ask("i");
    process.ask("i");
    assert_eq!(process.traces().len(), 1, "what is live is recorded at once");
    assert_eq!(process.result("a 30"), 0);
    let report = process.end();
    assert_eq!(report["devices"][0]["live_bytes"], 130 * MIB, "{report:#}");
    assert_eq!(report["live_is_known"], true, "{report:#}");
    assert!(report["recording_off"][0]["until_s"].is_f64(), "{report:#}");
}

#[test]
fn a_file_that_could_be_anothers_and_what_is_no_file_do_not_count() {
    let place = SharedMemory::new();
    let real = place.0.join("real");
    std::fs::write(&real, "").unwrap();
    let cases = ["link", "directory", "owner"];
    let cases = &cases[..if testkit::user() == 0 { 3 } else { 2 }];
    for case in cases {
        let path = file(&place);
        let why = match *case {
            "link" => symlink(&real, &path).map(|()| "it is not a regular file").unwrap(),
            "directory" => std::fs::create_dir(&path).map(|()| "it is not a regular file").unwrap(),
            _ => {
                std::fs::write(&path, "").unwrap();
                chown(&path, Some(4711), None).map(|()| "it belongs to user 4711").unwrap()
            }
        };
        let mut process = start(place.setup());
        assert_eq!(process.result("a 100"), 0);
        assert_eq!(place.shown(process.pid())["recording_off_by"], json!([]), "{case}");
        let (_, out, _) = place.command(&[], &["doctor", "--json"]);
        assert!(out.contains(why), "{case}: {out}");
        let line = format!("{}: {why}", path.display());
        let lines = process.stderr();
        assert_eq!(lines.matches(&line).count(), 1, "{case}: {lines}");
        let report = process.end();
        assert_eq!(report["devices"][0]["live_bytes"], 100 * MIB, "{case}");
        assert!(report.get("recording_off").is_none(), "{case}");
        match *case {
            "directory" => std::fs::remove_dir(&path).unwrap(),
            _ => std::fs::remove_file(&path).unwrap(),
        }
    }
}

#[test]
fn what_cannot_be_switched_is_refused_with_the_reason() {
    let place = SharedMemory::new();
    let mut silent = start(place.setup().env("VRAMTRACE_OUT", "off"));
    assert_eq!(silent.result("a 1"), 0);
    let mut bare = start(Setup::simulated());
    assert_eq!(bare.result("a 1"), 0);
    for (pid, says) in [
        (silent.pid(), "it records nothing: VRAMTRACE_OUT=off, or its recording has ended"),
        (bare.pid(), "it runs without the recorder"),
        (u32::MAX >> 1, "there is no such process"),
    ] {
        place.refuses(&format!("record off --pid {pid}"), says);
    }
    place.refuses("record pause --pid 1", "possible values: on, off");
}
