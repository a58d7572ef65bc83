//! `vramtrace fits`: which batch fits, of runs that were recorded on an H100.

use serde_json::{Value, json};
use testkit::{Said, Scratch, flat, has, repository, trace_builder, unpacked};

fn with(names: &[&str]) -> Scratch {
    let scratch = Scratch::new();
    for name in names {
        let bytes = unpacked(&format!("tests/data/fits/{name}.vtrace.gz"));
        scratch.write(&format!("{name}.vtrace"), bytes);
    }
    scratch
}

/// `vramtrace fits` with the words of a line.
fn fits(scratch: &Scratch, line: &str) -> Said {
    scratch.says(&["fits"].into_iter().chain(line.split(' ')).collect::<Vec<_>>())
}

const TWO: &str = "gpt2_b4.vtrace gpt2_b6.vtrace";

/// A page shows what is printed.
#[track_caller]
fn shown_by_page(text: &str) {
    let page = std::fs::read_to_string(repository().join("docs/fits.md")).unwrap();
    assert!(page.contains(text), "docs/fits.md shows what is printed:\n{text}");
}

#[test]
fn two_recorded_batches_answer_which_batch_fits() {
    let scratch = with(&["gpt2_b4", "gpt2_b6"]);
    let asked = format!("{TWO} --recorded batch=4,6 --card 24GiB");
    let said = fits(&scratch, &asked).ended(0);
    assert_eq!(said.err, "");
    assert!(said.out.starts_with("batch 24 fits, 25 does not on 24.00 GiB\n"), "{}", said.out);
    shown_by_page(&said.out);
    // The marks of the program name the batches.
    assert_eq!(fits(&scratch, &format!("{TWO} --capacity 24GiB")).out, said.out);
    // What others use is not there for the program.
    let less = fits(&scratch, &format!("{asked} --in-use 4GiB")).out;
    assert!(less.contains("4.00 GiB of it in use") && !less.contains("batch 24 fits"), "{less}");
}

#[test]
fn batches_that_are_asked_for_have_a_verdict_and_an_exit_status() {
    let scratch = with(&["gpt2_b4", "gpt2_b6"]);
    let with = |more: &str| fits(&scratch, &format!("{TWO} --card 24GiB --json --batch {more}"));
    let all = with("8,12").ended(0).json();
    assert_eq!(all["predictions"].as_array().unwrap().len(), 4, "two batches, two settings");
    assert_eq!(all["card"]["bytes"], 24u64 << 30);
    has(&all["settings"][0], json!({ "fits": 24, "does_not_fit": 25 }));
    for (more, code, verdict) in [
        ("8,12", 0, "fits"),
        ("40", 1, "does not fit"),
        ("26 --conf expandable_segments:True", 1, "too close to say"),
    ] {
        assert_eq!(with(more).ended(code).json()["predictions"][0]["verdict"], verdict);
    }
}

#[test]
fn a_card_of_another_architecture_has_no_verdict() {
    let scratch = with(&["gpt2_b4", "gpt2_b6"]);
    let text = fits(&scratch, &format!("{TWO} --card rtx4090")).ended(3).out;
    assert!(text.contains("recorded on Hopper, never tried on Ada"), "{text}");
    assert!(!text.contains("fits"), "{text}");
    let traces: Vec<&str> = TWO.split(' ').collect();
    let asked = ["fits", traces[0], traces[1], "--card", "RTX 4090", "--batch", "8", "--json"];
    let all = scratch.says(&asked).ended(3).json();
    assert_eq!(all["card"]["verdict"], false);
    assert_eq!(all["predictions"][0]["verdict"], Value::Null);
    let text = fits(&scratch, &format!("{TWO} --card H200")).ended(0).out;
    assert!(text.contains("on H200 ("), "{text}");
}

