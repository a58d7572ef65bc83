//! Programs that are not PyTorch: roles and holders from their native stacks.

use serde_json::Value;
use testkit::trace_builder::{SECOND, TraceBuilder};
use testkit::{GIB, MIB, Program, Run, Scratch, Setup, flat, sum};
use vramtrace_format::{ContextId, Definition, DeviceId, Event, Kind, Sample, StackId};

/// The program of docs/problems/llama-cpp.md.
fn engine(flags: &[&str]) -> Run {
    let program = Program::compiled("g++", "../../docs/programs/engine.cpp", flags);
    program.run(Setup::simulated().preload().arg("-c").arg(4096)).ok()
}

/// Of each holder: MiB and the function that leads, or its role.
fn holders(scratch: &Scratch, trace: &str, more: &str) -> Vec<(u64, String)> {
    let all = scratch.json(&format!("holders {trace} {more}"));
    let name = |holder: &Value| match holder["role"].as_str() {
        Some(role) => role.to_string(),
        None => {
            let lead = holder["lead"].as_u64().unwrap() as usize;
            holder["frames"][lead]["function"].as_str().unwrap().to_string()
        }
    };
    let all = all["holders"].as_array().unwrap().iter();
    let is_context =
        |of: &Value| of["role"] == "context and modules" || of["driver_memory"] == "context";
    let all = all.filter(|holder| !is_context(holder));
    all.map(|holder| (holder["bytes"].as_u64().unwrap() / MIB, name(holder))).collect()
}

fn named(of: &[(u64, &str)]) -> Vec<(u64, String)> {
    of.iter().map(|(mib, name)| (*mib, name.to_string())).collect()
}

const FUNCTIONS: [(u64, &str); 4] = [
    (2574, "llama_model::load_tensors"),
    (768, "llama_kv_cache::llama_kv_cache"),
    (288, "ggml_backend_sched_reserve"),
    (12, "ggml_cuda_op_mul_mat_cublas"),
];

#[test]
fn memory_of_llama_cpp_has_roles_and_functions_and_its_part_of_the_card() {
    let run = engine(&["-g"]);
    let trace = run.only_trace();
    let trace = trace.to_str().unwrap();
    assert_eq!(holders(&run.scratch, trace, ""), named(&FUNCTIONS));
    let roles = [(2574, "weights"), (768, "KV cache"), (288, "activations"), (12, "workspace")];
    assert_eq!(holders(&run.scratch, trace, "--by role"), named(&roles));
    let report = run.text("report");
    let line =
        "at the peak for: weights 62 %, KV cache 18 %, context and modules 12 %, activations 7 %\n";
    assert!(report.contains(line), "{report}");
    let json = run.only_report();
    let device = &json["devices"][0];
    assert_eq!(device["holders"]["roles_at_peak"][1]["role"], "KV cache", "{device}");
    // What it got of the card.
    let found = &device["engine"];
    assert_eq!(found["engine"], "llama.cpp", "{found}");
    let number = |of: &Value| of.as_u64().unwrap_or_else(|| panic!("{found}"));
    let headline = number(&device["in_use_at_peak"]["headline_bytes"]);
    assert_eq!(sum(&found["parts"], "bytes"), headline, "{found}");
    let parts = found["parts"].as_array().unwrap();
    let part =
        |name: &str| number(&parts.iter().find(|part| part["part"] == name).unwrap()["bytes"]);
    assert_eq!((part("weights"), part("KV cache")), (2574 * MIB, 768 * MIB), "{found}");
    let taken = number(&device["peak_process_bytes"]) + number(&found["others_bytes"]);
    assert_eq!(number(&found["unused_bytes"]), 24 * 1024 * MIB - taken, "{found}");
    let shown = run.text("report --full");
    assert!(shown.contains("what llama.cpp got of the card at the peak"), "{shown}");
}

#[test]
fn without_debug_information_the_symbols_say_the_same() {
    let run = engine(&[]);
    assert_eq!(holders(&run.scratch, run.only_trace().to_str().unwrap(), ""), named(&FUNCTIONS));
}

