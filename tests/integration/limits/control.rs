//! Looking at running processes, and changing their caps.

use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};
use testkit::{InteractiveProgram, SharedMemory, eventually, has};

const MIB: u64 = 1 << 20;

#[track_caller]
fn cap(place: &SharedMemory, pid: u32, limit: &str) -> String {
    let (status, out, err) = place.command(&[], &["cap", "--pid", &pid.to_string(), limit]);
    assert_eq!((status, err.as_str()), (0, ""));
    out
}

#[test]
fn ps_shows_what_each_process_holds_and_no_dead_ones() {
    let place = SharedMemory::new();
    let mut capped = InteractiveProgram::start(place.setup().cap("2GiB"));
    let mut free = InteractiveProgram::start(place.setup());
    let results = [capped.results("a 500, a 4000"), free.results("a 100, f")];
    assert_eq!(results, [[0, 2], [0, 0]]);
    let one = place.shown(capped.pid());
    let device = &one["devices"][0];
    assert!(one["command"].as_str().unwrap().contains("interactive"), "{one}");
    assert!(one["trace"].as_str().unwrap().ends_with(".vtrace"));
    has(device, json!({ "live_bytes": 500 * MIB, "peak_bytes": 500 * MIB }));
    has(device, json!({ "cap_bytes": 2048 * MIB, "refused_by_cap": 1 }));
    assert!(device["counted_bytes"].as_u64().unwrap() > 1000 * MIB, "with the context");
    let other = place.shown(free.pid());
    has(
        &other["devices"][0],
        json!({ "live_bytes": 0, "peak_bytes": 100 * MIB, "cap_bytes": null }),
    );
    let text = place.says(&[], "ps");
    assert!(text.contains(&capped.pid().to_string()) && text.contains("cuda:0"), "{text}");
    let pid = capped.pid();
    capped.kill();
    assert!(place.shown(pid).is_null(), "its page is stale");
    let pid = free.pid();
    free.end();
    assert!(place.shown(pid).is_null(), "it ended");
}

#[test]
fn a_cap_comes_moves_and_goes_while_the_process_runs() {
    let place = SharedMemory::new();
    let mut process = InteractiveProgram::start(place.setup());
    let pid = process.pid();
    assert_eq!((process.result("a 1000"), process.result("p 100")), (0, 0));
    assert_eq!(process.ask("i").split(' ').nth(1), Some("24576"));
    // The process makes no call: `cap` says so, and the limit holds from the next one on.
    let printed = cap(&place, pid, "2GiB");
    assert!(printed.contains("2.00 GiB of 24.00 GiB"), "{printed}");
    assert!(printed.contains("next CUDA call"), "{printed}");
    assert_eq!(process.result("a 800"), 2);
    assert_eq!(process.ask("i").split(' ').nth(1), Some("2048"));
    assert_eq!(process.result("a 300"), 0);
    // Below what is live: it says what must go, and nothing is given before.
    let printed = cap(&place, pid, "1GiB");
    assert!(printed.contains("new requests are refused until"), "{printed}");
    assert_eq!(process.results("a 1, p 64, m 1"), [2, 2, 2]);
    let shown = place.shown(pid)["devices"][0].clone();
    let counted = shown["counted_bytes"].as_u64().unwrap();
    assert!(counted > 1800 * MIB, "{shown}");
    assert_eq!(shown["must_go_bytes"], counted - 1024 * MIB, "{shown}");
    let text = place.says(&[], "ps");
    assert!(text.contains("1.00 GiB, ") && text.contains("MiB must go"), "{text}");
    assert_eq!(process.result("p 1"), 0, "what its pool holds already is no new memory");
    // At the first request 1000 and the context are still more.
    assert_eq!(process.results("f, f, f, a 1, f, a 100"), [0, 0, 0, 2, 0, 0]);
    cap(&place, pid, "50%");
    assert_eq!(process.results("a 11000, a 1000"), [0, 2]);
    cap(&place, pid, "none");
    assert_eq!(process.result("a 10000"), 0);
    // The limits that were ordered are in the trace.
    let device = process.end()["devices"][0].clone();
    has(&device, json!({ "cap_bytes": null, "refused_by_driver": 0, "refused_by_cap": 6 }));
    let refusals = device["refusals"].as_array().unwrap().iter();
    let caps: Vec<u64> = refusals.map(|one| one["limit_bytes"].as_u64().unwrap() / MIB).collect();
    assert_eq!(caps, [2048, 1024, 1024, 1024, 1024, 12288]);
}

