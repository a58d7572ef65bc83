//! The command line itself: words without `--`, groups, suggestions, completions, manual pages, and
//! `vramtrace` alone.

use serde_json::json;
use testkit::trace_builder::{SECOND, TraceBuilder};
use testkit::{MIB, Scratch, shim, sim, unpacked};
use vramtrace_format::{Event, Kind};

#[test]
fn a_command_needs_no_dashes_before_it_and_keeps_its_own_options() {
    let scratch = Scratch::new();
    shim();
    let script = "import sys; print(sys.argv[1:])";
    for (args, expected) in [
        (&["run", "python3", "-c", script, "--cap", "-x"][..], "['--cap', '-x']"),
        (&["run", "--out", "off", "python3", "-c", script, "--help"], "['--help']"),
        (&["run", "--", "python3", "-c", script, "--", "-v"], "['--', '-v']"),
        (&["run", "--simulate", "--cap", "1GiB", "python3", "-c", script], "[]"),
    ] {
        assert_eq!(scratch.says(args).ended(0).out.trim(), expected, "{args:?}");
    }
    let doctor = scratch.says(&["doctor", "--simulate", "sh", "-c", "exit 0"]);
    assert!(doctor.out.contains("exit 0"), "{}", doctor.out);
}

/// An unknown option is named with the usage of its command; a misspelt word gets the nearest.
#[test]
fn words_that_are_none_are_named_with_what_would_be_right() {
    let scratch = Scratch::new();
    for (line, part) in [
        ("--no-such", "unexpected argument '--no-such'"),
        ("--no-such", "Usage: vramtrace [COMMAND"),
        ("report --no-such", "unexpected argument '--no-such'"),
        ("report --no-such", "Usage: vramtrace report"),
        ("ps --jsn", "Usage: vramtrace ps"),
        ("repot", "'report'"),
        ("leak", "'leaks'"),
        ("holders --bye", "'--by'"),
    ] {
        scratch.fails(2, line, part);
    }
}