/// What a command says of a program whose symbols are in another file, or nowhere.
#[test]
fn stripped_programs_and_missing_debug_files_are_told_apart() {
    let built =
        Program::compiled("g++", "../../docs/programs/engine.cpp", &["-g", "-Wl,--build-id"]);
    let scratch = Scratch::new();
    let tool = |name, args| scratch.shell(&format!("{} {args}", testkit::compiler(name)));
    std::fs::copy(&built.0, scratch.0.join("engine")).unwrap();
    tool("objcopy", "--only-keep-debug engine engine.debug");
    tool("strip", "engine");
    let run = |program: &str| {
        let program = Program(scratch.0.join(program));
        let run = program.run(Setup::simulated().preload().arg("-c").arg(4096)).ok();
        run.scratch.text("holders")
    };
    let alone = run("engine");
    assert!(alone.contains("engine: no symbols: stripped; its functions have no names"), "{alone}");
    std::fs::copy(scratch.0.join("engine"), scratch.0.join("linked")).unwrap();
    tool("objcopy", "--add-gnu-debuglink=engine.debug linked");
    let split = run("linked");
    assert!(split.contains("engine.cpp:173 llama_kv_cache::llama_kv_cache"), "{split}");
    assert!(!split.contains("stripped"), "{split}");
    std::fs::remove_file(scratch.0.join("engine.debug")).unwrap();
    let missing = run("linked");
    let missing = flat(&missing);
    let says = "stripped, and its debug file engine.debug is not found; its functions";
    assert!(missing.contains(says), "{missing}");
}

/// The rule of wrappers: the name says it, and several functions call it.
#[test]
fn a_function_that_only_allocates_for_others_is_no_holder() {
    let run = Program::c("wrapped").run(Setup::simulated().preload()).ok();
    let holders = holders(&run.scratch, run.only_trace().to_str().unwrap(), "");
    assert_eq!(holders, named(&[(64, "load_table"), (32, "build_index"), (16, "allocate_queue")]));
    let report = run.scratch.text("report");
    assert!(!report.contains("at the peak for"), "no role is guessed: {report}");
}

/// vLLM in a directory that is no site-packages, under a title, with code that PyTorch's compiler wrote.
#[test]
fn vllm_has_its_library_its_lines_and_its_setting() {
    let mut t = TraceBuilder::new();
    t.header.command = ["VLLM::EngineCore", "", ""].map(String::from).into();
    t.module("/opt/libc10_cuda.so", 0x1000_0000);
    t.code(1, "_allocate_kv_cache_tensors", "/srv/site/vllm/v1/worker/gpu_model_runner.py", 10);
    t.code(2, "Runner.call", "/root/.cache/vllm/h4/ch4oswevcto74pq2a2xk7aq6e2jzuvsl24nhef.py", 9);
    t.code(3, "LlamaModel.forward", "/srv/site/vllm/model_executor/models/llama.py", 395);
    t.code(4, "helper", "/srv/other/tool.py", 7);
    for (n, stack, gib) in [(0, &[1][..], 8), (1, &[2, 3], 2), (2, &[4], 1)] {
        t.stack(n + 1, &[], stack, &[]);
        t.alloc_by(SECOND, Kind::Device, u64::from(n) << 40, gib * GIB, n + 1);
        t.alloc_by(SECOND, Kind::Block, u64::from(n) << 40, gib * GIB, n + 1);
    }
    let shown = Scratch::with(&t).text("report t.vtrace");
    for said in [
        "VLLM::EngineCore\n",
        " 8.00 GiB  72.7 %      1  vllm              gpu_model_runner.py:10 ",
        " 2.00 GiB  18.2 %      1  vllm              llama.py:395 ",
        " 1.00 GiB   9.1 %      1  VLLM::EngineCore  tool.py:7 ",
        "    --gpu-memory-utilization is not known: it took 0.46 x 24.00 GiB = 11.00 GiB, 8.00 GiB of it for the KV cache\n",
    ] {
        assert!(shown.contains(said), "{said}\n{shown}");
    }
    t.header.command = ["vllm", "serve", "--gpu_memory_utilization=0.5"].map(String::from).into();
    let scratch = Scratch::with(&t);
    let text =
        "--gpu-memory-utilization 0.50 x 24.00 GiB = 12.00 GiB, 8.00 GiB of it for the KV cache";
    assert!(scratch.text("t.vtrace").contains(&format!("  setting    {text}\n")));
    let device = &scratch.json("report t.vtrace")["processes"][0]["devices"][0];
    assert_eq!(device["engine_setting_text"], text);
    assert_eq!(device["engine"]["setting"]["share"], 0.5, "{device}");
}

