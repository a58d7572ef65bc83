//! The command line itself: words without `--`, groups, suggestions, completions, manual pages, and
//! `vramtrace` alone.

use std::io::Read;
use std::path::Path;
use std::process::Output;

use testkit::trace_builder::{SECOND, TraceBuilder};
use testkit::{Scratch, repository, shim, sim, vramtrace};
use vramtrace_format::physical::MIB;
use vramtrace_format::{Event, Kind};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn ours(scratch: &Scratch, args: &[&str]) -> Output {
    let mut command = vramtrace();
    for name in ["LD_PRELOAD", "VRAMTRACE_OUT", "VRAMTRACE_CAP"] {
        command.env_remove(name);
    }
    command.args(args).current_dir(&scratch.0).output().unwrap()
}

fn stdout(scratch: &Scratch, args: &[&str]) -> String {
    let output = ours(scratch, args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

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
        assert_eq!(stdout(&scratch, args).trim(), expected, "{args:?}");
    }
    let doctor = ours(&scratch, &["doctor", "--simulate", "sh", "-c", "exit 0"]);
    assert!(text(&doctor.stdout).contains("exit 0"), "{}", text(&doctor.stdout));
}

#[test]
fn an_unknown_option_is_named_with_the_usage_of_its_command() {
    let scratch = Scratch::new();
    for (args, option, usage) in [
        (&["--no-such"][..], "--no-such", "vramtrace [COMMAND"),
        (&["report", "--no-such"], "--no-such", "vramtrace report"),
        (&["ps", "--jsn"], "--jsn", "vramtrace ps"),
    ] {
        let output = ours(&scratch, args);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(&format!("unexpected argument '{option}'")), "{args:?}: {error}");
        assert!(error.contains(&format!("Usage: {usage}")), "{args:?}: {error}");
    }
}