#[test]
fn one_trace_serves_where_its_batches_differ_or_says_what_another_would_tell() {
    let scratch = with(&["gpt2_b6-6-6-4", "gpt2_b6"]);
    let text = fits(&scratch, "gpt2_b6-6-6-4.vtrace --card 24GiB").ended(0).out;
    assert!(text.starts_with("batch 24 fits, 25 does not on 24.00 GiB\n"), "{text}");
    let named = "gpt2_b6-6-6-4.vtrace --recorded batch=6,6,6,4 --card 24GiB";
    assert_eq!(fits(&scratch, named).out, text);
    let text = fits(&scratch, "gpt2_b6.vtrace --card 24GiB").ended(0).out;
    assert!(text.contains("only batch 6 was recorded"), "{text}");
    assert!(text.contains("a second short run, at another batch"), "{text}");
}

#[test]
fn what_cannot_be_answered_is_an_error_that_says_what_would_be_right() {
    let scratch = with(&["gpt2_b4", "gpt2_b6", "resnet50_b16"]);
    // One of the traces is cut.
    scratch.contradicts();
    trace_builder::training().write(&scratch.0.join("plain.vtrace"));
    let cut = std::fs::read(scratch.0.join("gpt2_b4.vtrace")).unwrap();
    scratch.write("cut.vtrace", &cut[..cut.len() / 2]);
    let lengths = "--recorded batch --recorded length=8,9";
    for (line, part) in [
        ("gpt2_b4.vtrace resnet50_b16.vtrace", "cannot be compared: only 0 %"),
        ("gpt2_b4.vtrace resnet50_b16.vtrace LENGTHS", "cannot be compared: only 0 %"),
        ("plain.vtrace", "cannot be compared: plain.vtrace: PyTorch was there"),
        ("no-such.vtrace", "no-such.vtrace"),
        ("gpt2_b4.vtrace --recorded batch=4,6", "which has 3 whole steps"),
        ("TWO --recorded 4,6", "--recorded 4,6: give a name and numbers"),
        ("TWO --recorded batch=4", "1 for 2 traces: give one for each"),
        ("TWO --recorded batch=4,x", "numbers of 1 or more"),
        ("TWO --recorded batch=0,6", "numbers of 1 or more"),
        ("TWO --recorded batch=6,4", "names 6 for gpt2_b4.vtrace, whose marks name 4"),
        // Without marks the memory tells.
        ("TWO --recorded size=6,4", "allocated less than gpt2_b6.vtrace"),
        ("TWO --card RTX9999", "RTX 3060"),
        ("TWO --in-use much", "--in-use much"),
        ("TWO --batch 0", "--batch 0"),
        ("TWO --conf max_split:1", "--conf \"max_split:1\""),
        ("TWO --conf backend:cudaMallocAsync", "no cache of PyTorch's"),
        ("TWO --device 3", "PyTorch took no memory of device 3"),
        ("TWO --at length=9", "only the batch differs between these runs"),
        ("TWO --length 9", "--length: the answer is about the batch of these runs"),
        ("TWO --recorded batch=4,6 --recorded batch=4,6", "two with different names"),
        ("TWO --recorded batch --recorded length", "its length is not known"),
        ("TWO LENGTHS --at size=9", "--at size=9: give batch=N or length=N"),
        ("TWO LENGTHS --at length=0", "--at length=0: give batch=N or length=N"),
        ("TWO LENGTHS --at batch=8 --batch 9", "give --length"),
        ("TWO LENGTHS --recorded x=1,2", "give one number that differs, or two"),
        (". --recorded batch=4,6", "it has 4 processes"),
    ] {
        let said = fits(&scratch, &line.replace("TWO", TWO).replace("LENGTHS", lengths));
        assert!(said.code == Some(2) && said.err.contains(part), "{line}: {said:?}");
        assert_eq!(said.out, "", "{line}");
    }
    // Half of a trace: an answer or an error, and no more.
    let said = fits(&scratch, "cut.vtrace gpt2_b6.vtrace");
    assert!(matches!(said.code, Some(0..=2)), "{said:?}");
}

