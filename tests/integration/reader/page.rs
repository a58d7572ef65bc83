//! `vramtrace report --html` as a command: its file and its options. What the page shows is tested in a
//! browser (`web/tests/`).

use std::io::Read;
use std::os::unix::fs::PermissionsExt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use testkit::Scratch;
use testkit::trace_builder::{MS, TraceBuilder, cached, training};
use vramtrace_format::Kind;

/// The bytes of a section of a page.
pub fn section(page: &str, id: &str) -> Vec<u8> {
    let begin = format!("<script type=\"application/vnd.vramtrace\" id=\"{id}\">");
    let (_, rest) = page.split_once(&begin).expect("the section");
    let bytes = STANDARD.decode(rest.split_once("</script>").unwrap().0).unwrap();
    let mut plain = Vec::new();
    flate2::read::ZlibDecoder::new(&bytes[..]).read_to_end(&mut plain).unwrap();
    plain
}

fn page_of(trace: &TraceBuilder) -> String {
    let scratch = Scratch::with(trace);
    scratch.text("report --html t.vtrace");
    std::fs::read_to_string(scratch.0.join("vramtrace.html")).unwrap()
}

pub fn facts(page: &str) -> Value {
    serde_json::from_slice(&section(page, "facts")).unwrap()
}

fn scratch() -> Scratch {
    let scratch = Scratch::new();
    training().write(&scratch.0.join("a.vtrace"));
    let mut other = cached();
    other.header.uuid[0] ^= 1;
    other.write(&scratch.0.join("b.vtrace"));
    scratch
}

#[test]
fn one_file_that_only_its_owner_reads() {
    let scratch = scratch();
    scratch.text("report --html a.vtrace");
    let file = scratch.0.join("vramtrace.html");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let read = || std::fs::read_to_string(&file).unwrap();
    let streams = |page: &str| page.matches("application/vnd.vramtrace\" id=\"stream-").count();
    let page = read();
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    assert_eq!(streams(&page), 1);
    scratch.fails(2, "report --html a.vtrace", "vramtrace.html");
    assert_eq!(read(), page, "it is not replaced");
    scratch.text("report --html a.vtrace b.vtrace --force");
    assert_eq!(streams(&read()), 2);
}

#[test]
fn options_that_say_nothing_here_are_refused() {
    let scratch = scratch();
    for more in ["-o x.html", "--html --json", "--html --at peak"] {
        scratch.fails(2, &format!("report a.vtrace {more}"), "");
        assert!(!scratch.0.join("vramtrace.html").exists(), "{more}");
    }
}

#[test]
fn the_page_is_closed_to_networks_and_holds_facts_and_columns() {
    let page = page_of(&cached());
    assert!(page.contains("default-src 'none'") && !page.contains("'unsafe"), "its policy");
    for address in ["src=\"http", "href=\"http", "url(http", "@import"] {
        assert!(!page.contains(address), "{address}");
    }
    let facts = facts(&page);
    let process = &facts["processes"][0];
    assert_eq!(facts["schema"], "vramtrace.page/4");
    // 4 rounds of 4 blocks, and the block for which the cache released a segment.
    assert_eq!(process["blocks"], 17);
    // 7 allocations and the context.
    assert_eq!(process["memory"], 8);
    let of_report = &facts["report"]["processes"][0];
    assert_eq!(of_report["verdict"]["kind"], "out_of_memory");
    let failure = &of_report["failures"][0];
    let oom = process["marks"].as_array().unwrap().iter().find(|mark| mark["what"] == "oom");
    let ordinal = &process["failure_ordinals"][0];
    assert_eq!(ordinal, &oom.unwrap()["ordinal"], "the failure is a moment of the page");
    let parts = failure["used"].as_array().unwrap().iter().map(|part| part["bytes"].as_i64());
    assert_eq!(parts.sum::<Option<i64>>(), failure["used_bytes"].as_i64(), "{failure}");
    assert!(failure["used"][0]["what"] == "tensors", "{failure}");
    let marks: Vec<&str> =
        process["marks"].as_array().unwrap().iter().filter_map(|m| m["what"].as_str()).collect();
    assert_eq!(marks, ["refusal", "refusal", "refusal", "oom"]);
    assert_eq!(section(&page, "stream-0")[0], 1, "it begins with ticks");
}

#[test]
fn the_same_trace_gives_the_same_columns() {
    let stream = || section(&page_of(&cached()), "stream-0");
    assert_eq!(stream(), stream());
}

#[test]
fn nothing_of_a_trace_is_markup() {
    let mut builder = TraceBuilder::new();
    let evil = "</script><img src=x onerror=alert(1)>";
    builder.header.host = evil.into();
    builder.code(1, evil, &format!("/home/me/{evil}"), 1);
    builder.stack(1, &[], &[1], &[]);
    builder.alloc_by(MS, Kind::Device, 1 << 40, 4 << 20, 1);
    let page = page_of(&builder);
    assert!(!page.contains("onerror"), "it stands in the page");
    assert!(facts(&page).to_string().contains("onerror"), "and in the data");
}