#[test]
fn a_busy_process_sees_a_change_at_once() {
    let place = SharedMemory::new();
    let mut process = InteractiveProgram::start(place.setup());
    process.order("h");
    assert_eq!(process.answer(), "on");
    let (pid, mut slowest, mut waits) = (process.pid(), Duration::ZERO, 0);
    for limit in ["4GiB", "600MiB", "none", "3GiB"] {
        let asked = Instant::now();
        waits += usize::from(cap(&place, pid, limit).contains("next CUDA call"));
        slowest = slowest.max(asked.elapsed());
    }
    assert!(waits < 4, "it calls all the time");
    // When the program gets the processor is not ours to say: scripts/bench.sh measures it.
    assert!(slowest < Duration::from_secs(5), "{slowest:?}");
    let refused = || place.shown(pid)["devices"][0]["refused_by_cap"].as_u64().unwrap();
    cap(&place, pid, "600MiB");
    eventually(refused, |refused| *refused > 0);
}

/// ns of CLOCK_MONOTONIC.
fn now() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a struct of our own.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

#[test]
fn every_request_after_the_command_obeys_it() {
    let place = SharedMemory::new();
    let mut neighbours: Vec<InteractiveProgram> =
        (0..3).map(|_| InteractiveProgram::start(place.setup())).collect();
    neighbours.iter_mut().for_each(|neighbour| neighbour.order("h"));
    let mut process = InteractiveProgram::start(place.setup());
    process.order("t");
    assert!(process.answer().starts_with("0 "));
    let (pid, mut longest) = (process.pid(), 0);
    for turn in 0..20 {
        for (limit, result) in [("100MiB", 2), ("none", 0)] {
            cap(&place, pid, limit);
            let returned = now();
            let line = process.answer();
            let words: Vec<i64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
            let [answer, first, last_other] = words[..] else { panic!("{line}") };
            assert_eq!(answer, result, "turn {turn}, {limit}");
            assert!(last_other <= returned, "turn {turn}: {} ns late", last_other - returned);
            longest = longest.max(first - returned);
        }
    }
    // When the program gets the processor is not ours to say: scripts/bench.sh measures it.
    assert!(longest < 5_000_000_000, "{longest} ns to the first call under a new limit");
}

#[test]
fn a_first_cap_counts_the_context_of_a_process_that_records_nothing() {
    let place = SharedMemory::new();
    let mut process = InteractiveProgram::start(place.setup().env("VRAMTRACE_OUT", "off"));
    assert_eq!(process.result("a 100"), 0);
    cap(&place, process.pid(), "650MiB");
    assert_eq!((process.result("a 100"), process.result("a 30")), (2, 0));
    let device = place.shown(process.pid())["devices"][0].clone();
    assert_eq!(device["counted_bytes"], (520 + 130) * MIB, "{device}");
}

#[test]
fn a_change_that_is_not_possible_is_refused_with_its_reason() {
    let place = SharedMemory::new();
    let mut process = InteractiveProgram::start(place.setup());
    assert_eq!(process.result("a 1"), 0);
    let pid = process.pid();
    for (args, says) in [
        (format!("--pid {pid} 6"), "unit"),
        (format!("--pid {pid} 0=6GiB"), "80% or 6GiB"),
        (format!("--pid {pid} --device x 6GiB"), "ordinal"),
        (format!("--pid {pid} --device 5 50%"), "--device 5: process"),
        (format!("--pid {pid} --device 7 1GiB"), "uses no such device; it uses 0 (GPU-"),
        (format!("--pid {pid} --device 7 none"), "uses no such device; it uses 0 (GPU-"),
        (format!("--pid {pid} --device 99 6GiB"), "uses no such device; it uses 0 (GPU-"),
        ("--pid 4194304 6GiB".into(), "no such process"),
        (format!("--pid {} 6GiB", std::process::id()), "without the recorder"),
        ("--group nobody 6GiB".into(), "no such group"),
        ("--group a/b 6GiB".into(), "letters"),
    ] {
        place.refuses(&format!("cap {args}"), says);
    }
    // A directory that others can write into could hold anybody's pages.
    let pages = place.0.join("vramtrace");
    std::fs::set_permissions(&pages, PermissionsExt::from_mode(0o777)).unwrap();
    let order = format!("cap --pid {pid} 6GiB");
    place.refuses(&order, "open to others (mode 777)");
    let (status, _, err) = place.command(&[], &["ps"]);
    assert!(status == 0 && err.contains("open to others"), "{err}");
    std::fs::set_permissions(&pages, PermissionsExt::from_mode(0o700)).unwrap();
    let moved = place.0.join("moved");
    std::fs::rename(&pages, &moved).unwrap();
    std::os::unix::fs::symlink(&moved, &pages).unwrap();
    place.refuses(&order, "is a link");
    assert_eq!(process.result("a 8000"), 0, "nothing of all that changed a limit");
    let process = process.end();
    assert_eq!(process["devices"].as_array().unwrap().len(), 1, "nor gave it a device");
}
