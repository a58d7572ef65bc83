//! The phases of a time whose events were erased, by the recorder's history; and what resolution its samples have.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use testkit::erased_trace::erased;
use testkit::{Scratch, vramtrace};

const MIB: u64 = 1 << 20;

fn run(scratch: &Scratch, line: &str) -> String {
    let args = line.split(' ');
    let output =
        vramtrace().args(args).current_dir(&scratch.0).env("NO_COLOR", "1").output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn process(scratch: &Scratch, line: &str) -> Value {
    let all: Value = serde_json::from_str(&run(scratch, line)).unwrap();
    all["processes"][0].clone()
}

fn scratch() -> Scratch {
    let scratch = Scratch::new();
    erased().write(&scratch.0.join("t.vtrace"));
    scratch
}

fn squeezed(text: &str) -> Vec<String> {
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// The facts of a page.
fn facts(page: &str) -> Value {
    let (_, rest) =
        page.split_once(r#"<script type="application/vnd.vramtrace" id="facts">"#).unwrap();
    let bytes = STANDARD.decode(rest.split_once("</script>").unwrap().0).unwrap();
    serde_json::from_reader(flate2::read::ZlibDecoder::new(&bytes[..])).unwrap()
}

#[track_caller]
fn has(text: &str, line: &str) {
    assert!(squeezed(text).iter().any(|found| found == line), "{line}: {text}");
}

#[test]
fn report_tells_the_phases_of_the_highest_peak() {
    let scratch = scratch();
    let device = process(&scratch, "report t.vtrace --json")["devices"][0].clone();
    assert_eq!((&device["peak_bytes"], &device["peak_at_s"]), (&json!(200 * MIB), &json!(12.0)));
    // What was held on after it, in other phases, is not the peak.
    let peak = |path: Value| json!({ "path": path, "peak_bytes": 200 * MIB, "at_s": 12.0 });
    let with = |mut peak: Value, open_s: f64| {
        peak["open_s"] = json!(open_s);
        peak
    };
    let wanted = [with(peak(json!(["epoch", "forward"])), 3.0), with(peak(json!(["loader"])), 2.0)];
    assert_eq!(device["phases_at_peak"], json!(wanted));
    let text = run(&scratch, "report t.vtrace");
    has(&text, "in phase epoch > forward");
    has(&text, "in phase loader");
    assert!(text.contains("one value for each 5.0 s to 8.0 s"), "{text}");
}

#[test]
fn a_moment_of_the_erased_time_has_its_phases() {
    let scratch = scratch();
    let sampled = process(&scratch, "report t.vtrace --at 7 --json")["sampled"].clone();
    assert_eq!((&sampled["from_s"], &sampled["until_s"]), (&json!(5.0), &json!(10.0)));
    let phases = sampled["devices"][0]["phases"].as_array().unwrap().clone();
    let first = json!({
        "path": ["epoch", "forward"], "peak_bytes": 128 * MIB, "at_s": 6.0, "open_s": 2.0
    });
    assert_eq!((phases.len(), &phases[0]), (2, &first));
    let text = run(&scratch, "report t.vtrace --at 7");
    has(&text, "peak in a phase at open");
    has(&text, "128.00 MiB 6.000 s 2.000 s epoch > forward");
    let text = run(&scratch, "report t.vtrace --at 3");
    has(&text, "0 B 0.000 s 1.000 s outside of all phases");
}

#[test]
fn by_phase_sums_up_the_erased_time() {
    let scratch = scratch();
    let before = process(&scratch, "report t.vtrace --by phase --json")["phases_before"].clone();
    let found: Vec<(Value, u64, f64)> = before[0]["phases"]
        .as_array()
        .unwrap()
        .iter()
        .map(|of| {
            let mib = of["peak_bytes"].as_u64().unwrap() / MIB;
            (of["path"].clone(), mib, of["open_s"].as_f64().unwrap())
        })
        .collect();
    let wanted = [
        (json!(["epoch", "forward"]), 200, 6.0),
        (json!(["loader"]), 200, 2.0),
        (json!(["epoch"]), 200, 8.0),
        (json!([]), 160, 2.0),
    ];
    assert_eq!(found, wanted);
    let text = run(&scratch, "report t.vtrace --by phase");
    has(&text, "GPU 0 before 18.000 s, whose events were erased: by the recorder's history");
    has(&text, "200.00 MiB 12.000 s 6.000 s epoch > forward");
    assert!(!text.contains("the program marked none"), "{text}");
}

#[test]
fn documents_and_the_page_say_what_the_samples_resolve() {
    let scratch = scratch();
    let wanted = json!({ "from_s": 0.0, "until_s": 18.0, "finest_s": 5.0, "coarsest_s": 8.0 });
    assert_eq!(process(&scratch, "report t.vtrace --json")["sampled_before"], wanted);
    assert_eq!(process(&scratch, "leaks t.vtrace --json")["sampled"], wanted);
    run(&scratch, "report --html -o page.html t.vtrace");
    let page = std::fs::read_to_string(scratch.0.join("page.html")).unwrap();
    assert_eq!(facts(&page)["runs"][0]["report"]["processes"][0]["sampled_before"], wanted);
}
