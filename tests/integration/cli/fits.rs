//! `vramtrace fits`: which batch fits, of runs that were recorded on an H100.

use std::io::Read;
use std::process::Output;

use serde_json::{Value, json};
use testkit::{Scratch, has, repository, trace_builder, vramtrace};

fn unpack(scratch: &Scratch, names: &[&str]) {
    for name in names {
        let packed = repository().join(format!("tests/data/fits/{name}.vtrace.gz"));
        let packed = std::fs::File::open(packed).unwrap();
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
        std::fs::write(scratch.0.join(format!("{name}.vtrace")), bytes).unwrap();
    }
}

fn fits(scratch: &Scratch, args: &[&str]) -> Output {
    vramtrace().arg("fits").args(args).current_dir(&scratch.0).output().unwrap()
}

const TWO: [&str; 2] = ["gpt2_b4.vtrace", "gpt2_b6.vtrace"];

/// Exit status, stdout and stderr.
#[track_caller]
fn said(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn two_recorded_batches_answer_which_batch_fits() {
    let scratch = Scratch::new();
    unpack(&scratch, &["gpt2_b4", "gpt2_b6"]);
    let asked = [&TWO[..], &["--recorded", "batch=4,6", "--card", "24GiB"]].concat();
    let (code, text, errors) = said(fits(&scratch, &asked));
    assert_eq!((code, &*errors), (Some(0), ""), "{text}");
    assert!(text.starts_with("batch 24 fits, 25 does not on 24.00 GiB\n"), "{text}");
    let page = std::fs::read_to_string(repository().join("docs/fits.md")).unwrap();
    assert!(page.contains(&text), "docs/fits.md shows what is printed:\n{text}");
    // The marks of the program name the batches.
    let marked = [&TWO[..], &["--capacity", "24GiB"]].concat();
    assert_eq!(said(fits(&scratch, &marked)).1, text);
    // What others use is not there for the program.
    let (_, less, _) = said(fits(&scratch, &[&asked[..], &["--in-use", "4GiB"]].concat()));
    assert!(less.contains("4.00 GiB of it in use") && !less.contains("batch 24 fits"), "{less}");
}

#[test]
fn batches_that_are_asked_for_have_a_verdict_and_an_exit_status() {
    let scratch = Scratch::new();
    unpack(&scratch, &["gpt2_b4", "gpt2_b6"]);
    let with = |more: &[&str]| fits(&scratch, &[&TWO[..], &["--card", "24GiB"], more].concat());
    let json = |output: &Output| serde_json::from_slice::<Value>(&output.stdout).unwrap();
    let fitting = with(&["--batch", "8,12", "--json"]);
    assert_eq!(fitting.status.code(), Some(0));
    let all = json(&fitting);
    assert_eq!(all["schema"], "vramtrace.fits/1");
    assert_eq!(all["predictions"].as_array().unwrap().len(), 4, "two batches, two settings");
    assert_eq!(all["predictions"][0]["verdict"], "fits");
    assert_eq!(all["card"]["bytes"], 24u64 << 30);
    has(&all["settings"][0], json!({ "fits": 24, "does_not_fit": 25 }));
    let large = with(&["--batch", "40", "--json"]);
    assert_eq!(large.status.code(), Some(1));
    assert_eq!(json(&large)["predictions"][0]["verdict"], "does not fit");
    let close = with(&["--batch", "26", "--conf", "expandable_segments:True", "--json"]);
    assert_eq!(close.status.code(), Some(1));
    assert_eq!(json(&close)["predictions"][0]["verdict"], "too close to say");
}

#[test]
fn values_in_another_order_than_the_traces_are_an_error() {
    let scratch = Scratch::new();
    unpack(&scratch, &["gpt2_b4", "gpt2_b6"]);
    let swapped = [&TWO[..], &["--recorded", "batch=6,4"]].concat();
    let (code, text, errors) = said(fits(&scratch, &swapped));
    assert_eq!((code, &*text), (Some(2), ""));
    assert!(
        errors.contains("--recorded names 6 for gpt2_b4.vtrace, whose marks name 4"),
        "{errors}"
    );
    // Without marks the memory tells.
    let unmarked = [&TWO[..], &["--recorded", "size=6,4"]].concat();
    let (code, _, errors) = said(fits(&scratch, &unmarked));
    assert_eq!(code, Some(2));
    assert!(errors.contains("allocated less than gpt2_b6.vtrace"), "{errors}");
}

#[test]
fn a_card_of_another_architecture_has_no_verdict() {
    let scratch = Scratch::new();
    unpack(&scratch, &["gpt2_b4", "gpt2_b6"]);
    let (code, text, _) = said(fits(&scratch, &[&TWO[..], &["--card", "rtx4090"]].concat()));
    assert_eq!(code, Some(3));
    assert!(text.contains("recorded on Hopper, never tried on Ada"), "{text}");
    assert!(!text.contains("fits"), "{text}");
    let asked = ["--card", "RTX 4090", "--batch", "8", "--json"];
    let output = fits(&scratch, &[&TWO[..], &asked].concat());
    assert_eq!(output.status.code(), Some(3));
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(all["card"]["verdict"], false);
    assert_eq!(all["predictions"][0]["verdict"], Value::Null);
    let (code, text, _) = said(fits(&scratch, &[&TWO[..], &["--card", "H200"]].concat()));
    assert!(code == Some(0) && text.contains("on H200 ("), "{text}");
}

#[test]
fn one_trace_serves_where_its_batches_differ_or_says_what_another_would_tell() {
    let scratch = Scratch::new();
    unpack(&scratch, &["gpt2_b6-6-6-4", "gpt2_b6"]);
    let (code, text, _) = said(fits(&scratch, &["gpt2_b6-6-6-4.vtrace", "--card", "24GiB"]));
    assert_eq!(code, Some(0));
    assert!(text.starts_with("batch 24 fits, 25 does not on 24.00 GiB\n"), "{text}");
    let named = ["gpt2_b6-6-6-4.vtrace", "--recorded", "batch=6,6,6,4", "--card", "24GiB"];
    assert_eq!(said(fits(&scratch, &named)).1, text);
    let (code, text, _) = said(fits(&scratch, &["gpt2_b6.vtrace", "--card", "24GiB"]));
    assert_eq!(code, Some(0));
    assert!(text.contains("only batch 6 was recorded"), "{text}");
    assert!(text.contains("a second short run, at another batch"), "{text}");
}

#[test]
fn what_cannot_be_answered_is_an_error_that_says_what_would_be_right() {
    let scratch = Scratch::new();
    unpack(&scratch, &["gpt2_b4", "gpt2_b6", "resnet50_b16"]);
    // One of the traces is cut.
    scratch.contradicts();
    trace_builder::training().write(&scratch.0.join("plain.vtrace"));
    let cut = std::fs::read(scratch.0.join("gpt2_b4.vtrace")).unwrap();
    std::fs::write(scratch.0.join("cut.vtrace"), &cut[..cut.len() / 2]).unwrap();
    let both = |more: &[&'static str]| [&TWO[..], more].concat();
    let with_length = |more: &[&'static str]| {
        both(&[&["--recorded", "batch", "--recorded", "length=8,9"], more].concat())
    };
    for (args, part) in [
        (vec!["gpt2_b4.vtrace", "resnet50_b16.vtrace"], "cannot be compared: only 0 %"),
        (vec!["plain.vtrace"], "cannot be compared: plain.vtrace: PyTorch was there"),
        (vec!["no-such.vtrace"], "no-such.vtrace"),
        (both(&["--recorded", "4,6"]), "--recorded 4,6: give a name and numbers"),
        (both(&["--recorded", "batch=4"]), "1 for 2 traces: give one for each"),
        (both(&["--recorded", "batch=4,x"]), "numbers of 1 or more"),
        (both(&["--recorded", "batch=0,6"]), "numbers of 1 or more"),
        (vec!["gpt2_b4.vtrace", "--recorded", "batch=4,6"], "which has 3 whole steps"),
        (both(&["--card", "RTX 9999"]), "RTX 3060"),
        (both(&["--in-use", "much"]), "--in-use much"),
        (both(&["--batch", "0"]), "--batch 0"),
        (both(&["--conf", "max_split:1"]), "--conf \"max_split:1\""),
        (both(&["--conf", "backend:cudaMallocAsync"]), "no cache of PyTorch's"),
        (both(&["--device", "3"]), "PyTorch took no memory of device 3"),
        (both(&["--at", "length=9"]), "only the batch differs between these runs"),
        (both(&["--length", "9"]), "--length: the answer is about the batch of these runs"),
        (both(&["--recorded", "batch=4,6", "--recorded", "batch=4,6"]), "two with different names"),
        (both(&["--recorded", "batch", "--recorded", "length"]), "its length is not known"),
        (with_length(&["--at", "size=9"]), "--at size=9: give batch=N or length=N"),
        (with_length(&["--at", "length=0"]), "--at length=0: give batch=N or length=N"),
        (with_length(&["--at", "batch=8", "--batch", "9"]), "give --length"),
        (with_length(&["--recorded", "x=1,2"]), "give one number that differs, or two"),
        (
            vec![
                "gpt2_b4.vtrace",
                "resnet50_b16.vtrace",
                "--recorded",
                "batch",
                "--recorded",
                "length=8,9",
            ],
            "cannot be compared: only 0 %",
        ),
    ] {
        let (code, text, errors) = said(fits(&scratch, &args));
        assert!(code == Some(2) && errors.contains(part), "{args:?}: {code:?} {text} {errors}");
    }
    // Half of a trace: an answer or an error, and no more.
    let (code, ..) = said(fits(&scratch, &["cut.vtrace", "gpt2_b6.vtrace"]));
    assert!(matches!(code, Some(0..=2)), "{code:?}");
}

/// Runs at two batches and two lengths, without marks.
const THREE: [&str; 3] = ["gpt2_b4_t256.vtrace", "gpt2_b6_t256.vtrace", "gpt2_b4_t512.vtrace"];
const THREE_VALUES: [&str; 4] = ["--recorded", "batch=4,6,4", "--recorded", "length=256,256,512"];

#[test]
fn a_batch_and_a_length_that_differ_answer_which_of_either_fits() {
    let scratch = Scratch::new();
    unpack(&scratch, &["gpt2_b4_t256", "gpt2_b6_t256", "gpt2_b4_t512"]);
    let asked = |more: &[&str]| {
        said(fits(&scratch, &[&THREE[..], &THREE_VALUES, &["--card", "24GiB"], more].concat()))
    };
    let (code, text, errors) = asked(&[]);
    assert_eq!((code, &*errors), (Some(0), ""), "{text}");
    assert!(text.starts_with("batch 24 at length 512 fits, 25 does not on 24.00 GiB\n"), "{text}");
    assert!(text.contains("gpt2_b6_t256.vtrace: batch 6 length 256, reserved"), "{text}");
    let (code, text, _) = asked(&["--at", "length=1024", "--batch", "6,40"]);
    assert!(text.starts_with("batch 12 at length 1024 fits, 13 does not on 24.00 GiB\n"), "{text}");
    assert!(code == Some(1) && text.contains("does not fit"), "batch 40: {text}");
    let (code, text, _) = asked(&["--at", "batch=8"]);
    assert!(code == Some(0) && text.starts_with("length 1536 at batch 8 fits, "), "{text}");
    let page = std::fs::read_to_string(repository().join("docs/fits.md")).unwrap();
    assert!(page.contains(&text), "docs/fits.md shows what is printed:\n{text}");
    // The order of the two makes no difference.
    let swapped = [&THREE[..], &THREE_VALUES[2..], &THREE_VALUES[..2], &["--card", "24GiB"]];
    let swapped = [&swapped.concat()[..], &["--at", "batch=8"]].concat();
    assert_eq!(said(fits(&scratch, &swapped)).1, text);
    let json = ["--at", "batch=8", "--length", "512", "--json"];
    let all: Value = serde_json::from_str(&asked(&json).1).unwrap();
    assert_eq!(all["varied"], "length");
    has(&all["at"], json!({ "name": "batch", "value": 8 }));
    assert_eq!(all["recorded"][2]["values"][0][1]["value"], 512);
    assert_eq!(all["predictions"][0]["value"], 512);
    let laws = all["laws"].as_array().unwrap().iter();
    let bytes =
        |law: &str| laws.clone().find(|one| one["law"] == law).unwrap()["bytes"].as_u64().unwrap();
    assert!(bytes("batch x length") > 10 * bytes("unknown"), "{all:#}");
}

#[test]
fn a_length_that_was_not_varied_is_not_guessed() {
    let scratch = Scratch::new();
    unpack(&scratch, &["gpt2_b4_t256", "gpt2_b6_t256"]);
    let two = ["gpt2_b4_t256.vtrace", "gpt2_b6_t256.vtrace", "--recorded", "batch=4,6"];
    let asked = |more: &[&str]| {
        let length = ["--recorded", "length=256,256", "--card", "24GiB"];
        said(fits(&scratch, &[&two[..], &length, more].concat())).1
    };
    let text = asked(&["--at", "length=1024"]);
    assert!(text.contains("; too close to say between "), "{text}");
    assert!(text.contains("only length 256 was recorded"), "{text}");
    assert!(asked(&[]).starts_with("batch 48 at length 256 fits, 50 does not"), "{}", asked(&[]));
}

#[test]
fn report_names_the_command_where_marks_name_two_batches() {
    let scratch = Scratch::new();
    unpack(&scratch, &["gpt2_b4", "gpt2_b6", "gpt2_b6-6-6-4"]);
    let report = |args: &[&str]| {
        let output = vramtrace().arg("report").args(args).current_dir(&scratch.0).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let command = |text: &str| {
        let line = text.lines().find(|line| line.starts_with("vramtrace fits"))?;
        Some(line.split("  ").next().unwrap().to_string())
    };
    for (traces, given) in [
        (&["gpt2_b6-6-6-4.vtrace"][..], "vramtrace fits gpt2_b6-6-6-4.vtrace"),
        (&TWO, "vramtrace fits gpt2_b4.vtrace gpt2_b6.vtrace"),
    ] {
        assert_eq!(command(&report(traces)).as_deref(), Some(given));
        let words: Vec<&str> = given.split(' ').skip(2).chain(["--card", "24GiB"]).collect();
        let (code, text, _) = said(fits(&scratch, &words));
        assert!(code == Some(0) && text.starts_with("batch 24 fits"), "{text}");
    }
    // The answer stands behind the command.
    for traces in [&["gpt2_b6-6-6-4.vtrace"][..], &TWO] {
        let answer = said(fits(&scratch, &[traces, &["--short"]].concat())).1;
        assert!(answer.contains(" fits, ") && answer.contains("NVIDIA H100"), "{answer}");
        let behind = format!("   # {}; --card 24GiB: on another\n", answer.trim_end());
        let text = report(traces);
        assert!(text.contains(&behind), "{text}");
    }
    assert_eq!(command(&report(&["gpt2_b4.vtrace"])), None, "one batch tells little");
    let all: Value = serde_json::from_str(&report(&[&TWO[..], &["--json"]].concat())).unwrap();
    let batches = |process: &Value| process["marked_batches"].clone();
    let found: Vec<Value> = all["processes"].as_array().unwrap().iter().map(batches).collect();
    assert!(found.len() == 2 && found.contains(&vec![4].into()) && found.contains(&vec![6].into()));
}

#[test]
fn a_directory_stands_for_its_traces_where_marks_name_the_batches() {
    let scratch = Scratch::new();
    unpack(&scratch, &["gpt2_b4", "gpt2_b6"]);
    let (code, line, _) = said(fits(&scratch, &[".", "--card", "24GiB", "--short"]));
    assert_eq!((code, &*line), (Some(0), "batch 24 fits, 25 does not on 24.00 GiB\n"));
    let (code, _, errors) = said(fits(&scratch, &[".", "--recorded", "batch=4,6"]));
    assert!(code == Some(2) && errors.contains("it has 2 processes"), "{errors}");
}
