//! The summary that a process writes at its end says what a replay says, and a report of a run says
//! the same by either.

use std::path::Path;

use testkit::{Program, Scratch, Setup, gunzip};
use vramtrace_reader::analysis::ranks::{self, FiguresSource, ProcessFigures};
use vramtrace_reader::report::text;
use vramtrace_reader::trace::{Trace, open};

/// Both overviews of these traces. How many of them summed themselves up.
#[track_caller]
fn both_ways(traces: &[std::path::PathBuf]) -> usize {
    let opened: Vec<Trace> = traces.iter().map(|path| open(path).unwrap()).collect();
    let alone = |trace: &Trace| ranks::read(std::slice::from_ref(trace), &|_, _| {}).remove(0);
    let summed: Vec<ProcessFigures> = opened.iter().map(alone).collect();
    let replayed: Vec<ProcessFigures> = opened.iter().map(ProcessFigures::replayed).collect();
    for (summed, replayed) in summed.iter().zip(&replayed) {
        for (id, device) in &summed.devices {
            let other = &replayed.devices[id];
            let counts = |d: &vramtrace_reader::analysis::ranks::DeviceFigures| {
                let kinds = (d.peak_by_kind, d.live_by_kind);
                (d.allocations, d.frees, d.live_allocations, d.peak_bytes, d.live_bytes, kinds)
            };
            assert_eq!(counts(device), counts(other), "{}", summed.trace.display());
            assert_eq!(device.holders, other.holders, "{}", summed.trace.display());
        }
    }
    let shown = |ranks: &[ProcessFigures]| text::overview(ranks, None, "", 50);
    assert_eq!(shown(&summed), shown(&replayed));
    summed.iter().filter(|rank| rank.source == FiguresSource::Summary).count()
}

#[test]
fn programs_of_every_kind_say_the_same_both_ways() {
    let mut traces = Vec::new();
    let mut kept: Vec<Scratch> = Vec::new();
    let mut run = |program: &Program, arguments: &[&str]| {
        let setup = Setup::simulated().devices("2x24GiB").preload().contradicts();
        let setup = arguments.iter().fold(setup, |setup, one| setup.arg(one));
        let run = program.run(setup);
        traces.extend(run.traces());
        kept.push(run.scratch);
    };
    for program in ["families", "graphs", "vmm", "lending", "contexts"] {
        run(&Program::c(program), &[]);
    }
    let library = testkit::torch_stand_ins::libraries().join("libc10_cuda.so");
    for mode in [&["blocks"][..], &["churn", "200"]] {
        run(&Program::c("torch"), &[&[library.to_str().unwrap()], mode].concat());
    }
    assert!(traces.len() >= 4, "{traces:?}");
    let summed = both_ways(&traces);
    assert!(summed >= 2, "{summed} of {} say it by themselves", traces.len());
}

#[test]
fn a_killed_process_is_replayed() {
    let mut killed = testkit::InteractiveProgram::start(Setup::simulated().preload());
    killed.ask("a 64");
    let traces = killed.traces();
    killed.kill();
    assert_eq!(both_ways(&traces), 0);
}

/// Traces of 1.0 have no summary.
#[test]
fn a_run_of_golden_ranks_is_merged() {
    let ranks = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/golden/ranks");
    let scratch = Scratch::new();
    for entry in std::fs::read_dir(&ranks).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        scratch.write(name, gunzip(&std::fs::read(&path).unwrap()));
    }
    let traces = scratch.traces();
    assert!(traces.len() > 1);
    assert_eq!(both_ways(&traces), 0);
    for command in ["report", "holders", "leaks", "oom"] {
        assert!(!scratch.text(&format!("{command} .")).is_empty(), "{command}");
        scratch.json(&format!("{command} ."));
    }
}
