//! `vramtrace demo`: the recorded run that comes with the command is read without a GPU.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use testkit::Scratch;

#[test]
fn the_demo_explains_an_out_of_memory_on_one_screen() {
    let scratch = Scratch::new();
    let stdout = scratch.text("demo --out here");
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
    scratch.text("demo --out here");
    assert_eq!(std::fs::read(&page).unwrap(), b"mine");
    std::fs::write(scratch.0.join("here/recorded.vtrace"), "mine").unwrap();
    scratch.damaged_traces();
    scratch.fails(2, "demo --out here", "exists and is not the recorded run");
    assert_eq!(std::fs::read(scratch.0.join("here/recorded.vtrace")).unwrap(), b"mine");
}

#[test]
fn without_a_place_it_makes_a_directory_as_a_run_does() {
    let scratch = Scratch::new();
    scratch.text("demo");
    let made: Vec<_> = std::fs::read_dir(&scratch.0).unwrap().flatten().collect();
    assert_eq!(made.len(), 1);
    assert!(made[0].file_name().to_string_lossy().starts_with("vramtrace-"));
    assert!(made[0].path().join("recorded.vtrace").exists());
}

/// Who asked, by the innermost frame: function, file and line.
fn asker(holder: &Value) -> String {
    let frame = &holder["frames"][0];
    format!("{} {}:{}", frame["function"], frame["file"], frame["line"])
}

#[test]
fn every_command_gives_a_line_the_same_library() {
    let scratch = Scratch::recorded("assets/recorded.vtrace.gz");
    let frag = scratch.json("frag t.vtrace");
    let device = &frag["devices"][0];
    let moment = format!("holders t.vtrace --top 1000 --at {}s", device["at_s"]);
    let (by_line, by_stack) =
        (scratch.json(&moment), scratch.json(&format!("{moment} --by stack")));
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
