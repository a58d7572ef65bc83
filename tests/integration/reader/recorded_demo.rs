//! `vramtrace demo`: the recorded run that comes with the command is read without a GPU.

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
    assert!(stdout.lines().count() <= 23, "{stdout}");
    assert!(stdout.lines().all(|line| line.chars().count() <= 100), "{stdout}");
    for part in [
        "\nvramtrace oom --short here/recorded.vtrace",
        "OUT OF MEMORY",
        "expandable_segments:True",
    ] {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
    assert!(scratch.0.join("here/recorded.vtrace").exists());
    assert!(run().status.success(), "once more, in the same place");
    std::fs::write(scratch.0.join("here/recorded.vtrace"), "mine").unwrap();
    let output = run();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("exists and is another"), "{}", text(&output.stderr));
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