#[test]
fn the_help_lists_commands_in_groups_with_their_questions() {
    let scratch = Scratch::new();
    let help = stdout(&scratch, &["--help"]);
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
fn a_misspelt_command_or_option_gets_the_nearest() {
    let scratch = Scratch::new();
    for (args, wanted) in
        [(&["repot"][..], "'report'"), (&["leak"], "'leaks'"), (&["holders", "--bye"], "'--by'")]
    {
        let output = ours(&scratch, args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(wanted), "{}", text(&output.stderr));
    }
}

#[test]
fn completions_and_manual_pages_know_every_command() {
    let scratch = Scratch::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout(&scratch, &["completions", shell]);
        for word in ["whatif", "fail-on-leak", "docker"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
        assert!(!script.contains("__man"), "{shell} offers a hidden command");
    }
    std::fs::write(scratch.0.join("c.bash"), stdout(&scratch, &["completions", "bash"])).unwrap();
    let script = "source ./c.bash; COMP_WORDS=(vramtrace lea); COMP_CWORD=1; \
                  _vramtrace vramtrace lea vramtrace; echo ${COMPREPLY[@]}";
    let mut bash = std::process::Command::new("bash");
    let output = bash.args(["-c", script]).current_dir(&scratch.0).output().unwrap();
    assert_eq!(text(&output.stdout).trim(), "leaks", "{}", text(&output.stderr));

    std::fs::create_dir(scratch.0.join("man")).unwrap();
    stdout(&scratch, &["__man", "man"]);
    let pages = std::fs::read_dir(scratch.0.join("man")).unwrap().count();
    let help = stdout(&scratch, &["--help"]);
    let commands = help.lines().filter(|line| line.starts_with("  ") && line.ends_with('?'));
    assert_eq!(pages, 1 + commands.count());
    let run = std::fs::read_to_string(scratch.0.join("man/vramtrace-run.1")).unwrap();
    assert!(run.contains("fail\\-on\\-leak") && run.contains(".TH"), "{run}");
    assert_eq!(ours(&scratch, &["__man", "no-such-directory"]).status.code(), Some(2));
}

#[test]
fn alone_it_names_the_first_commands_and_later_the_newest_runs_verdict() {
    let scratch = Scratch::new();
    let first = stdout(&scratch, &[]);
    for command in ["vramtrace demo", "vramtrace run python train.py", "vramtrace doctor"] {
        assert!(first.contains(command), "{first}");
    }
    stdout(&scratch, &["demo", "--out", "recorded"]);
    let verdict = stdout(&scratch, &[]);
    let lines: Vec<&str> = verdict.lines().collect();
    assert_eq!(lines[0], "recorded");
    assert!(lines[1].starts_with("  verdict    out of memory on GPU 0"), "{verdict}");
    assert!(lines[1].contains("fragmentation"), "{verdict}");
    assert!(lines[2].starts_with("  line       activations.py:66 < train.py:23"), "{verdict}");
    assert!(lines[3].contains("expandable_segments:True"), "{verdict}");
    assert_eq!(lines[4], "  next       vramtrace oom recorded");
    // Neither a leak nor a refusal; and a run that was killed.
    for (ends, wanted, next) in [(true, "no leak", "holders"), (false, "killed", "report")] {
        let scratch = Scratch::new();
        let mut t = TraceBuilder::new();
        t.alloc(SECOND, Kind::Device, 1 << 40, 64 * MIB);
        if ends {
            t.event(2 * SECOND, Event::Ended);
        }
        t.write(&scratch.0.join("t.vtrace"));
        let verdict = stdout(&scratch, &[]);
        assert!(verdict.contains(wanted), "{verdict}");
        assert!(verdict.contains(&format!("vramtrace {next} t.vtrace")), "{verdict}");
    }
}

#[test]
fn a_run_ends_with_verdict_line_and_next_command() {
    let scratch = Scratch::new();
    sim();
    shim();
    for name in ["gpu.py", "server.py", "train.py"] {
        let from = repository().join("docs/programs").join(name);
        std::fs::copy(from, scratch.0.join(name)).unwrap();
    }
    let end = |args: &[&str]| {
        let args = [&["run", "--simulate", "--oom-report", "off"], args].concat();
        let printed = text(&ours(&scratch, &args).stderr);
        let ours = printed.lines().filter(|line| line.starts_with("vramtrace: "));
        let lines: Vec<String> = ours.map(|line| line["vramtrace: ".len()..].to_string()).collect();
        lines[lines.len() - 3..].to_vec()
    };
    let [verdict, line, next] = &end(&["--out", "a/", "python3", "train.py"])[..] else { panic!() };
    assert!(
        verdict.starts_with(
            "  verdict    no leak, no request refused; peak 1.13 GiB in nvidia-smi, of"
        )
    );
    assert!(line.starts_with("  line       gpu.py:35 < train.py:10 held 384.00 MiB"), "{line}");
    assert!(next.starts_with("  next       vramtrace holders a/"), "{next}");
    let capped = ["--out", "b/", "--cap", "1GiB", "python3", "train.py", "12"];
    let [verdict, line, next] = &end(&capped)[..] else { panic!() };
    assert!(verdict.starts_with("  verdict    out of memory on GPU 0"), "{verdict}");
    assert!(line.contains("gpu.py:35 < train.py:14 held 256.00 MiB at the failure"), "{line}");
    assert!(next.contains("vramtrace oom b"), "{next}");
    let [verdict, line, next] = &end(&["--out", "c/", "python3", "server.py"])[..] else {
        panic!()
    };
    assert!(verdict.starts_with("  verdict    memory leaks on GPU 0: 120.00 MiB"), "{verdict}");
    assert!(line.contains("gpu.py:35 < server.py:15: growing"), "{line}");
    assert!(next.contains("vramtrace leaks c/"), "{next}");
}

fn unpacked(from: &str, to: &Path) {
    let packed = std::fs::File::open(repository().join(from)).unwrap();
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
    std::fs::write(to, bytes).unwrap();
}

#[test]
fn a_snapshot_is_read_by_every_command_or_sent_to_import() {
    let scratch = Scratch::new();
    unpacked("tests/data/torch_snapshot_2.11.pickle.gz", &scratch.0.join("snapshot.pickle"));
    for args in [
        &["report"][..],
        &["holders"],
        &["leaks"],
        &["oom"],
        &["frag"],
        &["whatif"],
        &["flame", "-o", "-"],
        &["export", "--format", "csv", "-o", "-"],
        &["import", "-o", "imported.vtrace"],
    ] {
        let output = ours(&scratch, &[args, &["snapshot.pickle"]].concat());
        let printed = text(&output.stderr);
        let named = printed.contains("vramtrace import") || printed.contains("no stacks");
        assert!(output.status.success() || named, "{args:?}: {printed}");
    }
    let packed = ours(&scratch, &["pack", "snapshot.pickle"]);
    assert_eq!(packed.status.code(), Some(2));
    assert!(text(&packed.stderr).contains("vramtrace import snapshot.pickle -o"));
    let unknown = scratch.0.join("other.bin");
    std::fs::write(&unknown, b"PK\x03\x04 something else").unwrap();
    let output = ours(&scratch, &["report", "other.bin"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("other.bin"), "{}", text(&output.stderr));
}

#[test]
fn another_version_of_the_recorder_is_named() {
    let scratch = Scratch::new();
    let of = |version: &str| {
        let mut t = TraceBuilder::new();
        t.header.writer = version.into();
        t.alloc(SECOND, Kind::Device, 1 << 40, MIB);
        t.write(&scratch.0.join("t.vtrace"));
        let output = ours(&scratch, &["report", "t.vtrace"]);
        assert!(output.status.success());
        text(&output.stderr)
    };
    for version in ["0.0.1", "99.1.0"] {
        let said = of(version);
        assert!(said.contains(&format!("recorded by vramtrace {version}; this is ")), "{said}");
    }
    assert_eq!(of(env!("CARGO_PKG_VERSION")), "");
}
