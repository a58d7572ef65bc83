//! Runs under PyTorch's backend cudaMallocAsync: each tensor is an allocation of the driver's pool. Its owner is the line
//! that asked for the tensor.

use testkit::trace_builder::{SECOND, TraceBuilder};
use testkit::{MIB, Scratch, unpacked};
use vramtrace_format::{Alloc, Definition, Event, Kind, NativeName, PoolId, Space, TraceReader};

const STEPS: u64 = 400;

/// Steps of a training: 24 MiB for the time of a step, and 2 MiB that one line keeps of each.
fn training() -> TraceBuilder {
    let mut t = TraceBuilder::new();
    let (name, value) = ("PYTORCH_CUDA_ALLOC_CONF".into(), "backend:cudaMallocAsync".into());
    t.define(Definition::Setting { name, value });
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
        let used = (26 + 2 * step) * MIB;
        let reserved = used.next_multiple_of(32 * MIB);
        t.event(at + 2000, Event::PoolState { pool: PoolId(1), reserved, used });
        t.free(at + SECOND / 50, Kind::Pool.space(), 1 << 40);
    }
    t
}

/// A recorded run of PyTorch, as if it had been under cudaMallocAsync: each block is an allocation of the driver's pool.
fn under_async(packed: &str) -> TraceBuilder {
    const ASYNC: u16 = 0x7f00;
    let bytes = unpacked(packed);
    let reader = TraceReader::new(&bytes).unwrap();
    let mut t = TraceBuilder::new();
    t.define(Definition::Api { id: ASYNC, name: "cuMemAllocAsync".into() });
    for definition in reader.definitions() {
        t.define(match definition {
            Definition::Site { id, kind: Some(Kind::Block), device, context, stream, .. } => {
                let (kind, pool) = (Some(Kind::Pool), PoolId(1));
                Definition::Site { id, api: ASYNC, kind, device, context, pool, stream }
            }
            other => other,
        });
    }
    for stamped in reader.events() {
        let event = match stamped.event {
            Event::Alloc(alloc) if alloc.space == Space::Block => {
                Event::Alloc(Alloc { space: Space::Device, ..alloc })
            }
            Event::Free { key, space: Space::Block, site } => {
                Event::Free { key, space: Space::Device, site }
            }
            mark @ Event::Mark { .. } => mark,
            _ => continue,
        };
        t.event_of(stamped.thread, stamped.time_ns, event);
    }
    t
}

/// The same steps and roles as those of the run with blocks.
#[test]
fn steps_and_roles_follow_from_the_driver_s_allocations() {
    for name in ["roles/gpt2", "steps/accumulation", "steps/gan", "steps/evaluation"] {
        let packed = format!("tests/data/{name}.vtrace.gz");
        let (native, pool) = (Scratch::recorded(&packed), Scratch::with(&under_async(&packed)));
        let steps = |of: &Scratch| {
            let found = of.json("report --by step t.vtrace")["processes"][0]["steps"].clone();
            let each = found["steps"].as_array().unwrap().iter().map(|step| {
                ["state", "backward_passes", "updates"].map(|key| step[key].to_string())
            });
            (found["count"].to_string(), each.collect::<Vec<_>>())
        };
        let expected = steps(&native);
        assert!(expected.1.len() > 1, "{name}: {expected:?}");
        assert_eq!(steps(&pool), expected, "{name}");
        // The rest is what cuBLAS, the cache and the driver have beside the tensors.
        const OF_TENSORS: [&str; 6] =
            ["activations", "gradients", "input", "optimizer state", "temporary", "weights"];
        let roles = |of: &Scratch| {
            let answer = of.json("holders --by role --at step:2 t.vtrace");
            let all = answer["holders"].as_array().unwrap().iter();
            let all = all.filter(|of| OF_TENSORS.contains(&of["role"].as_str().unwrap()));
            let mut all: Vec<_> =
                all.map(|of| (of["role"].to_string(), of["count"].clone())).collect();
            all.sort_by(|one, other| one.0.cmp(&other.0));
            assert!(all.len() > 2, "{name}: {answer}");
            all
        };
        assert_eq!(roles(&pool), roles(&native), "{name}");
    }
}

#[test]
fn a_tensor_belongs_to_the_line_that_asked_for_it_and_leaks_there() {
    let scratch = Scratch::with(&training());
    let holders = scratch.json("holders t.vtrace");
    let holder = |n: usize| {
        let one = &holders["holders"][n];
        let lead = &one["frames"][one["lead"].as_u64().unwrap() as usize];
        (one["library"].as_str().unwrap(), lead["function"].as_str().unwrap())
    };
    assert_eq!([holder(0), holder(1)], [("train.py", "log_loss"), ("train.py", "forward")]);
    let leaks = scratch.text("leaks t.vtrace");
    assert!(leaks.contains("train.py:20") && leaks.contains("GROWING"), "{leaks}");
    assert!(!leaks.contains("by PyTorch in its pool"), "{leaks}");
}

#[test]
fn what_if_needs_pytorchs_own_cache_and_says_so() {
    let scratch = Scratch::with(&training());
    for command in ["whatif t.vtrace", "fits --recorded batch=1,2 --batch 4 t.vtrace t.vtrace"] {
        scratch.fails(2, command, "record it with the default backend");
    }
}
