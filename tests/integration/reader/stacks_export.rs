//! Stacks in the formats of profilers, and in timelines.

use prost::Message;
use testkit::trace_builder::{GPT2, SECOND, TraceBuilder, training};
use testkit::{MIB, Scratch, gunzip};
use vramtrace_format::Kind;
use vramtrace_reader::pprof::Profile;

/// A line a stack, outermost first; processes are apart.
#[test]
fn folded_stacks_and_what_cannot_be_written() {
    let scratch = Scratch::with(&training());
    for rank in 0..2 {
        training().rank(rank, 2).write(&scratch.0.join(format!("{rank}.vtrace")));
    }
    let mut bare = TraceBuilder::new();
    bare.alloc(SECOND, Kind::Device, 1 << 40, MIB);
    bare.write(&scratch.0.join("bare.vtrace"));
    scratch.prints(
        "folded",
        &[
            "export --format folded t.vtrace -o -",
            "export --format folded 0.vtrace 1.vtrace -o -",
            "export --format folded bare.vtrace -o -",
            "export --format folded t.vtrace --from 1 -o -",
            "export --format folded t.vtrace --at 0.5 -o -",
            "export --format csv t.vtrace --at peak -o -",
            "flame bare.vtrace -o x.svg",
        ],
    );
    assert!(!scratch.0.join("x.svg").exists());
}

#[test]
fn pprof_parses_back() {
    let scratch = Scratch::with(&training());
    let out = scratch.bytes("export t.vtrace --format pprof -o -");
    let profile = Profile::decode(&*gunzip(&out)).unwrap();
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
    let scratch = Scratch::with(&training());
    let line = "flame t.vtrace -o flame.svg";
    scratch.fails(0, line, "flame.svg: 260.00 MiB in 5 stacks, at the peak");
    let svg = std::fs::read_to_string(scratch.0.join("flame.svg")).unwrap();
    assert!(svg.starts_with("<?xml") && svg.trim_end().ends_with("</svg>"));
    for wanted in [
        "GPU memory held at the peak: 260.00 MiB",
        "GPT2Attention._attn (modeling_gpt2.py:212)",
        "(260 MiB, 100%)",
    ] {
        assert!(svg.contains(wanted), "{wanted}");
    }
    let again = scratch.text("flame t.vtrace -o -");
    assert_eq!(again, svg, "the same trace gives the same picture");
    scratch.fails(2, line, "--force");
}

#[test]
fn slices_of_a_timeline_say_who_wanted_them() {
    let perfetto = Scratch::with(&training()).bytes("export t.vtrace --format perfetto -o -");
    for text in
        ["GPT2Attention._attn", "modeling_gpt2.py:212", "train.py:41 train", "train.py:77 <module>"]
    {
        assert!(perfetto.windows(text.len()).any(|window| window == text.as_bytes()), "{text}");
    }
}
