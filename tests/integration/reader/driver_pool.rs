//! Runs under PyTorch's backend cudaMallocAsync: each tensor is an allocation of the driver's pool. Its owner is the line
//! that asked for the tensor, and PyTorch's own cache can be predicted from the requests.

use serde_json::Value;
use testkit::trace_builder::{SECOND, TraceBuilder};
use testkit::{Scratch, vramtrace};
use vramtrace_format::{Definition, Kind, NativeName, Space};

const MIB: u64 = 1 << 20;
const STEPS: u64 = 400;

/// Steps of a training: 24 MiB for the time of a step, and 2 MiB that one line keeps of each.
fn training() -> TraceBuilder {
    let mut t = TraceBuilder::new();
    let conf = ("PYTORCH_CUDA_ALLOC_CONF".to_string(), "backend:cudaMallocAsync".to_string());
    t.define(Definition::Setting { name: conf.0, value: conf.1 });
    let torch = "/v/lib/python3.9/site-packages/torch/lib/libc10_cuda.so";
    t.module("/v/lib/libcudart.so.13", 0x1000_0000);
    t.module(torch, 0x2000_0000);
    t.module("/usr/lib/libpython3.9.so.1.0", 0x5000_0000);
    let function =
        "c10::cuda::CUDACachingAllocator::CudaMallocAsync::CudaMallocAsyncAllocator::allocate";
    t.define(Definition::Text { id: 1, text: function.into() });
    let name = NativeName { function: 1, file: 0, line: 0 };
    t.define(Definition::Names { module: 0x2000_0000, address: 0x10, names: vec![name] });
    t.code(1, "forward", "/home/me/train.py", 10);
    t.code(2, "log_loss", "/home/me/train.py", 20);
    t.code(3, "<module>", "/home/me/train.py", 30);
    let native = [0x1000_0010, 0x2000_0010, 0x5000_0010];
    t.stack(1, &native, &[1, 3], &[(0, 2)]);
    t.stack(2, &native, &[2, 3], &[(0, 2)]);
    t.context(SECOND, 0);
    for step in 0..STEPS {
        let at = SECOND + step * SECOND / 20;
        t.alloc_by(at, Kind::Pool, 1 << 40, 24 * MIB - 7, 1);
        t.alloc_by(at + 1000, Kind::Pool, (2 << 40) + step * 4 * MIB, 2 * MIB - 3, 2);
        t.free(at + SECOND / 50, Kind::Pool.space(), 1 << 40);
    }
    t
}

#[track_caller]
fn json(trace: &std::path::Path, args: &[&str]) -> Value {
    let output = vramtrace().args(args).arg("--json").arg(trace).output().unwrap();
    let status = output.status.code();
    assert!(matches!(status, Some(0 | 1)), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_tensor_belongs_to_the_line_that_asked_for_it_and_leaks_there() {
    assert_eq!(Kind::Pool.space(), Space::Device);
    let scratch = Scratch::new();
    let trace = scratch.0.join("run.vtrace");
    training().write(&trace);
    let holders = json(&trace, &["holders"]);
    let holder = |n: usize| {
        let one = &holders["holders"][n];
        let lead = &one["frames"][one["lead"].as_u64().unwrap() as usize];
        (one["library"].as_str().unwrap(), lead["function"].as_str().unwrap())
    };
    assert_eq!([holder(0), holder(1)], [("train.py", "log_loss"), ("train.py", "forward")]);
    let leaks = vramtrace().arg("leaks").arg(&trace).env("NO_COLOR", "1").output().unwrap();
    let leaks = String::from_utf8_lossy(&leaks.stdout).into_owned();
    assert!(leaks.contains("train.py:20") && leaks.contains("GROWING"), "{leaks}");
    assert!(!leaks.contains("by PyTorch in its pool"), "{leaks}");
}

#[test]
fn the_native_allocator_is_predicted_from_the_requests() {
    let scratch = Scratch::new();
    let trace = scratch.0.join("run.vtrace");
    training().write(&trace);
    let answer = json(&trace, &["whatif", "--conf", "default"]);
    let device = &answer["devices"][0];
    assert_eq!(device["in_force"], "backend:cudaMallocAsync");
    assert_eq!(device["recorded_peak_allocated_bytes"], 24 * MIB - 7 + STEPS * (2 * MIB - 3));
    // Ten pieces of 2 MiB in each segment of 20 MiB, and one segment of 24 MiB.
    let setting = &device["settings"][0];
    assert_eq!(setting["peak_reserved_bytes"], (STEPS / 10 * 20 + 24) * MIB, "{answer:#}");
    assert_eq!(setting["driver_allocations"], STEPS / 10 + 1, "{answer:#}");
    // `fits` needs blocks: it says so.
    let fits = vramtrace()
        .args(["fits", "--recorded", "batch=1,2", "--batch", "4"])
        .args([&trace, &trace])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&fits.stderr).into_owned();
    assert!(error.contains("record it with the default backend"), "{error}");
}
