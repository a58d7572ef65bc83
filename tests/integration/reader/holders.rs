//! `vramtrace holders`, and what `report` says of holders.

use std::process::Output;

use serde_json::{Value, json};
use testkit::trace_builder::{GPT2, SECOND, TORCH, TraceBuilder, cached, training};
use testkit::{Scratch, vramtrace};
use vramtrace_format::physical::MIB;
use vramtrace_format::{ContextId, Definition, DeviceId, Event, Kind, Space, StackId};

fn run(scratch: &Scratch, args: &[&str]) -> Output {
    vramtrace().args(args).current_dir(&scratch.0).env("NO_COLOR", "1").output().unwrap()
}

#[track_caller]
fn text(scratch: &Scratch, args: &[&str]) -> String {
    let output = run(scratch, args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn written(builder: &TraceBuilder) -> Scratch {
    let scratch = Scratch::new();
    builder.write(&scratch.0.join("t.vtrace"));
    scratch
}

/// Lines with runs of spaces as one.
fn lines(text: &str) -> Vec<String> {
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[track_caller]
fn has(text: &str, wanted: &[&str]) {
    let found = lines(text);
    let mut rest = found.iter();
    for line in wanted {
        assert!(rest.any(|found| found == line), "{line:?} is not there (in this order):\n{text}");
    }
}

#[test]
fn two_lines_tell_who_and_from_where() {
    let scratch = written(&training());
    let shown = text(&scratch, &["holders", "t.vtrace"]);
    has(
        &shown,
        &[
            "GPU 0, at the peak (4.000 s): 260.00 MiB in 5 allocations",
            "bytes share count library",
            "160.00 MiB 61.5 % 2 PyTorch modeling_gpt2.py:212 GPT2Attention._attn",
            "called from train.py:41 train",
            "64.00 MiB 24.6 % 1 NCCL train.py:41 train",
            "32.00 MiB 12.3 % 1 cuBLAS modeling_gpt2.py:212 GPT2Attention._attn",
            "called from train.py:41 train",
            "4.00 MiB 1.5 % 1 PyTorch libc10_cuda.so+0x10",
        ],
    );
    assert!(shown.contains("/opt/libcublas.so.12: is not there any more"), "{shown}");
    let end = text(&scratch, &["holders", "t.vtrace", "--at", "end", "--top", "1"]);
    has(
        &end,
        &[
            "GPU 0, at the end (7.000 s): 162.00 MiB in 5 allocations",
            "64.00 MiB 39.5 % 1 NCCL train.py:41 train",
            "and 3 more, 98.00 MiB together",
        ],
    );
    let then = text(&scratch, &["holders", "t.vtrace", "--at", "2.5"]);
    has(&then, &["GPU 0, at that time (2.000 s): 160.00 MiB in 2 allocations"]);
}

#[test]
fn the_option_full_shows_every_frame_in_order() {
    let scratch = written(&training());
    let shown = text(&scratch, &["holders", "t.vtrace", "--full", "--by", "stack"]);
    has(
        &shown,
        &[
            &format!("100.00 MiB 38.5 % 1 PyTorch {GPT2}:212 GPT2Attention._attn"),
            "called from /home/me/train.py:41 train",
            "libcuda.so.1+0x10",
            "libc10_cuda.so+0x10",
            &format!("{TORCH}:1501 Module._call_impl"),
            &format!("{GPT2}:212 GPT2Attention._attn"),
            "/home/me/train.py:41 train",
            "/home/me/train.py:77 <module>",
        ],
    );
    let frames = shown.lines().filter(|line| !line.contains('!'));
    let hidden = frames.clone().all(|line| !line.contains("libpython"));
    assert!(hidden, "the interpreter's own frames are left out:\n{shown}");
}

#[test]
fn holders_are_grouped_by_function_library_and_stack() {
    let scratch = written(&training());
    let holders = |by: &str| -> Vec<(u64, u64, u64)> {
        let out = text(&scratch, &["holders", "t.vtrace", "--json", "--by", by]);
        let all: Value = serde_json::from_str(&out).unwrap();
        let number = |holder: &Value, key: &str| holder[key].as_u64().unwrap();
        let of = |h: &Value| (number(h, "bytes") / MIB, number(h, "count"), number(h, "stacks"));
        all["holders"].as_array().unwrap().iter().map(of).collect()
    };
    assert_eq!(holders("line"), [(160, 2, 2), (64, 1, 1), (32, 1, 1), (4, 1, 1)]);
    assert_eq!(holders("function"), [(160, 2, 2), (64, 1, 1), (32, 1, 1), (4, 1, 1)]);
    assert_eq!(holders("library"), [(164, 3, 3), (64, 1, 1), (32, 1, 1)]);
    assert_eq!(holders("stack"), [(100, 1, 1), (64, 1, 1), (60, 1, 1), (32, 1, 1), (4, 1, 1)]);
}

#[test]
fn who_calls_the_programs_own_function_for_memory_is_distinguished() {
    let mut t = TraceBuilder::new();
    for (id, name) in [(1, "take"), (2, "weights"), (3, "cache"), (4, "main")] {
        t.code(id, name, "/home/me/serve.py", 10 * id as i32);
    }
    t.stack(1, &[], &[1, 2, 4], &[]);
    t.stack(2, &[], &[1, 3, 4], &[]);
    // Through itself again: that is no other caller.
    t.stack(3, &[], &[1, 1, 3, 4], &[]);
    for (key, stack) in [(1, 1), (2, 2), (3, 3)] {
        t.alloc_by(SECOND * key, Kind::Device, key << 40, 8 * key * MIB, stack);
    }
    let scratch = written(&t);
    for by in ["line", "function"] {
        let shown = text(&scratch, &["holders", "t.vtrace", "--by", by]);
        has(
            &shown,
            &[
                "40.00 MiB 83.3 % 2 train.py serve.py:10 take",
                "called from serve.py:30 cache",
                "8.00 MiB 16.7 % 1 train.py serve.py:10 take",
                "called from serve.py:20 weights",
            ],
        );
    }
}

#[test]
fn memory_besides_the_allocations_is_listed() {
    let mut t = TraceBuilder::new();
    t.stack(1, &[], &[], &[]);
    t.alloc_by(SECOND, Kind::Pool, 1 << 40, 8 * MIB, 1);
    let pool = vramtrace_format::PoolId(1);
    t.event(2 * SECOND, Event::PoolState { pool, reserved: 32 * MIB, used: 8 * MIB });
    t.event(3 * SECOND, Event::Ended);
    let scratch = written(&t);
    for (command, title) in
        [("holders", "32.00 MiB in 1 allocation"), ("report --full", "held at the peak")]
    {
        let words: Vec<&str> = command.split(' ').chain(["t.vtrace"]).collect();
        let shown = text(&scratch, &words);
        assert!(shown.contains(title), "{shown}");
        has(&shown, &["and 24.00 MiB more: rounding to whole pages, reserves of pools"]);
    }
    let scratch = written(&training());
    let shown = text(&scratch, &["holders", "t.vtrace"]);
    assert!(!shown.contains("around them"), "{shown}");
}

#[test]
fn json_has_its_schema() {
    let scratch = written(&training());
    let out = text(&scratch, &["holders", "t.vtrace", "--json", "--at", "peak"]);
    let all: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(all["schema"], "vramtrace.holders/1");
    assert_eq!(all["at"], json!({ "label": "peak", "seconds": 4.0 }));
    let first = &all["holders"][0];
    assert_eq!(first["bytes"], 160 * MIB);
    assert_eq!(first["device"], 0);
    assert_eq!(first["library"], "PyTorch");
    assert_eq!(
        first["frames"][0],
        json!({
            "language": "native",
            "function": "libcuda.so.1+0x10",
            "file": "",
            "line": null,
            "library": "/usr/lib/libcuda.so.1",
        })
    );
    assert_eq!(
        first["frames"][2],
        json!({
            "language": "python",
            "function": "Module._call_impl",
            "file": TORCH,
            "line": 1501,
            "library": null,
        })
    );
    assert_eq!((&first["lead"], &first["caller"]), (&json!(3), &json!(4)));
    let bytes: Vec<u64> =
        all["holders"].as_array().unwrap().iter().map(|h| h["bytes"].as_u64().unwrap()).collect();
    assert!(bytes.is_sorted_by(|a, b| a >= b), "{bytes:?}");
    assert_eq!(bytes.iter().sum::<u64>(), 260 * MIB, "without imports and host memory");
    let then = text(&scratch, &["holders", "t.vtrace", "--json", "--at", "1.5"]);
    let then: Value = serde_json::from_str(&then).unwrap();
    assert_eq!(then["at"], json!({ "label": "time", "seconds": 1.5 }));
}

#[test]
fn each_device_has_its_own_peak() {
    let mut t = TraceBuilder::new();
    t.code(1, "early", "/home/me/a.py", 1);
    t.code(2, "late", "/home/me/a.py", 2);
    t.stack(1, &[], &[1], &[]);
    t.stack(2, &[], &[2], &[]);
    let mut on = |time: u64, device, key, stack| {
        let alloc = t.allocation(Kind::Device, device, key, 8 * MIB);
        let alloc = vramtrace_format::Alloc { stack: StackId(stack), ..alloc };
        t.event(time * SECOND, Event::Alloc(alloc));
    };
    on(1, 0, 1 << 40, 1);
    on(4, 1, 2 << 40, 2);
    t.free(2 * SECOND, Space::Device, 1 << 40);
    t.event(5 * SECOND, Event::Ended);
    let scratch = written(&t);
    let shown = text(&scratch, &["holders", "t.vtrace"]);
    has(
        &shown,
        &[
            "GPU 0, at the peak (1.000 s): 8.00 MiB in 1 allocation",
            "8.00 MiB 100.0 % 1 train.py a.py:1 early",
            "GPU 1, at the peak (4.000 s): 8.00 MiB in 1 allocation",
            "8.00 MiB 100.0 % 1 train.py a.py:2 late",
        ],
    );
    let end = text(&scratch, &["holders", "t.vtrace", "--at", "end"]);
    assert!(!end.contains("GPU 0,") && end.contains("GPU 1,"), "{end}");
    let json: Value =
        serde_json::from_str(&text(&scratch, &["holders", "t.vtrace", "--json"])).unwrap();
    assert_eq!(json["at"]["seconds"], Value::Null, "there are two moments");
}

#[test]
fn a_trace_without_stacks_says_so() {
    let mut t = TraceBuilder::new();
    t.alloc(SECOND, Kind::Device, 1 << 40, MIB);
    let scratch = written(&t);
    let output = run(&scratch, &["holders", "t.vtrace"]);
    assert_eq!(output.status.code(), Some(2));
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(printed.contains("t.vtrace: this trace has no stacks"), "{printed}");
    assert!(printed.contains("VRAMTRACE_STACKS=none"), "{printed}");
    let bad = run(&scratch, &["holders", "t.vtrace", "--at", "noon"]);
    assert_eq!(bad.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&bad.stderr).contains("`peak`"));
}

#[test]
fn an_allocation_whose_stack_is_not_reported_is_its_own_holder() {
    let mut t = training();
    t.alloc(4 * SECOND + 1000, Kind::Device, 9 << 40, 16 * MIB);
    t.alloc_by(4 * SECOND + 2000, Kind::Device, 10 << 40, 8 * MIB, 99);
    let scratch = written(&t);
    scratch.contradicts();
    let shown = text(&scratch, &["holders", "t.vtrace", "--at", "end"]);
    has(
        &shown,
        &[
            "16.00 MiB 8.6 % 1 ? no stack was taken",
            "8.00 MiB 4.3 % 1 ? its stack is not in the trace",
        ],
    );
}

#[test]
fn report_shows_holders_and_libraries_at_the_peak_and_the_end() {
    let scratch = written(&training());
    let shown = text(&scratch, &["report", "t.vtrace", "--full"]);
    has(
        &shown,
        &[
            "held at the peak share count library",
            "160.00 MiB 61.5 % 2 PyTorch modeling_gpt2.py:212 GPT2Attention._attn",
            "called from train.py:41 train",
            "held at the end share count library",
            "64.00 MiB 39.5 % 1 NCCL train.py:41 train",
            "by library at the peak live allocations",
            "PyTorch 164.00 MiB 66.00 MiB 3",
            "NCCL 64.00 MiB 64.00 MiB 1",
            "cuBLAS 32.00 MiB 32.00 MiB 1",
        ],
    );
    let json = text(&scratch, &["report", "t.vtrace", "--json", "--top", "2"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    let holders = &json["processes"][0]["devices"][0]["holders"];
    assert_eq!(holders["at_peak"].as_array().unwrap().len(), 2);
    assert_eq!(holders["at_peak"][0]["bytes"], 160 * MIB);
    assert_eq!(holders["live"][0]["library"], "NCCL");
    let mut bare = TraceBuilder::new();
    bare.alloc(SECOND, Kind::Device, 1 << 40, MIB);
    let scratch = written(&bare);
    let shown = text(&scratch, &["report", "t.vtrace"]);
    assert!(!shown.contains("held at"), "nothing is new without stacks:\n{shown}");
    let json = text(&scratch, &["report", "t.vtrace", "--json"]);
    assert!(!json.contains("\"at_peak\""), "{json}");
}

#[test]
fn unused_contexts_and_pools_that_hide_their_users_are_reported() {
    let mut t = training();
    t.code(9, "worker", "/home/me/loader.py", 8);
    t.module("/v/site-packages/jaxlib/xla_extension.so", 0x6000_0000);
    t.stack(9, &[0x1000_0010], &[9], &[]);
    t.stack(10, &[0x1000_0010, 0x6000_0010], &[3], &[]);
    t.define(Definition::Context {
        id: ContextId(7),
        device: DeviceId(0),
        handle: 0xc7,
        primary: false,
    });
    let context = ContextId(7);
    t.event(6 * SECOND, Event::ContextCreated { context, device: DeviceId(0), stack: StackId(9) });
    t.alloc_by(6 * SECOND, Kind::Device, 11 << 40, 512 * MIB, 10);
    let scratch = written(&t);
    let shown = text(&scratch, &["report", "t.vtrace", "--full"]);
    has(&shown, &["context 7 never held an allocation: made at 6.000 s by loader.py:8 worker"]);
    assert!(!shown.contains("context 1 never"), "{shown}");
    assert!(shown.contains("XLA_PYTHON_CLIENT_ALLOCATOR=platform"), "{shown}");
}

#[test]
fn blocks_stand_in_place_of_their_segments() {
    let scratch = written(&cached());
    let shown = text(&scratch, &["holders", "t.vtrace"]);
    has(
        &shown,
        &[
            "GPU 0, at the peak (8.000 s): 188.00 MiB in 15 blocks and allocations, of 0.22 GiB in nvidia-smi",
            "60.00 MiB 31.9 % 3 transformers modeling_gpt2.py:212 GPT2Attention._attn",
            "50.00 MiB 26.6 % 4 transformers modeling_gpt2.py:301 Block.mlp",
            "called from train.py:41 train",
            "24.00 MiB 12.8 % 3 PyTorch libtorch_cpu.so+0x10",
            "16.00 MiB 8.5 % 1 cuBLAS modeling_gpt2.py:212 GPT2Attention._attn",
            "8.00 MiB 4.3 % 1 NCCL train.py:41 train",
            "free in PyTorch's cache: 30.00 MiB (16.0 %)",
        ],
    );
    let driver = text(&scratch, &["holders", "t.vtrace", "--level", "driver"]);
    has(
        &driver,
        &[
            "GPU 0, at the peak (8.000 s): 188.00 MiB in 6 allocations, of 0.22 GiB in nvidia-smi",
            "164.00 MiB 87.2 % 4 PyTorch modeling_gpt2.py:212 GPT2Attention._attn",
        ],
    );
    let blocks = text(&scratch, &["holders", "t.vtrace", "--at", "peak-allocated", "--json"]);
    let value: Value = serde_json::from_str(&blocks).unwrap();
    assert_eq!(value["level"], "tensor");
    assert_eq!(value["at"], json!({"label": "peak-allocated", "seconds": 8.0}));
    let bytes = |value: &Value| -> u64 {
        let holders = value["holders"].as_array().unwrap().iter();
        holders.map(|holder| holder["bytes"].as_u64().unwrap()).sum()
    };
    assert_eq!(bytes(&value), 188 * MIB);
    let holders = value["holders"].as_array().unwrap().iter();
    let named: Vec<&Value> = holders.filter(|holder| holder["name"].is_string()).collect();
    assert_eq!(named.len(), 1);
    assert_eq!(named[0]["name"], "PyTorch cache (free)");
    assert_eq!(named[0]["count"], 3, "segments with something free");
    let json = text(&scratch, &["holders", "t.vtrace", "--level", "driver", "--json"]);
    let value: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((value["level"].as_str(), bytes(&value)), (Some("driver"), 188 * MIB));
}

#[test]
fn by_library_the_free_cache_is_apart_from_what_pytorch_uses() {
    let scratch = written(&cached());
    let shown = text(&scratch, &["holders", "t.vtrace", "--by", "library"]);
    has(
        &shown,
        &[
            "110.00 MiB 58.5 % 7 transformers modeling_gpt2.py:212 GPT2Attention._attn",
            "16.00 MiB 8.5 % 1 cuBLAS modeling_gpt2.py:212 GPT2Attention._attn",
            "free in PyTorch's cache: 30.00 MiB (16.0 %)",
        ],
    );
}

#[test]
fn a_level_that_the_trace_does_not_have_is_an_error() {
    let scratch = written(&training());
    for args in [
        ["holders", "t.vtrace", "--level", "tensor"],
        ["holders", "t.vtrace", "--at", "peak-allocated"],
    ] {
        let output = run(&scratch, &args);
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{printed}");
        assert!(printed.contains("t.vtrace") && printed.contains("VRAMTRACE_TENSORS"), "{printed}");
    }
    let driver = text(&scratch, &["holders", "t.vtrace", "--level", "driver"]);
    assert_eq!(driver, text(&scratch, &["holders", "t.vtrace"]));
}
