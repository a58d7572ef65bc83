//! Ten lines on stderr when a program is really out of memory, and none when it lives with a
//! refusal. With or without a message the program prints and returns what it does without us.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Stdio};

use testkit::{Group, Program, Run, Scratch, Setup, is_kept};
use vramtrace_format::{Event, PostMortem, Refused, TraceReader};

use crate::oom_command;

const MIB: u64 = 1 << 20;

fn program() -> Program {
    Program::c("out_of_memory")
}

/// In a program that uses PyTorch.
fn torch_asks(mode: &str) -> Setup {
    Setup::simulated().arg(oom_command::libc10_cuda().display()).arg(mode)
}

/// In a program that uses the driver alone.
fn asks(mode: &str, mib: u64) -> Setup {
    Setup::simulated().arg("-").arg(mode).arg(mib)
}

fn cap(setup: Setup) -> Setup {
    setup.env("VRAMTRACE_CAP", "1400MiB")
}

/// It prints and returns the same with us in front, where the device is as small without us. The trace says what the message
/// does.
#[track_caller]
fn run(setup: Setup) -> Run {
    let run = program().run(setup.preload());
    if run.traces().len() == 1 {
        oom_command::agrees(&run, post_mortems(&run).len());
    }
    run
}

/// What is picked of the events of a trace.
fn events<T>(trace: &Path, pick: impl Fn(Event) -> Option<T>) -> Vec<T> {
    let bytes = testkit::trace_bytes(trace);
    TraceReader::new(&bytes).unwrap().events().filter_map(|stamped| pick(stamped.event)).collect()
}

fn post_mortems(run: &Run) -> Vec<PostMortem> {
    events(&run.only_trace(), |event| match event {
        Event::PostMortem(one) => Some(one),
        _ => None,
    })
}

#[track_caller]
fn post_mortem(run: &Run) -> PostMortem {
    let [one] = post_mortems(run)[..] else { panic!("once: {}", run.stderr) };
    one
}

/// Refusals of driver calls.
fn refusals(run: &Run) -> Vec<Refused> {
    events(&run.only_trace(), |event| match event {
        Event::Refused(refused) => Some(refused),
        _ => None,
    })
}

#[track_caller]
pub fn says(stderr: &str, label: &str) -> String {
    let line = stderr.lines().find_map(|line| line.trim_start().strip_prefix(label));
    line.unwrap_or_else(|| panic!("no {label} in {stderr}")).trim().to_string()
}

#[track_caller]
fn is_silent(run: &Run) {
    assert_eq!(run.stderr, "");
    assert_eq!(post_mortems(run), []);
}

/// The message without what differs between runs: pids, places in the program, the name of the trace.
fn plain(run: &Run) -> String {
    let mut text = run.stderr.clone();
    for trace in run.traces() {
        text = text.replace(trace.file_name().unwrap().to_str().unwrap(), "TRACE");
    }
    let mut plain = String::new();
    for line in text.lines() {
        for word in line.split_inclusive(' ') {
            match word.trim_end() {
                _ if plain.ends_with("pid ") => {
                    plain.push_str(word.trim_start_matches(|c: char| c.is_ascii_digit()));
                }
                "<" => {}
                place if place.starts_with("+0x") => {}
                place if place.starts_with("outofmemory") => plain.push_str("PLACE "),
                _ => plain.push_str(word),
            }
        }
        plain.push('\n');
    }
    plain
}

/// The message, and the post-mortems of the trace.
fn shown(run: &Run) -> String {
    let mut text = plain(run);
    for one in if run.traces().is_empty() { Vec::new() } else { post_mortems(run) } {
        let PostMortem { evidence, by, size, limit, absorbed, largest_hole, cache, .. } = one;
        let mib = |bytes| bytes / MIB;
        let cache = cache.map(|of| [of.allocated, of.reserved].map(mib));
        let (size, limit, hole) = (mib(size), mib(limit), largest_hole.map(mib));
        let found = (evidence, by, size, limit, hole, cache, absorbed);
        writeln!(text, "evidence, by, size, limit, hole, cache, absorbed: {found:?}").unwrap();
    }
    format!("{text}status {}\n", run.status)
}

