//! `vramtrace env`: what it prints is what starts the recorder, in every place that it knows.

use std::process::Command;

use testkit::{Said, Scratch, bin_dir, shim, sim, sim_dir};

const PLACES: [&str; 3] = ["sh", "file", "json"];

#[track_caller]
fn printed(args: &[&str]) -> String {
    let said = Scratch::new().says(&[&["env"], args].concat()).ended(0);
    assert_eq!(said.err.lines().count(), 1, "one line says where it belongs");
    said.out
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
    let scratch = Scratch::with_programs();
    sim();
    let take = "python3 -c 'import gpu; gpu.Tensor(1 << 20)'";
    let script = "eval \"$($VRAMTRACE env --out traces/ 2>/dev/null)\"; echo $LD_PRELOAD; ";
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{script}{take}")]).current_dir(&scratch.0);
    shell.env("VRAMTRACE", bin_dir().join("vramtrace")).env("LD_PRELOAD", "libm.so.6");
    shell.env("VRAMTRACE_SIM", "1x24GiB").env("LD_LIBRARY_PATH", sim_dir());
    let said = Said::by(&mut shell).ended(0);
    assert_eq!(said.out.trim(), format!("{}:libm.so.6", library()));
    assert_eq!(std::fs::read_dir(scratch.0.join("traces")).unwrap().count(), 1);
}

#[test]
fn json_is_json_and_files_are_lines_of_variables() {
    let found: serde_json::Value = serde_json::from_str(&printed(&["--for", "json"])).unwrap();
    assert_eq!(found["LD_PRELOAD"], library());
    let lines = printed(&["--for", "file", "--cap", "0=8GiB,1=50%"]);
    assert!(lines.lines().all(|line| line.split_once('=').is_some_and(|(name, _)| {
        name.chars().all(|c| c.is_ascii_uppercase() || c == '_' || c.is_ascii_digit())
    })));
    assert!(lines.contains("VRAMTRACE_CAP=0=8GiB,1=50%\n"), "{lines}");
}

#[test]
fn bad_values_are_refused() {
    for (args, part) in [
        (&["--for", "podman"][..], "possible values"),
        (&["--cap", "8"], "8GiB"),
        (&["--out", "a\nb"], "line break"),
    ] {
        let said = Scratch::new().says(&[&["env"], args].concat()).ended(2);
        assert!(said.err.contains(part), "{}", said.err);
    }
}