#[test]
fn the_help_lists_commands_in_groups_with_their_questions() {
    let scratch = Scratch::new();
    let help = scratch.text("--help");
    let at = |part: &str| help.find(part).unwrap_or_else(|| panic!("{part}: {help}"));
    let order = ["Record:", "Look:", "Explain:", "Limit:", "Share:", "Options:"].map(at);
    assert!(order.is_sorted(), "{help}");
    assert!(at("Explain:") < at("  oom ") && at("  oom ") < at("Limit:"), "{help}");
    let between = &help[at("Record:")..at("Options:")];
    let commands = between.lines().filter(|line| line.starts_with("  "));
    assert!(commands.clone().count() > 15, "{help}");
    for line in commands {
        assert!(line.ends_with('?') && line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn completions_and_manual_pages_know_every_command() {
    let scratch = Scratch::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = scratch.text(&format!("completions {shell}"));
        for word in ["whatif", "fail-on-leak", "perfetto"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
        assert!(!script.contains("__man"), "{shell} offers a hidden command");
    }
    scratch.write("c.bash", scratch.text("completions bash"));
    let script = "source ./c.bash; COMP_WORDS=(vramtrace lea); COMP_CWORD=1; \
                  _vramtrace vramtrace lea vramtrace; echo ${COMPREPLY[@]}";
    assert_eq!(scratch.shell(script).trim(), "leaks");

    std::fs::create_dir(scratch.0.join("man")).unwrap();
    scratch.text("__man man");
    let pages = std::fs::read_dir(scratch.0.join("man")).unwrap().count();
    let help = scratch.text("--help");
    let commands = help.lines().filter(|line| line.starts_with("  ") && line.ends_with('?'));
    assert_eq!(pages, 1 + commands.count());
    let run = std::fs::read_to_string(scratch.0.join("man/vramtrace-run.1")).unwrap();
    assert!(run.contains("fail\\-on\\-leak") && run.contains(".TH"), "{run}");
    scratch.fails(2, "__man no-such-directory", "");
}

#[test]
fn alone_it_names_the_first_commands_and_later_the_newest_runs_verdict() {
    let scratch = Scratch::new();
    let first = scratch.text("");
    for command in ["vramtrace demo", "vramtrace run python train.py", "vramtrace doctor"] {
        assert!(first.contains(command), "{first}");
    }
    scratch.text("demo --out recorded");
    let verdict = scratch.text("");
    let lines: Vec<&str> = verdict.lines().collect();
    assert_eq!(lines[0], "recorded");
    assert!(lines[1].starts_with("  verdict    out of memory on GPU 0"), "{verdict}");
    assert!(lines[1].contains("fragmentation"), "{verdict}");
    assert!(lines[2].starts_with("  line       activations.py:66 < train.py:23"), "{verdict}");
    assert!(lines[3].contains("expandable_segments:True"), "{verdict}");
    assert_eq!(lines[4], "  next       vramtrace oom recorded");
    // Neither a leak nor a refusal; and a run that was killed.
    for (ends, wanted, next) in [(true, "no leak", "holders"), (false, "end was not", "report")] {
        let mut t = TraceBuilder::new();
        t.alloc(SECOND, Kind::Device, 1 << 40, 64 * MIB);
        if ends {
            t.event(2 * SECOND, Event::Ended);
        }
        let verdict = Scratch::with(&t).text("");
        assert!(verdict.contains(wanted), "{verdict}");
        assert!(verdict.contains(&format!("vramtrace {next} t.vtrace")), "{verdict}");
    }
}

#[test]
fn a_run_ends_with_verdict_line_and_next_command() {
    let scratch = Scratch::with_programs();
    sim();
    shim();
    for (line, [verdict, held, next]) in [
        (
            "--out a/ python3 train.py",
            [
                "  verdict    no leak, no request refused; peak 1.13 GiB in nvidia-smi, of",
                "  line       gpu.py:35 < train.py:10 held 384.00 MiB",
                "  next       vramtrace holders a/",
            ],
        ),
        (
            "--out b/ --cap 1GiB python3 train.py 12",
            [
                "  verdict    out of memory on GPU 0",
                "  line       gpu.py:35 < train.py:14 held 256.00 MiB at the failure",
                "  next       vramtrace oom b",
            ],
        ),
        (
            "--out c/ python3 server.py",
            [
                "  verdict    memory leaks on GPU 0: 120.00 MiB",
                "  line       gpu.py:35 < server.py:15: growing",
                "  next       vramtrace leaks c/",
            ],
        ),
    ] {
        let printed = scratch.run(&format!("run --simulate --oom-report off {line}")).stderr;
        let printed = String::from_utf8(printed).unwrap();
        let lines: Vec<&str> =
            printed.lines().filter_map(|line| line.strip_prefix("vramtrace: ")).collect();
        for (found, wanted) in lines[lines.len() - 3..].iter().zip([verdict, held, next]) {
            assert!(found.starts_with(wanted), "{line}: {printed}");
        }
    }
}

/// A server that leaks until the cap refuses its next request.
#[test]
fn out_of_memory_because_of_a_leak_says_so() {
    let scratch = Scratch::with_programs();
    sim();
    shim();
    let run = "run --simulate --oom-report off --out d --cap 640MiB python3 server.py";
    let printed = scratch.run(run).stderr;
    let views = ["d", "oom d", "report d"].map(|line| scratch.text(line));
    for text in views.into_iter().chain([String::from_utf8(printed).unwrap()]) {
        let leak = "gpu.py:35 < server.py:15 keeps 90.00 MiB: +";
        assert!(text.contains(leak) && text.contains("vramtrace leaks d"), "{text}");
        // What grows fills a larger cap too.
        assert!(!text.contains("  try "), "{text}");
    }
    let report = scratch.json("report d");
    let process = &report["processes"][0];
    assert_eq!(process["verdict"]["kind"], "out_of_memory");
    assert_eq!(process["verdict"]["leak"]["bytes"], 90 * MIB);
    assert_eq!(process["failures"][0]["advice"], json!([]));
    // Of this request the leak held too little.
    let large =
        "server = open('server.py').read().split('os._exit')[0]\nexec(server)\nTensor(800 * MIB)\n";
    scratch.write("large.py", large);
    scratch.run("run --simulate --oom-report off --out e --cap 1GiB python3 large.py");
    assert_eq!(scratch.json("leaks e")["leaks"][0]["bytes"], 120 * MIB);
    let text = scratch.text("e");
    assert!(text.contains("out of memory") && !text.contains("because"), "{text}");
}

#[test]
fn a_snapshot_is_read_by_every_command_or_sent_to_import() {
    let scratch = Scratch::new();
    scratch.write("snapshot.pickle", unpacked("tests/data/torch_snapshot_2.11.pickle.gz"));
    for line in [
        "report",
        "holders",
        "leaks",
        "oom",
        "frag",
        "whatif",
        "flame -o -",
        "export --format csv -o -",
        "import -o imported.vtrace",
    ] {
        let output = scratch.run(&format!("{line} snapshot.pickle"));
        let printed = String::from_utf8_lossy(&output.stderr);
        let named = printed.contains("vramtrace import") || printed.contains("no stacks");
        assert!(output.status.success() || named, "{line}: {printed}");
    }
    scratch.fails(2, "pack snapshot.pickle", "vramtrace import snapshot.pickle -o");
    scratch.write("other.bin", b"PK\x03\x04 something else");
    scratch.fails(2, "report other.bin", "other.bin");
}

#[test]
fn another_version_of_the_recorder_is_named() {
    let of = |version: &str| {
        let mut t = TraceBuilder::new();
        t.header.writer = version.into();
        t.alloc(SECOND, Kind::Device, 1 << 40, MIB);
        Scratch::with(&t).says(&["report", "t.vtrace"]).ended(0).err
    };
    for version in ["0.0.1", "99.1.0"] {
        let said = of(version);
        assert!(said.contains(&format!("recorded by vramtrace {version}; this is ")), "{said}");
    }
    assert_eq!(of(env!("CARGO_PKG_VERSION")), "");
}
