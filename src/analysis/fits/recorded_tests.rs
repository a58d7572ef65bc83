//! Recorded runs whose peaks at other batches and lengths were measured.

use std::io::Read;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::tests::requests;
use super::*;
use crate::allocator::Conf;
use crate::trace::Trace;

/// Where the packed traces of `tests/data/fits` lie, unpacked.
struct Recordings(TempDir);

impl Recordings {
    fn read(&self, names: &[&str]) -> Vec<Recording> {
        let read = |name: &&str| {
            let path = self.unpacked(name);
            let trace = Trace::open(&path).unwrap();
            Recording::read(name, &trace, None, &Varied::default(), &Batches::Marked).unwrap()
        };
        names.iter().map(read).collect()
    }

    fn unpacked(&self, name: &str) -> PathBuf {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let packed = root.join(format!("tests/data/fits/{name}.vtrace.gz"));
        let mut bytes = Vec::new();
        let packed = std::fs::File::open(packed).unwrap();
        flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
        let path = self.0.path().join(format!("{name}.vtrace"));
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

/// A run without the recorder: `tests/data/fits/peaks.jsonl`, measured on an H100.
struct Peak {
    batch: u64,
    setting: String,
    allocated: u64,
    reserved: u64,
}

fn peaks(model: &str) -> Vec<Peak> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/fits/peaks.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let peak = |line: serde_json::Value| Peak {
        batch: line["batch"].as_str().unwrap().parse().unwrap(),
        setting: match line["setting"].as_str().unwrap() {
            "" => "default".to_string(),
            setting => setting.to_string(),
        },
        allocated: line["allocated"].as_u64().unwrap(),
        reserved: line["reserved"].as_u64().unwrap(),
    };
    lines.filter(|line| line["model"] == model).map(peak).collect()
}

#[test]
fn recorded_runs_are_scaled_to_the_peaks_of_real_ones() {
    let recordings = Recordings(tempfile::tempdir().unwrap());
    for (model, names, allocated, reserved) in [
        ("gpt2", &["gpt2_b4", "gpt2_b6"][..], 0.001, 0.005),
        ("gpt2", &["gpt2_b6-6-6-4"], 0.005, 0.006),
        ("bert-autocast", &["bert-autocast_b4", "bert-autocast_b6"], 0.005, 0.01),
        ("resnet50", &["resnet50_b16", "resnet50_b24"], 0.006, 0.065),
    ] {
        let runs = recordings.read(names);
        let truths = peaks(model);
        assert_eq!(truths.len(), 12, "{model}: six batches under two settings");
        let confs = ["default", "expandable_segments:True"];
        let confs = confs.map(|name| (name.to_string(), Conf::parse(name).unwrap()));
        let question = Question {
            varied: Varied::default(),
            card: Some(Card::of_size(24 << 30)),
            in_use: None,
            batches: truths.iter().map(|truth| truth.batch).collect(),
            confs: confs.to_vec(),
        };
        let answer = answer(&runs, &question).unwrap();
        for truth in truths {
            let of = |one: &&Predicted| one.batch == truth.batch && one.setting == truth.setting;
            let predicted = answer.predicted.iter().find(of).unwrap();
            for (interval, right, within) in [
                (predicted.allocated, truth.allocated, allocated),
                (predicted.reserved, truth.reserved, reserved),
            ] {
                let off = interval.expected as f64 / right as f64 - 1.0;
                let place = format!("{names:?} to {} {}: {off}", truth.batch, truth.setting);
                assert!(off.abs() <= within, "{place}");
                assert!((interval.low..=interval.high).contains(&right), "{place}, {interval:?}");
            }
        }
    }
}

#[test]
fn recorded_runs_are_given_back_at_their_batches() {
    let recordings = Recordings(tempfile::tempdir().unwrap());
    for names in [["gpt2_b4", "gpt2_b6"], ["resnet50_b16", "resnet50_b24"]] {
        let runs = recordings.read(&names);
        let scaling = Scaling::of(&runs).unwrap();
        let log = &scaling.base().recorded.log;
        assert_eq!(
            requests(&scaling.log(scaling.base_batch(), Bound::Expected, true)),
            requests(log)
        );
    }
}

/// Runs of another length of the samples, and not only of another batch: `tests/data/fits/lengths.jsonl`, measured on an H200.
#[test]
fn a_length_is_scaled_as_a_batch_is() {
    let recordings = Recordings(tempfile::tempdir().unwrap());
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("tests/data/fits/lengths.jsonl")).unwrap();
    let truths: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // What differs, its two recorded values, what stays the same, and the value that was also run.
    for (varied, recorded, same, names, asked) in [
        ("tokens", [256, 512], ("batch", 4), ["gpt2_b4_t256", "gpt2_b4_t512"], 768),
        ("batch", [4, 6], ("tokens", 256), ["gpt2_b4_t256", "gpt2_b6_t256"], 12),
    ] {
        let varied = Varied::new(varied).unwrap();
        let read = |(name, value): (&str, u64)| {
            let trace = Trace::open(&recordings.unpacked(name)).unwrap();
            Recording::read(name, &trace, None, &varied, &Batches::Each(value)).unwrap()
        };
        let runs: Vec<Recording> = names.into_iter().zip(recorded).map(read).collect();
        let confs = ["default", "expandable_segments:True"];
        let confs = confs.map(|name| (name.to_string(), Conf::parse(name).unwrap())).to_vec();
        let card = Some(Card::of_size(24 << 30));
        let varied_name = varied.name().to_string();
        let question = Question { varied, card, in_use: None, batches: vec![asked], confs };
        let answer = answer(&runs, &question).unwrap();
        assert_eq!(answer.predicted.len(), 2);
        for predicted in &answer.predicted {
            let setting = predicted.setting.replace("default", "");
            let is = |truth: &&serde_json::Value| {
                truth[&varied_name] == asked
                    && truth[same.0] == same.1
                    && truth["setting"] == *setting
            };
            let truth = truths.iter().find(is).unwrap();
            for (interval, name, within) in
                [(predicted.allocated, "allocated", 0.002), (predicted.reserved, "reserved", 0.005)]
            {
                let right = truth[name].as_u64().unwrap();
                let off = interval.expected as f64 / right as f64 - 1.0;
                let place = format!("{varied_name} {asked} {setting} {name}: {off}");
                assert!(off.abs() <= within, "{place}");
                assert!((interval.low..=interval.high).contains(&right), "{place}, {interval:?}");
            }
        }
    }
}