/// What refused, what is in use, and what would help. No driver call is refused by PyTorch's own fraction: only its hook
/// tells. Mappings side by side are one piece. The hook is heard where blocks are not recorded: no hole is claimed then. A
/// burst of refusals is reported once, and the end of the process again.
#[test]
fn each_message_is_the_kept_one() {
    let group = Group::new("post-mortem");
    let of_group = format!("{}:1400MiB", group.0);
    let setting = "max_split_size_mb:64,expandable_segments:True";
    for (name, setup) in [
        ("fragments", cap(torch_asks("fragments")).env("RANK", "3")),
        ("too-much", cap(torch_asks("too-much"))),
        ("card", torch_asks("too-much").devices("1x1500MiB")),
        ("fraction", torch_asks("fraction")),
        ("expandable", torch_asks("expandable").env("PYTORCH_CUDA_ALLOC_CONF", setting)),
        ("no-blocks", cap(torch_asks("fragments")).env("VRAMTRACE_TENSORS", "off")),
        ("no-trace", cap(torch_asks("fragments")).env("VRAMTRACE_OUT", "off")),
        ("group", torch_asks("too-much").env("VRAMTRACE_CAP_GROUP", of_group)),
        ("absorbed", cap(torch_asks("absorbed-then-out").arg(3))),
        ("burst", cap(torch_asks("burst").arg(200))),
        ("twice", cap(torch_asks("twice"))),
        ("again", cap(asks("again", 2000))),
        ("exit", asks("exit", 1 << 20)),
        ("freed", cap(asks("exit-freed", 1 << 20))),
        // The last of two counts: half was freed in between.
        ("freed-between", cap(asks("exit-freed", 1 << 20).arg(8))),
        ("freed-no-trace", cap(asks("exit-freed", 1 << 20).arg(8)).env("VRAMTRACE_OUT", "off")),
    ] {
        let run = run(setup);
        is_kept(&format!("oom/message/{name}"), &shown(&run));
        let most = if name == "twice" { 20 } else { 10 };
        assert!(run.stderr.lines().count() <= most, "{name}: {}", run.stderr);
        if name == "fragments" {
            // Each refusal of the driver call carries the cache's figures too, and what the card had.
            let (refusals, cache) = (refusals(&run), post_mortem(&run).cache);
            let is_known = |one: &Refused| one.cache == cache && one.driver_free > 20 << 30;
            assert!(refusals.len() == 2 && refusals.iter().all(is_known), "{refusals:?}");
        }
        if let "fraction" | "absorbed" = name {
            let cause = ["PyTorch's own memory fraction", "3 refusals that PyTorch absorbed"];
            let cause = cause[usize::from(name == "absorbed")];
            oom_command::assert_contains(&run.scratch.text("oom"), &[cause]);
        }
    }
}

/// Where expandable segments cannot work they are not proposed.
#[test]
fn a_setting_that_cannot_work_is_not_proposed() {
    let proposes = |mode: &str, cap: &str, variable: (&str, &str)| {
        let run = run(torch_asks(mode).env("VRAMTRACE_CAP", cap).env(variable.0, variable.1));
        let why = says(&run.scratch.text("oom"), "why");
        assert!(why.starts_with("fragmentation: "), "{why}");
        says(&run.stderr, "try").contains("expandable_segments")
    };
    let none = ("PYTORCH_CUDA_ALLOC_CONF", "");
    assert!(proposes("fragments", "1400MiB", none));
    // Mapped by a sleep mode or a pluggable allocator.
    assert!(!proposes("mapped", "800MiB", none));
    // Memory of tensors that another process has opened by cuIpcGetMemHandle.
    assert!(!proposes("shares", "1400MiB", none));
    for (name, value) in [
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"),
        ("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync"),
        ("PYTORCH_ALLOC_CONF", "expandable_segments:True"),
    ] {
        assert!(!proposes("fragments", "1400MiB", (name, value)), "{name}={value}");
    }
}

#[test]
fn a_run_that_torch_saves_prints_nothing() {
    let saved = run(cap(torch_asks("absorbed").arg(5))).ok();
    is_silent(&saved);
    assert_eq!(saved.device()["refused_by_cap"], 5);
}

/// Also where host memory was refused, and the parent of a forked child that was not.
#[test]
fn a_program_that_goes_on_prints_nothing() {
    for (setup, of_host) in [
        (cap(asks("go-on", 2000)), false),
        (cap(asks("slowly", 2000)), false),
        (asks("go-on", 1 << 20), false),
        (Setup::simulated().arg("-").arg("host"), true),
    ] {
        let run = run(setup).ok();
        is_silent(&run);
        let free: Vec<u64> = refusals(&run).iter().map(|one| one.driver_free).collect();
        assert!(!of_host || free == [0], "what the card has is no answer: {free:?}");
    }
    run(asks("fork", 1 << 20)).ok().quiet();
}

