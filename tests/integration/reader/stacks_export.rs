//! Stacks in the formats of profilers, and in timelines.

use std::io::Read;
use std::process::Output;

use prost::Message;
use serde_json::Value;
use testkit::trace_builder::{GPT2, SECOND, TraceBuilder, training};
use testkit::{Scratch, vramtrace};
use vramtrace_format::Kind;
use vramtrace_format::physical::MIB;
use vramtrace_reader::export::stacks::pprof::Profile;

fn run(scratch: &Scratch, args: &[&str]) -> Output {
    vramtrace().args(args).current_dir(&scratch.0).output().unwrap()
}

#[track_caller]
fn exported(scratch: &Scratch, args: &[&str]) -> Vec<u8> {
    let output = run(scratch, &[args, &["-o", "-"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[track_caller]
fn refused(scratch: &Scratch, args: &[&str], says: &str) {
    let output = run(scratch, args);
    let printed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{printed}");
    assert!(printed.contains(says), "{printed}");
}

fn written() -> Scratch {
    let scratch = Scratch::new();
    training().write(&scratch.0.join("t.vtrace"));
    scratch
}

#[test]
fn folded_has_a_line_a_stack_outermost_first() {
    let scratch = written();
    let text = exported(&scratch, &["export", "t.vtrace", "--format", "folded"]);
    let text = String::from_utf8(text).unwrap();
    let way = "GPU 0;<module> (train.py:77);train (train.py:41)";
    let attention = format!("{way};GPT2Attention._attn (modeling_gpt2.py:212)");
    let call = format!("{attention};Module._call_impl (module.py:1501)");
    let linear = format!("{attention};Linear.forward (module.py:114)");
    let (cuda, torch) = ("libcuda.so.1+0x10", "libc10_cuda.so+0x10");
    let mut expected = [
        format!("{call};{torch};{cuda} {}", 100 * MIB),
        format!("{linear};libc10_cuda.so+0x20;{torch};{cuda} {}", 60 * MIB),
        format!("{call};{torch};libcublas.so.12+0x10;{cuda} {}", 32 * MIB),
        format!("{way};libnccl.so.2+0x10;{cuda} {}", 64 * MIB),
        format!("GPU 0;{torch};{cuda} {}", 4 * MIB),
    ];
    expected.sort();
    let mut found: Vec<&str> = text.lines().collect();
    found.sort_unstable();
    assert_eq!(found, expected);
    let end = exported(&scratch, &["export", "t.vtrace", "--format", "folded", "--at", "end"]);
    let end = String::from_utf8(end).unwrap();
    assert_eq!(end.lines().count(), 4, "what was freed before the end is not in it:\n{end}");
}

#[test]
fn several_processes_are_distinguished() {
    let scratch = Scratch::new();
    for rank in 0..2 {
        training().rank(rank, 2).write(&scratch.0.join(format!("{rank}.vtrace")));
    }
    let args = ["export", "0.vtrace", "1.vtrace", "--format", "folded"];
    let text = String::from_utf8(exported(&scratch, &args)).unwrap();
    assert_eq!(text.lines().filter(|line| line.starts_with("rank 0: ")).count(), 5, "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("rank 1: ")).count(), 5, "{text}");
}

#[test]
fn pprof_parses_back() {
    let scratch = written();
    let out = exported(&scratch, &["export", "t.vtrace", "--format", "pprof"]);
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(out.as_slice()).read_to_end(&mut bytes).unwrap();
    let profile = Profile::decode(bytes.as_slice()).unwrap();
    let text = |index: i64| profile.string_table[index as usize].as_str();
    assert_eq!(text(0), "");
    let kinds: Vec<(&str, &str)> =
        profile.sample_type.iter().map(|kind| (text(kind.r#type), text(kind.unit))).collect();
    assert_eq!(kinds, [("inuse_objects", "count"), ("inuse_space", "bytes")]);
    assert_eq!(text(profile.default_sample_type), "inuse_space");
    let values: Vec<&[i64]> = profile.sample.iter().map(|sample| &sample.value[..]).collect();
    assert_eq!(values[0], [1, 100 * MIB as i64]);
    assert_eq!(values.iter().map(|value| value[1]).sum::<i64>(), 260 * MIB as i64);
    let ids = |ids: Vec<u64>| assert_eq!(ids, (1..=ids.len() as u64).collect::<Vec<_>>());
    ids(profile.location.iter().map(|location| location.id).collect());
    ids(profile.function.iter().map(|function| function.id).collect());
    ids(profile.mapping.iter().map(|mapping| mapping.id).collect());
    let names: Vec<(&str, &str, i64)> = profile.sample[0]
        .location_id
        .iter()
        .map(|id| {
            let line = &profile.location[*id as usize - 1].line[0];
            let function = &profile.function[line.function_id as usize - 1];
            (text(function.name), text(function.filename), line.line)
        })
        .collect();
    assert_eq!(names[0].0, "libcuda.so.1+0x10", "innermost first");
    assert_eq!(names[3], ("GPT2Attention._attn", GPT2, 212));
    let first = &profile.location[profile.sample[0].location_id[0] as usize - 1];
    let library = profile.mapping[first.mapping_id as usize - 1].filename;
    assert_eq!(text(library), "/usr/lib/libcuda.so.1");
    let labels: Vec<&str> = profile.sample[0].label.iter().map(|label| text(label.key)).collect();
    assert_eq!(labels, ["device", "process"]);
}

#[test]
fn a_flame_graph_stands_alone() {
    let scratch = written();
    let output = run(&scratch, &["flame", "t.vtrace", "-o", "flame.svg"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(printed.contains("flame.svg: 260.00 MiB in 5 stacks, at the peak"), "{printed}");
    let svg = std::fs::read_to_string(scratch.0.join("flame.svg")).unwrap();
    assert!(svg.starts_with("<?xml") && svg.trim_end().ends_with("</svg>"));
    for wanted in [
        "GPU memory held at the peak: 260.00 MiB",
        "GPT2Attention._attn (modeling_gpt2.py:212)",
        "(260 MiB, 100%)",
    ] {
        assert!(svg.contains(wanted), "{wanted}");
    }
    let again = String::from_utf8(exported(&scratch, &["flame", "t.vtrace"])).unwrap();
    assert_eq!(again, svg, "the same trace gives the same picture");
    refused(&scratch, &["flame", "t.vtrace", "-o", "flame.svg"], "--force");
}

#[test]
fn what_cannot_be_written_is_an_error() {
    let scratch = written();
    let mut bare = TraceBuilder::new();
    bare.alloc(SECOND, Kind::Device, 1 << 40, MIB);
    bare.write(&scratch.0.join("bare.vtrace"));
    let folded = ["export", "--format", "folded", "-o", "-"];
    refused(&scratch, &[&folded[..], &["bare.vtrace"]].concat(), "this trace has no stacks");
    refused(&scratch, &["flame", "bare.vtrace", "-o", "x.svg"], "this trace has no stacks");
    refused(&scratch, &[&folded[..], &["t.vtrace", "--from", "1"]].concat(), "give --at");
    refused(&scratch, &[&folded[..], &["t.vtrace", "--at", "0.5"]].concat(), "nothing to write");
    refused(
        &scratch,
        &["export", "t.vtrace", "--format", "csv", "--at", "peak", "-o", "-"],
        "--from, --to",
    );
    assert!(!scratch.0.join("x.svg").exists());
}

#[test]
fn slices_of_a_timeline_say_who_wanted_them() {
    let scratch = written();
    let out = exported(&scratch, &["export", "t.vtrace", "--format", "chrome"]);
    let out: Value = serde_json::from_slice(&out).unwrap();
    let begins: Vec<&Value> =
        out["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "b").collect();
    let args = &begins[0]["args"];
    assert_eq!(args["function"], "GPT2Attention._attn");
    assert_eq!(args["line"], "modeling_gpt2.py:212");
    assert_eq!(args["called_from"], "train.py:41 train");
    assert_eq!(args["library"], "PyTorch");
    assert_eq!(
        begins[3]["args"]["called_from"], "train.py:77 <module>",
        "its own line, and who called it"
    );
    let perfetto = exported(&scratch, &["export", "t.vtrace", "--format", "perfetto"]);
    for text in ["called_from", "modeling_gpt2.py:212", "train.py:41 train"] {
        assert!(perfetto.windows(text.len()).any(|window| window == text.as_bytes()), "{text}");
    }
}
