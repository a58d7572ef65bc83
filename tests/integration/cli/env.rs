//! `vramtrace env`: what it prints is what starts the recorder, in every place that it knows.

use std::process::{Command, Output};

use serde_json::Value;
use testkit::{Scratch, repository, shim, sim, sim_dir, vramtrace};

const PLACES: [&str; 4] = ["sh", "file", "json", "docker"];

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn env(args: &[&str]) -> Output {
    let mut command = vramtrace();
    command.arg("env").args(args).env_remove("VRAMTRACE_LIB");
    command.output().unwrap()
}

fn printed(args: &[&str]) -> String {
    let output = env(args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr).lines().count(), 1, "one line says where it belongs");
    text(&output.stdout)
}

fn library() -> String {
    shim().canonicalize().unwrap().display().to_string()
}

#[test]
fn every_place_gets_the_absolute_path_and_the_given_variables() {
    for place in PLACES {
        let text = printed(&["--for", place, "--cap", "12GiB", "--out", "/scratch/t/"]);
        for part in [&*library(), "LD_PRELOAD", "VRAMTRACE_CAP", "12GiB", "/scratch/t/"] {
            assert!(text.contains(part), "{place}: {part}: {text}");
        }
        let plain = printed(&["--for", place]);
        assert!(!plain.contains("VRAMTRACE_CAP"), "{place}: {plain}");
    }
}

#[test]
fn a_shell_that_evaluates_it_records_and_keeps_what_was_preloaded() {
    let scratch = Scratch::new();
    sim();
    std::fs::copy(repository().join("docs/programs/gpu.py"), scratch.0.join("gpu.py")).unwrap();
    let take = "python3 -c 'import gpu; gpu.Tensor(1 << 20)'";
    let script = "eval \"$($VRAMTRACE env --out traces/ 2>/dev/null)\"; echo $LD_PRELOAD; ";
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{script}{take}")]).current_dir(&scratch.0);
    let vramtrace = testkit::bin_dir().join("vramtrace");
    shell
        .env("VRAMTRACE", vramtrace)
        .env("LD_PRELOAD", "libm.so.6")
        .env("VRAMTRACE_SIM", "1x24GiB");
    let output = shell.env("LD_LIBRARY_PATH", sim_dir()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout).trim(), format!("{}:libm.so.6", library()));
    let traces = std::fs::read_dir(scratch.0.join("traces")).unwrap();
    assert_eq!(traces.count(), 1);
}

/// The commands are well-formed: a shell parses them, and the words arrive as they should.
#[test]
fn commands_give_each_variable_to_the_program() {
    let scratch = Scratch::new();
    for (place, before, after) in [("docker", "docker() { echo \"$@\"; }\n", ""), ("sh", "", "env")]
    {
        let text_of = printed(&["--for", place, "--out", "/a b/%p.vtrace"]);
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{before}{text_of}{after}")]).current_dir(&scratch.0);
        let output = shell.env_remove("LD_PRELOAD").output().unwrap();
        let out = text(&output.stdout);
        assert!(output.status.success(), "{place}: {}", text(&output.stderr));
        assert!(out.contains("/a b/%p.vtrace"), "{place}: {out}");
        assert!(!out.contains('\''), "{place}: {out}");
    }
}

#[test]
fn json_is_json_and_files_are_lines_of_variables() {
    let found: Value = serde_json::from_str(&printed(&["--for", "json"])).unwrap();
    assert_eq!(found["LD_PRELOAD"], library());
    let lines = printed(&["--for", "file", "--cap", "0=8GiB,1=50%"]);
    assert!(lines.lines().all(|line| line.split_once('=').is_some_and(|(name, _)| {
        name.chars().all(|c| c.is_ascii_uppercase() || c == '_' || c.is_ascii_digit())
    })));
    assert!(lines.contains("VRAMTRACE_CAP=0=8GiB,1=50%\n"), "{lines}");
}

/// The traces are found on the host, under the names that the recorder prints in the container.
#[test]
fn a_container_has_the_directory_of_the_traces_at_the_same_path() {
    for (out, directory, variable) in [
        ("/scratch/t", "/scratch/t", "VRAMTRACE_OUT=/scratch/t/ "),
        ("/scratch/t/", "/scratch/t", "VRAMTRACE_OUT=/scratch/t/ "),
        ("/scratch/t/%p.vtrace", "/scratch/t", "VRAMTRACE_OUT=/scratch/t/%p.vtrace "),
    ] {
        let docker = printed(&["--for", "docker", "--out", out]);
        assert!(docker.contains(&format!("  --volume {directory}:{directory} \\\n")), "{docker}");
        assert!(docker.contains(&format!("  --env {variable}")), "{docker}");
        assert!(!docker.contains("$PWD"), "{docker}");
    }
    let scratch = Scratch::new();
    let mut relative = vramtrace();
    relative.args(["env", "--for", "docker", "--out", "traces"]).current_dir(&scratch.0);
    let docker = text(&relative.env_remove("VRAMTRACE_LIB").output().unwrap().stdout);
    let directory = scratch.0.join("traces").display().to_string();
    assert!(docker.contains(&format!("--volume {directory}:{directory} ")), "{docker}");
    assert!(printed(&["--for", "docker"]).contains("/vramtrace:"));
}

#[test]
fn bad_values_are_refused() {
    for (args, part) in [
        (&["--for", "podman"][..], "possible values"),
        (&["--for", "docker", "--out", "/t/%h/"], "--out `/t/%h/`: a directory with a %"),
        (&["--cap", "8"], "8GiB"),
        (&["--out", "a\nb"], "line break"),
    ] {
        let output = env(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(part), "{}", text(&output.stderr));
    }
}