/// A program that is refused repeatedly is examined seldom. Whether it was looked at after the last 64 MiB is a matter of time.
#[test]
fn holders_of_another_moment_are_not_named() {
    let run = program().run(asks("probe-then-out", 50).preload());
    let holds = run.stderr.lines().find(|line| line.starts_with("  holds"));
    let is_right =
        |line: &str| line.contains(" 512.00 MiB ") && line.ends_with("   16 allocations");
    assert!(holds.is_none_or(is_right), "{}", run.stderr);
    let limit = "the card: 24.00 GiB; the card had ";
    assert!(says(&run.stderr, "limit").starts_with(limit), "{}", run.stderr);
}

#[test]
fn the_message_goes_nowhere_when_asked() {
    let setup = asks("exit", 1 << 20).preload().env("VRAMTRACE_OOM_REPORT", "off");
    assert_eq!(post_mortems(&program().run(setup).quiet()).len(), 1, "the trace has it");
}

/// Each rank speaks for itself, and names who else is on the card.
#[test]
fn each_rank_names_the_other_on_its_card() {
    let scratch = Scratch::new();
    let state = scratch.0.join("state");
    let program = program();
    let rank = |rank: u32, mode: &str| {
        let setup = asks(mode, 1 << 20)
            .preload()
            .devices("1x4GiB")
            .env("VRAMTRACE_SIM_STATE", &state)
            .env("RANK", rank.to_string());
        setup.command(&program.0, &scratch)
    };
    // Each is refused, and refused again after a second, when it is reported.
    let start = |number| {
        let mut command = rank(number, "again on request");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.ends_with(": 2\n"), "{line}");
        child
    };
    let tell = |mut child: Child| {
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap()
    };
    let (first, second) = (start(0), start(1));
    let pids = [first.id(), second.id()];
    let texts = [first, second].map(tell);
    for (rank, text) in texts.iter().enumerate() {
        assert!(text.starts_with(&format!("vramtrace rank{rank} cuda:0 pid ")), "{text}");
        assert_eq!(text.matches("rank").count(), 1, "{text}");
    }
    assert!(says(&texts[0], "limit").contains(&format!("; other processes: pid {} ", pids[1])));
    // One that ends tells whom it met when it was refused.
    let holder = start(0);
    let last = String::from_utf8(rank(2, "exit").output().unwrap().stderr).unwrap();
    assert!(says(&last, "limit").contains(&format!("; other processes: pid {} ", holder.id())));
    tell(holder);
    // Who has the traces of all knows that they are of one run.
    let text = scratch.text(&format!("oom --json {}", scratch.0.display()));
    assert!(text.contains("\"of_run\": true"), "{text}");
}

/// Also of a program that is given something in between, with much to be looked at.
#[test]
fn loops_of_refusals_are_silent() {
    for (mode, requests) in [("loop", 1000), ("probe", 2000)] {
        let run = program().run(asks(mode, requests).preload()).ok();
        assert_eq!(run.stderr.lines().count(), 1, "its own time alone: {}", run.stderr);
    }
}

/// PyTorch's hook may be reached on a thread with little room.
#[test]
fn the_message_takes_little_stack() {
    let used = |setup: Setup| -> usize {
        let run = program().run(setup).ok();
        run.stderr.lines().find_map(|line| line.parse().ok()).unwrap()
    };
    let bare = used(torch_asks("stack"));
    let ours = used(torch_asks("stack").preload());
    let most = if cfg!(debug_assertions) { 32 << 10 } else { 16 << 10 };
    assert!(ours - bare.min(ours) <= most, "{ours}, and {bare} bare");
}

fn python(script: &str, how: &str, setup: Setup) -> Option<(Run, Run)> {
    let (_, python) = testkit::pythons().into_iter().next_back()?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python");
    let scratch = Scratch::new();
    let packages = scratch.0.join("site-packages/transformers");
    std::fs::create_dir_all(&packages).unwrap();
    std::fs::copy(source.join("model.py"), packages.join("model.py")).unwrap();
    std::fs::copy(source.join(script), scratch.0.join("train.py")).unwrap();
    let setup = setup
        .env("PYTHONPATH", &packages)
        .cwd(&scratch.0)
        .arg("train.py")
        .arg(oom_command::libc10_cuda().display())
        .arg(how);
    let bare = Program(python.clone()).run(setup.clone());
    for trace in scratch.traces() {
        std::fs::remove_file(trace).unwrap();
    }
    let ours = Program(python).run(setup.preload().env("VRAMTRACE_OUT", &scratch.0));
    let ours = Run { scratch, ..ours };
    Some((bare, ours))
}

