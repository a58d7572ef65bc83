//! Tests of the page: sections, columns, and the figures that they add up to.

use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use vramtrace_format::{Kind, Space};

use super::*;
use crate::analysis::roles::RoleFinder;
use crate::analysis::{Moment, read_all};
use crate::symbols::Symbols;
use crate::testing::{MS, TraceBuilder, cached};
use crate::trace::open;

fn page(builder: &TraceBuilder) -> String {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("a.vtrace");
    builder.write(&path);
    let traces = vec![open(&path).unwrap()];
    let processes = read_all(&traces, Moment::End, COLLECT, &|_, _| {});
    let names = vec!["/home/me/a.vtrace".to_string()];
    let mut run = PageRun { label: "a".into(), names, processes, traces };
    let mut out = Vec::new();
    write(&mut run, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn section(page: &str, id: &str) -> Vec<u8> {
    let begin = format!("<script type=\"application/vnd.vramtrace\" id=\"{id}\">");
    let (_, rest) = page.split_once(&begin).expect("the section");
    let bytes = STANDARD.decode(rest.split_once("</script>").unwrap().0).unwrap();
    let mut text = Vec::new();
    flate2::read::ZlibDecoder::new(&bytes[..]).read_to_end(&mut text).unwrap();
    text
}

fn facts(page: &str) -> Value {
    serde_json::from_slice(&section(page, "facts")).unwrap()
}

#[test]
fn the_page_is_closed_to_networks_and_holds_facts_and_columns() {
    let page = page(&cached());
    assert!(page.contains("default-src 'none'") && !page.contains("'unsafe"), "its policy");
    for address in ["src=\"http", "href=\"http", "url(http", "@import"] {
        assert!(!page.contains(address), "{address}");
    }
    let facts = facts(&page);
    let process = &facts["processes"][0];
    assert_eq!(facts["schema"], "vramtrace.page/4");
    // 4 rounds of 4 blocks, and the block for which the cache released a segment.
    assert_eq!(process["blocks"], 17);
    assert_eq!(process["memory"], 7);
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
    let stream = || section(&page(&cached()), "stream-0");
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
    let page = page(&builder);
    assert!(!page.contains("onerror"), "it stands in the page");
    assert!(facts(&page).to_string().contains("onerror"), "and in the data");
}

/// Small allocations are in the sums, and not listed one by one.
#[test]
fn small_blocks_are_lumped_where_there_are_too_many() {
    use super::recorder::Recorder;
    use crate::replay::Until;

    let mut builder = TraceBuilder::new();
    for n in 0..1000u64 {
        builder.alloc(n * MS, Kind::Device, (1 << 40) + n * (1 << 30), 4096);
        builder.alloc(n * MS, Kind::Device, (1 << 50) + n * (1 << 30), 4 << 20);
        if n % 2 == 0 {
            builder.free(n * MS, Space::Device, (1 << 40) + n * (1 << 30));
        }
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    builder.write(file.path());
    let trace = open(file.path()).unwrap();
    let definitions = trace.definitions().0;
    let symbols = Symbols::of_all(&definitions, trace.header());
    let roles = RoleFinder::new(&trace, &definitions, &symbols);
    let read = |below| {
        let mut recorder = Recorder::new(&definitions, &roles, below, Vec::new(), Vec::new());
        trace.replay_until(&definitions, Until::End, &mut recorder, &mut |_, _| {});
        recorder.finish().unwrap()
    };
    let (all, whole) = read(0);
    let (large, short) = read(1 << 20);
    assert_eq!([all.memory, all.lumped], [2000, 0]);
    assert_eq!([large.memory, large.lumped], [1000, 1000]);
    assert!(short.len() < whole.len(), "{} of {}", short.len(), whole.len());
}