/// It wants its share of the card to be free before it allocates, and leaves by `_exit` with status 1.
#[test]
fn vllm_that_does_not_start_has_the_share_that_was_free() {
    for (command, said) in [
        ("VLLM::EngineCore", ""),
        ("vllm --gpu-memory-utilization 0.5", ", not 0.50 x 24.00 GiB = 12.00 GiB"),
        ("vllm --gpu-memory-utilization 0.2", "nothing"),
    ] {
        let mut t = TraceBuilder::new();
        t.header.command = command.split(' ').map(String::from).collect();
        t.code(1, "init_device", "/srv/site/vllm/v1/worker/gpu_worker.py", 10);
        t.stack(1, &[], &[1], &[]);
        let device = DeviceId(0);
        let context = ContextId(1);
        t.event(SECOND, Event::ContextCreated { context, device, stack: StackId(1) });
        t.event(
            SECOND,
            Event::Sample(Sample {
                device,
                driver_free: Some(6 * GIB),
                driver_total: Some(24 * GIB),
                process_bytes: Some(MIB),
                context_bytes: MIB,
            }),
        );
        let text = Scratch::with(&t).text("t.vtrace");
        let setting = "  setting    --gpu-memory-utilization of at most 0.25: 6.00 GiB of 24.00 GiB were free at its start";
        assert_eq!(text.contains(&format!("{setting}{said}\n")), said != "nothing", "{text}");
    }
}

/// All of a run below one line of Python, as XGBoost's `Booster.update`.
#[test]
fn one_line_that_calls_all_of_an_engine_is_divided_by_its_functions() {
    let mut t = TraceBuilder::new();
    let library = "/v/lib/python3.12/site-packages/xgboost/lib/libxgboost.so";
    let functions = [
        "dh::detail::XGBDefaultDeviceAllocatorImpl<float>::allocate",
        "xgboost::EllpackPageImpl::EllpackPageImpl",
        "xgboost::tree::GPUHistMaker::Update",
    ];
    for (id, name) in (1..).zip(functions.map(String::from)) {
        let (minor, file) = (Definition::NAMED_NATIVE, library.into());
        t.define(Definition::Code { id, minor, name, file, first_line: 0, line_table: Vec::new() });
    }
    t.code(4, "Booster.update", "/v/lib/python3.12/site-packages/xgboost/core.py", 2224);
    t.code(5, "<module>", "/home/me/train.py", 7);
    t.stack(1, &[], &[1, 2, 4, 5], &[]);
    t.stack(2, &[], &[1, 3, 4, 5], &[]);
    t.stack(3, &[], &[4, 5], &[]);
    for (n, mib) in [(1, 64), (2, 32), (3, 16)] {
        t.alloc_by(n * SECOND, Kind::Device, n << 40, mib * MIB, n as u32);
    }
    let scratch = Scratch::with(&t);
    let wanted = [(64, functions[1]), (32, functions[2]), (16, "Booster.update")];
    assert_eq!(holders(&scratch, "t.vtrace", ""), named(&wanted));
    let roles = [(64, "input"), (32, "workspace"), (16, "unknown")];
    assert_eq!(holders(&scratch, "t.vtrace", "--by role"), named(&roles));
    let shown = scratch.text("holders t.vtrace");
    assert!(shown.contains("called from train.py:7"), "{shown}");
}
