//! `vramtrace demo`: the recorded run that comes with the command is read without a GPU.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use testkit::{Scratch, vramtrace};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_demo_explains_an_out_of_memory_on_one_screen() {
    let scratch = Scratch::new();
    let run =
        || vramtrace().current_dir(&scratch.0).args(["demo", "--out", "here"]).output().unwrap();
    let output = run();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    assert!(stdout.lines().count() <= 26, "{stdout}");
    assert!(stdout.lines().all(|line| line.chars().count() <= 100), "{stdout}");
    for part in [
        "\nvramtrace oom --short here/recorded.vtrace",
        "OUT OF MEMORY",
        "expandable_segments:True",
        "\nvramtrace fits --short here/batches --card 24GiB",
        "\nbatch 24 fits, 25 does not on 24.00 GiB\n",
    ] {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
    assert!(scratch.0.join("here/recorded.vtrace").exists());
    assert!(stdout.contains("\nAs a page:     here/recorded.html\n"), "{stdout}");
    let page = scratch.0.join("here/recorded.html");
    assert!(std::fs::read_to_string(&page).unwrap().starts_with("<!doctype html>"));
    std::fs::write(&page, "mine").unwrap();
    assert!(run().status.success(), "once more, in the same place");
    assert_eq!(std::fs::read(&page).unwrap(), b"mine");
    std::fs::write(scratch.0.join("here/recorded.vtrace"), "mine").unwrap();
    scratch.damaged_traces();
    let output = run();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("exists and is not the recorded run"),
        "{}",
        text(&output.stderr)
    );
    assert_eq!(std::fs::read(scratch.0.join("here/recorded.vtrace")).unwrap(), b"mine");
}

#[test]
fn without_a_place_it_makes_a_directory_as_a_run_does() {
    let scratch = Scratch::new();
    let output = vramtrace().current_dir(&scratch.0).arg("demo").output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let made: Vec<_> = std::fs::read_dir(&scratch.0).unwrap().flatten().collect();
    assert_eq!(made.len(), 1);
    assert!(made[0].file_name().to_string_lossy().starts_with("vramtrace-"));
    assert!(made[0].path().join("recorded.vtrace").exists());
}

#[test]
fn a_recording_is_not_simulated() {
    let output = vramtrace().args(["demo", "--recorded", "--simulate"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

/// Who asked, by the innermost frame: function, file and line.
fn asker(holder: &Value) -> String {
    let frame = &holder["frames"][0];
    format!("{} {}:{}", frame["function"], frame["file"], frame["line"])
}

#[test]
fn every_command_gives_a_line_the_same_library() {
    let scratch = Scratch::new();
    let recorded = scratch.0.join("here/recorded.vtrace");
    let output = vramtrace().current_dir(&scratch.0).args(["demo", "--out", "here"]).output();
    assert!(output.unwrap().status.success());
    let ask = |arguments: &[&str]| -> Value {
        let output = vramtrace().args(arguments).arg("--json").arg(&recorded).output().unwrap();
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{}", text(&output.stderr)))
    };
    let frag = ask(&["frag"]);
    let device = &frag["devices"][0];
    let moment = format!("{}s", device["at_s"]);
    let by_line = ask(&["holders", "--at", &moment, "--top", "1000"]);
    let by_stack = ask(&["holders", "--at", &moment, "--by", "stack", "--top", "1000"]);
    let mut libraries: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut of_frag = 0;
    for (command, holders) in [
        ("frag", &device["holders"]),
        ("holders", &by_line["holders"]),
        ("holders by stack", &by_stack["holders"]),
    ] {
        for holder in holders.as_array().unwrap() {
            // A native frame's file is the object, and one object's function serves many libraries.
            if holder["frames"][0]["language"] != "python" {
                continue;
            }
            of_frag += u32::from(command == "frag");
            let library = holder["library"].to_string();
            libraries.entry(asker(holder)).or_default().insert(library);
        }
    }
    assert!(of_frag > 10, "{device}");
    let several: Vec<_> = libraries.iter().filter(|(_, names)| names.len() > 1).collect();
    assert!(several.is_empty(), "{several:#?}");
    // Of the code that asked, not of the library that PyTorch dispatched to.
    let gelu = libraries.iter().find(|(asker, _)| asker.contains("NewGELUActivation.forward"));
    assert_eq!(gelu.unwrap().1, &BTreeSet::from(["\"transformers\"".to_string()]));
}