/// Runs at two batches and two lengths, without marks.
const THREE: &str = "gpt2_b4_t256.vtrace gpt2_b6_t256.vtrace gpt2_b4_t512.vtrace --card 24GiB";
const BATCHES: &str = "--recorded batch=4,6,4";
const LENGTHS: &str = "--recorded length=256,256,512";

#[test]
fn a_batch_and_a_length_that_differ_answer_which_of_either_fits() {
    let scratch = with(&["gpt2_b4_t256", "gpt2_b6_t256", "gpt2_b4_t512"]);
    let asked = |more: &str| fits(&scratch, &format!("{THREE} {BATCHES} {LENGTHS}{more}"));
    let said = asked("").ended(0);
    assert_eq!(said.err, "");
    let text = said.out;
    assert!(text.starts_with("batch 24 at length 512 fits, 25 does not on 24.00 GiB\n"), "{text}");
    assert!(text.contains("gpt2_b6_t256.vtrace: batch 6 length 256, reserved"), "{text}");
    let text = asked(" --at length=1024 --batch 6,40").ended(1).out;
    assert!(text.starts_with("batch 12 at length 1024 fits, 13 does not on 24.00 GiB\n"), "{text}");
    assert!(text.contains("does not fit"), "batch 40: {text}");
    let text = asked(" --at batch=8").ended(0).out;
    assert!(text.starts_with("length 1536 at batch 8 fits, "), "{text}");
    shown_by_page(&text);
    // The order of the two makes no difference.
    let swapped = fits(&scratch, &format!("{THREE} {LENGTHS} {BATCHES} --at batch=8"));
    assert_eq!(swapped.out, text);
    let all = asked(" --at batch=8 --length 512 --json").json();
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
    let scratch = with(&["gpt2_b4_t256", "gpt2_b6_t256"]);
    let two = "gpt2_b4_t256.vtrace gpt2_b6_t256.vtrace --recorded batch=4,6 \
        --recorded length=256,256 --card 24GiB";
    let text = fits(&scratch, &format!("{two} --at length=1024")).out;
    assert!(text.contains("; too close to say between "), "{text}");
    assert!(text.contains("only length 256 was recorded"), "{text}");
    let text = fits(&scratch, two).out;
    assert!(text.starts_with("batch 48 at length 256 fits, 50 does not"), "{text}");
}

#[test]
fn report_names_the_command_where_marks_name_two_batches() {
    let scratch = with(&["gpt2_b4", "gpt2_b6", "gpt2_b6-6-6-4"]);
    let command = |text: &str| {
        let line = text.lines().find(|line| line.starts_with("vramtrace fits"))?;
        Some(flat(line))
    };
    for traces in ["gpt2_b6-6-6-4.vtrace", TWO] {
        // The answer stands behind the command.
        let answer = fits(&scratch, &format!("{traces} --short")).out;
        assert!(answer.contains(" fits, ") && answer.contains("NVIDIA H100"), "{answer}");
        let answer = answer.trim_end();
        let given = format!("vramtrace fits {traces} # {answer}; --card 24GiB: on another");
        assert_eq!(command(&scratch.text(&format!("report {traces}"))), Some(given));
    }
    assert_eq!(command(&scratch.text("report gpt2_b4.vtrace")), None, "one batch tells little");
    let all = scratch.json(&format!("report {TWO}"));
    let batches = |process: &Value| process["marked_batches"].clone();
    let found: Vec<Value> = all["processes"].as_array().unwrap().iter().map(batches).collect();
    assert!(found.len() == 2 && found.contains(&vec![4].into()) && found.contains(&vec![6].into()));
}

#[test]
fn a_directory_stands_for_its_traces_where_marks_name_the_batches() {
    let scratch = with(&["gpt2_b4", "gpt2_b6"]);
    let said = fits(&scratch, ". --card 24GiB --short").ended(0);
    assert_eq!(said.out, "batch 24 fits, 25 does not on 24.00 GiB\n");
}
