//! Verdicts on the memory that the driver holds for itself, of programs with known answers. The table is in
//! docs/gpu-evidence.md.

use serde_json::{Value, json};
use testkit::{Program, Run, Setup, functions};

/// Verdict and memory.
type Answer = Option<(&'static str, &'static str)>;

const GRAPHS: Answer = Some(("growing", "graphs"));

/// Program, requests, what it holds, the answer: verdict and memory.
#[rustfmt::skip]
const PROGRAMS: &[(&str, u32, &str, Answer)] = &[
    ("kept", 50, "a graph a request", GRAPHS),
    ("kept-shapes", 300, "a graph a request, each with another number of nodes", GRAPHS),
    ("list", 60, "a graph a request, in a list that is dropped at the end", GRAPHS),
    ("kept-until-the-end", 60, "a graph a request; then other work for a second, and all are destroyed", GRAPHS),
    ("tokens", 50, "a graph a request, updated and launched 20 times", GRAPHS),
    ("kept-modules", 400, "a module a request", Some(("growing", "modules"))),
    ("kept-contexts", 30, "a context a request", Some(("growing", "context"))),
    ("unseen", 700, "2 MiB a request, by a call that the recorder does not see", Some(("growing", "unattributed"))),
    ("kept-streams", 1100, "four streams a request", Some(("growing", "streams"))),
    ("phase", 60, "the same list, dropped before five times as many requests", None),
    ("captures", 100, "67 graphs captured within a second, launched by chance", None),
    ("captures-launched", 100, "the same, each launched once; then one of them", None),
    ("captures-only", 0, "67 graphs captured in 20 s, and no more", None),
    ("cache-40", 100, "a graph for each of 40 shapes that come by chance", None),
    ("cache-200", 100, "a graph for each of 200 shapes that come by chance", None),
    ("cache-of-nodes", 200, "the same, each with another number of nodes", None),
    ("lru", 100, "the last 16 graphs", None),
    ("temporary", 60, "a graph in each request, destroyed at its end", None),
    ("updated", 60, "one graph, updated in each request", None),
    ("warm-up", 60, "ten graphs at the first requests", None),
    ("compiled", 300, "200 modules over the first part of the run", None),
    ("stream-pool", 60, "a framework's 128 streams", None),
];

fn recorded(setup: Setup, name: &str, requests: u32, clock: u32) -> Run {
    let setup = setup.preload().env("VRAMTRACE_STACKS", "native").env("VRAMTRACE_SIM_GRAPHS", "1");
    let setup = setup.env("VRAMTRACE_TEST_CLOCK", clock.to_string()).arg(name).arg(requests);
    Program::c_with("graph_growth", &["-lpthread"]).run(setup).ok()
}

fn leaks(name: &str, requests: u32, clock: u32) -> Value {
    recorded(Setup::simulated(), name, requests, clock).json("leaks")["leaks"].clone()
}

#[test]
fn verdicts_on_programs_with_known_answers() {
    let documented = include_str!("../../../docs/gpu-evidence.md");
    let mut wrong = String::new();
    for (at, (name, requests, what, answer)) in PROGRAMS.iter().enumerate() {
        // Every other one on a busy machine.
        let found = leaks(name, *requests, at as u32 % 2);
        let all = found.as_array().unwrap();
        let right = match answer {
            None => all.is_empty(),
            Some((verdict, memory)) => {
                let line = match *memory {
                    "streams" => "leaking_stream",
                    "modules" => "leaking_module",
                    "context" => "leaking_context",
                    _ => "leaking_line",
                };
                all.len() == 1
                    && all[0]["verdict"] == *verdict
                    && all[0]["driver_memory"] == *memory
                    && all[0]["confidence"].as_f64().unwrap() >= 0.5
                    && all[0]["evidence"].as_array().unwrap().len() >= 2
                    && (*memory == "unattributed" || functions(&all[0]).contains(&line))
            }
        };
        if !right {
            wrong += &format!("{name}: {all:?}\n");
        }
        let printed =
            answer.map_or("no leak".into(), |(verdict, memory)| format!("{verdict} {memory}"));
        let row = format!("| {name} | {what} | {printed} |");
        assert!(documented.contains(&row), "docs/gpu-evidence.md lacks: {row}");
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// 2,000 nodes take 2,674 B each in the simulated driver; a request takes 52 ms.
#[test]
fn size_and_rate_are_within_ten_percent() {
    let leak = &leaks("kept", 50, 0)[0];
    let each = 2000.0 * 2674.0;
    let near = |value: &Value, wanted: f64| (value.as_f64().unwrap() / wanted - 1.0).abs() < 0.1;
    assert!(near(&leak["each_bytes"], each), "{leak:#}");
    assert!(near(&leak["rate_bytes_per_s"], each / 0.052), "{leak:#}");
    assert_eq!(leak["count"], 50);
}

/// Where NVML does not list the process, what the driver holds for itself is not known, and that is said; with a card of
/// its own it is.
#[test]
fn a_container_with_its_own_pids() {
    let leaks = |exclusive: &str| {
        let setup = Setup::simulated().env("VRAMTRACE_SIM_NVML", "strangers");
        recorded(setup.env("VRAMTRACE_EXCLUSIVE", exclusive), "kept", 50, 0).text("leaks")
    };
    let (shared, own) = (leaks("0"), leaks("1"));
    let parts = ["cannot be told", "VRAMTRACE_EXCLUSIVE=1"];
    assert!(parts.iter().all(|part| shared.contains(part)), "{shared}");
    assert!(!shared.contains("GROWING"), "{shared}");
    assert!(own.contains("GROWING graphs") && !own.contains("cannot be told"), "{own}");
}

/// A cache that fills is told from a leak at any moment of its life.
#[test]
fn a_cold_cache_is_no_leak_at_any_moment() {
    for requests in [45, 55, 70, 150] {
        assert_eq!(leaks("cache-200", requests, 0), json!([]), "{requests}");
    }
}
