//! NVTX ranges as phases: what memory did in each. The program follows the protocol of NVTX's
//! headers with declarations of our own; where the headers are installed (`VRAMTRACE_TEST_NVTX`,
//! their include directory), the same program is built with them too.

use prost::Message;
use serde_json::Value;
use testkit::{MIB, Program, Run, Said, Scratch, Setup, flat, shim};
use vramtrace_reader::export::perfetto::proto::{EventType, Trace};

/// Path, times, and of device 0: peak, allocated, freed, stayed, in MiB.
type Row = (String, u64, [u64; 4]);

fn rows(run: &Run) -> Vec<Row> {
    let report = run.json("report --by phase");
    let row = |phase: &Value| {
        let path: Vec<&str> =
            phase["path"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
        let device = &phase["devices"][0];
        let keys = ["peak_bytes", "allocated_bytes", "freed_bytes", "stayed_bytes"];
        let sums = keys.map(|key| device[key].as_u64().unwrap() / MIB);
        (path.join(" > "), phase["times"].as_u64().unwrap(), sums)
    };
    report["processes"][0]["phases"].as_array().unwrap().iter().map(row).collect()
}

fn marked() -> Setup {
    Setup::simulated().preload().env("NVTX_INJECTION64_PATH", shim())
}

fn check(program: &Program) {
    let bare = program.run(Setup::simulated()).ok();
    let run = program.run(marked()).ok();
    assert_eq!((&bare.stdout, run.stderr.as_str()), (&run.stdout, ""));
    let row = |path: &str, times, sums| (path.to_string(), times, sums);
    let mut found = rows(&run);
    found.sort();
    let mut wanted = vec![
        row("early", 1, [64, 64, 0, 64]),
        row("epoch", 1, [152, 764, 680, 84]),
        row("epoch > forward é", 10, [104, 220, 0, 220]),
        row("epoch > backward", 10, [152, 480, 680, 0]),
        row("epoch > backward > NCCL/AllReduce", 10, [152, 80, 80, 0]),
        row("everyone's", 1, [116, 32, 0, 32]),
        row("other thread", 1, [116, 32, 0, 32]),
        row("never ended", 1, [56, 4, 0, 4]),
    ];
    wanted.sort();
    assert_eq!(found, wanted);
    let text = run.text("report --by phase");
    let squeezed: Vec<String> = text.lines().map(flat).collect();
    for line in ["GPU 0 by phase", "phase times time peak allocated allocated in all freed stayed"]
    {
        assert!(squeezed.iter().any(|found| found == line), "{line}: {text}");
    }
    let epoch = text.find("\n  epoch").unwrap();
    assert!(text[epoch..].find("\n    backward").unwrap() > 0, "{text}");
}

#[test]
fn ranges_become_phases() {
    check(&Program::c("phases"));
}

#[test]
fn timelines_show_the_phases() {
    let run = Program::c("phases").run(marked()).ok();
    let timeline = run.scratch.bytes(&format!("export -o - {}", run.only_trace().display()));
    let packets = Trace::decode(&*timeline).unwrap().packet;
    let names = || packets.iter().filter_map(|packet| packet.interned_data.as_ref());
    let count = |kind: EventType, name: &str| {
        let id = names().flat_map(|new| &new.event_names).find(|of| of.name() == name);
        let id = id.unwrap_or_else(|| panic!("{name} is not in the timeline")).iid;
        let events = packets.iter().filter_map(|packet| packet.track_event.as_ref());
        events.filter(|event| event.r#type() == kind && event.name_iid == id).count()
    };
    let ranges = [("epoch", 1), ("backward", 10), ("NCCL/AllReduce", 10), ("early", 1)];
    for (name, times) in ranges {
        let found = (count(EventType::SliceBegin, name), count(EventType::SliceEnd, name));
        assert_eq!(found, (times, times), "{name}");
    }
    assert!(count(EventType::SliceBegin, "everyone's") > 0);
    let once = (count(EventType::Instant, "a moment"), count(EventType::SliceEnd, "never ended"));
    assert_eq!(once, (10, 1));
    let tracks = packets.iter().filter_map(|packet| packet.track_descriptor.as_ref());
    assert!(tracks.into_iter().any(|track| track.name().starts_with("phases of thread")));
}

#[test]
fn ranges_of_the_real_headers_become_phases() {
    match std::env::var("VRAMTRACE_TEST_NVTX") {
        Ok(include) => check(&Program::c_with("phases", &["-DREAL_NVTX", &format!("-I{include}")])),
        Err(_) => testkit::skip("phases: VRAMTRACE_TEST_NVTX names no include directory of NVTX 3"),
    }
}

#[test]
fn run_asks_for_marks_unless_another_tool_does() {
    let scratch = Scratch::new();
    let run = |nvtx: Option<&str>| {
        let echo = ["sh", "-c", "echo \"$NVTX_INJECTION64_PATH\""];
        let mut command = scratch.command(&[&["run", "--out", "t", "--"], &echo[..]].concat());
        command.env_remove("NVTX_INJECTION64_PATH");
        command.envs(nvtx.map(|path| ("NVTX_INJECTION64_PATH", path)));
        Said::by(&mut command).out.trim().to_string()
    };
    assert_eq!(std::path::Path::new(&run(None)), shim().canonicalize().unwrap());
    assert_eq!(run(Some("/opt/other/libtool.so")), "/opt/other/libtool.so");
}

#[test]
fn a_process_without_a_gpu_leaves_nothing() {
    let source = "import ctypes, os\nctypes.CDLL(os.environ['NVTX_INJECTION64_PATH'])";
    let setup = Setup::default().preload().env("NVTX_INJECTION64_PATH", shim());
    let run = Program("/usr/bin/env".into()).run(setup.arg("python3").arg("-c").arg(source)).ok();
    assert_eq!((run.traces().len(), run.stderr.as_str()), (0, ""));
}