/// Also after the interpreter has ended: its own report comes first then, and its lines are known still.
#[test]
fn python_lines_are_named() {
    for (how, head) in [
        ("raises", "torch is out of memory: 96.00 GiB at model.py:21 < train.py:20"),
        ("nothing", "ended out of memory: last refused 1.00 TiB at train.py:12 < train.py:31"),
    ] {
        let Some((bare, ours)) = python("out_of_memory.py", how, Setup::simulated()) else {
            return testkit::skip("lines of Python: no Python from 3.8 on");
        };
        assert_eq!((&ours.stdout, ours.status), (&bare.stdout, bare.status));
        assert!(ours.stderr.contains(head), "{}", ours.stderr);
        if how == "nothing" {
            assert!(ours.stderr.starts_with(&bare.stderr), "{}", ours.stderr);
            continue;
        }
        // The interpreter's own report of the error follows unharmed.
        assert!(ours.status == 1 && ours.stderr.ends_with(&bare.stderr), "{}", ours.stderr);
        let holds = ours.stderr.lines().skip_while(|line| !line.trim_start().starts_with("holds"));
        let holds = holds.map(|line| line.trim_start().trim_start_matches("holds").trim());
        let wanted = [
            "32.00 MiB model.py:10 < train.py:18   4 blocks",
            "24.00 MiB model.py:10 < train.py:20   2 blocks",
        ];
        assert_eq!(holds.take(2).collect::<Vec<_>>(), wanted, "{}", ours.stderr);
    }
}

/// A line is one holder, however many stacks lead there: in the message as in the command.
#[test]
fn the_message_and_the_command_name_the_same_holder() {
    let setup = || Setup::simulated().env("VRAMTRACE_CAP", "2GiB");
    let Some((_, ours)) = python("kept_in_a_list.py", "deep", setup()) else {
        return testkit::skip("lines of Python: no Python from 3.8 on");
    };
    let holds = says(&ours.stderr, "holds");
    let found = ours.scratch.json("oom .");
    let holder = &found["ooms"][0]["post_mortem"]["holders"][0];
    let (bytes, count) = (holder["bytes"].as_u64().unwrap(), holder["count"].as_u64().unwrap());
    assert!(count > 40, "{holder}");
    let figures = format!("{} train.py:", vramtrace_reader::units::size(bytes));
    assert!(holds.starts_with(&figures), "{}", ours.stderr);
    assert!(holds.ends_with(&format!("   {count} allocations")), "{}", ours.stderr);
}

/// As with CuPy: the interpreter's end frees what is kept in a list.
#[test]
fn what_the_interpreters_end_frees_is_still_named() {
    let ways =
        [Setup::simulated().env("VRAMTRACE_CAP", "2GiB"), Setup::simulated().devices("1x2GiB")];
    for setup in ways {
        let Some((_, ours)) = python("kept_in_a_list.py", "", setup) else {
            return testkit::skip("lines of Python: no Python from 3.8 on");
        };
        assert_eq!(ours.status, 1);
        let text = &ours.stderr;
        assert!(text.contains("MemoryError: cuMemAlloc_v2: 2\n"), "{text}");
        let head = "ended out of memory: last refused 256.00 MiB at train.py:";
        assert!(text.contains(head), "{text}");
        let holds = says(text, "holds");
        assert!(holds.starts_with("1.25 GiB train.py:"), "{text}");
        assert!(holds.ends_with("   5 allocations"), "{text}");
        let freed = |event| matches!(event, Event::Free { .. }).then_some(());
        let freed = events(&ours.only_trace(), freed).len();
        assert_eq!(freed, 5, "all was freed before it was reported");
    }
}

/// A program whose functions no other object may use: the loader does not know their names. The command finds them.
#[test]
fn functions_of_a_program_have_places_in_the_message_and_names_in_the_command() {
    let flags = ["-g0", "-O0"];
    let engine = Program::compiled("g++", "../../docs/programs/engine.cpp", &flags);
    let run = engine.run(Setup::simulated().cap("3500MiB").arg("-c").arg(4096));
    assert_eq!(run.status, 1, "{}", run.stderr);
    let title = engine.0.file_name().unwrap().to_str().unwrap();
    assert!(run.stderr.contains(&format!(" 768.00 MiB at {title}+0x")), "{}", run.stderr);
    assert!(says(&run.stderr, "holds").starts_with(&format!("2.51 GiB {title}+0x")));
    assert!(says(&run.stderr, "more").contains(" names the functions   ("), "{}", run.stderr);
    let named = ["at llama_kv_cache::llama_kv_cache", "2.51 GiB llama_model::load_tensors"];
    oom_command::assert_contains(&run.scratch.text("oom"), &named);
}
