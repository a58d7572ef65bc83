//! Every `--json` output is what its schema in docs/schemas says: over all kept traces, a live
//! process, a run that fails on a leak, and `doctor`.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Output;

use jsonschema::Validator;
use serde_json::Value;
use testkit::{Scratch, repository, shim, sim, sim_dir, vramtrace};

fn schemas() -> BTreeMap<String, Validator> {
    let folder = repository().join("docs/schemas");
    let entries = std::fs::read_dir(folder).unwrap();
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let schema: Value = serde_json::from_str(&text).unwrap();
        let name = schema["title"].as_str().unwrap().to_string();
        let file = format!("{}.json", name.replace('/', "-"));
        assert_eq!(path.file_name().unwrap().to_str().unwrap(), file);
        (name, jsonschema::validator_for(&schema).unwrap())
    };
    entries.map(|entry| read(entry.unwrap().path())).collect()
}

/// Checks documents, and counts them by schema.
struct Checker {
    schemas: BTreeMap<String, Validator>,
    seen: BTreeMap<String, usize>,
}

impl Checker {
    fn new() -> Checker {
        Checker { schemas: schemas(), seen: BTreeMap::new() }
    }

    fn check(&mut self, what: &str, text: &[u8]) {
        let document: Value = serde_json::from_slice(text)
            .unwrap_or_else(|error| panic!("{what}: {error}: {}", String::from_utf8_lossy(text)));
        let name = document["schema"].as_str().unwrap().to_string();
        let schema = self.schemas.get(&name).unwrap_or_else(|| panic!("no schema for {name}"));
        let errors: Vec<String> = schema
            .iter_errors(&document)
            .map(|error| format!("{} at {}", error, error.instance_path))
            .take(5)
            .collect();
        assert!(errors.is_empty(), "{what}: not {name}: {errors:#?}");
        *self.seen.entry(name).or_default() += 1;
    }
}

fn unpack(from: &Path, to: &Path) -> PathBuf {
    let name = from.file_name().unwrap().to_str().unwrap().trim_end_matches(".gz");
    let mut bytes = Vec::new();
    let packed = std::fs::File::open(from).unwrap();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
    let to = to.join(name);
    std::fs::write(&to, bytes).unwrap();
    to
}

fn output(scratch: &Scratch, args: &[&str]) -> Output {
    let mut command = vramtrace();
    for name in ["LD_PRELOAD", "VRAMTRACE_OUT", "VRAMTRACE_CAP"] {
        command.env_remove(name);
    }
    command.args(args).current_dir(&scratch.0).output().unwrap()
}

const READING: [&[&str]; 14] = [
    &["tree", "--json"],
    &["holders", "--json", "--by", "role"],
    &["verify", "--json"],
    &["report", "--json"],
    &["report", "--json", "--by", "phase", "--at", "peak"],
    &["report", "--json", "--by", "step"],
    &["holders", "--json"],
    &["holders", "--json", "--at", "end", "--by", "library"],
    &["leaks", "--json"],
    &["oom", "--json", "--at", "all"],
    &["frag", "--json"],
    &["whatif", "--json"],
    &["whatif", "--json", "--capacity", "1GiB"],
    &["fits", "--recorded", "batch=4", "--batch", "8", "--json", "--card", "1GiB"],
];

#[test]
fn every_document_of_the_kept_traces_is_what_its_schema_says() {
    let scratch = Scratch::new();
    // One of the kept traces is of a program that gave wrong figures.
    scratch.contradicts();
    let mut checker = Checker::new();
    let mut sources = vec![
        repository().join("assets/recorded.vtrace.gz"),
        repository().join("tests/data/torch_snapshot_2.11.pickle.gz"),
    ];
    let golden = std::fs::read_dir(repository().join("tests/data/golden")).unwrap();
    let golden = golden.map(|entry| entry.unwrap().path());
    sources.extend(golden.filter(|path| path.extension().is_some_and(|end| end == "gz")));
    assert!(sources.len() > 20);
    let mut before: Option<String> = None;
    for source in sources {
        let trace = unpack(&source, &scratch.0);
        let name = trace.file_name().unwrap().to_str().unwrap();
        for args in READING {
            let output = output(&scratch, &[args, &[name]].concat());
            // Without blocks or stacks some commands have nothing to say: they exit with 2.
            if output.status.code() != Some(2) {
                checker.check(&format!("{args:?} {name}"), &output.stdout);
            }
        }
        // With itself, where nothing grew, and with another run.
        for other in [Some(name), before.as_deref()].into_iter().flatten() {
            let output = output(&scratch, &["diff", "--format", "json", other, name]);
            if output.status.code() != Some(2) {
                checker.check(&format!("diff {other} {name}"), &output.stdout);
            }
        }
        before = Some(name.to_string());
    }
    for (name, least) in [
        ("vramtrace.diff/1", 40),
        ("vramtrace.report/2", 40),
        ("vramtrace.holders/1", 30),
        ("vramtrace.leaks/1", 20),
        ("vramtrace.oom/1", 20),
        ("vramtrace.frag/1", 5),
        ("vramtrace.whatif/1", 10),
        ("vramtrace.fits/1", 3),
        ("vramtrace.verify/1", 20),
    ] {
        let seen = checker.seen.get(name).copied().unwrap_or(0);
        assert!(seen >= least, "{name}: {seen} documents");
    }
}

#[test]
fn run_doctor_and_ps_are_what_their_schemas_say() {
    let scratch = Scratch::new();
    sim();
    shim();
    for name in ["gpu.py", "server.py", "train.py"] {
        let from = repository().join("docs/programs").join(name);
        std::fs::copy(from, scratch.0.join(name)).unwrap();
    }
    let mut checker = Checker::new();
    let gate = ["--fail-on-leak", "--max-peak", "1GiB", "--json", "found.json"];
    for program in [&["server.py"][..], &["train.py", "12"]] {
        let args = [&["run", "--simulate"], &gate[..], &["python3"], program].concat();
        assert_eq!(output(&scratch, &args).status.code(), Some(1), "{program:?}");
    }
    let lines = std::fs::read_to_string(scratch.0.join("found.json")).unwrap();
    lines.lines().for_each(|line| checker.check("run", line.as_bytes()));
    assert_eq!(checker.seen["vramtrace.run/2"], 4);
    checker.check("doctor without a driver", &output(&scratch, &["doctor", "--json"]).stdout);
    let capped =
        ["doctor", "--json", "--simulate", "--cap", "0=8GiB,7=1GiB", "python3", "train.py"];
    checker.check("doctor of a command", &output(&scratch, &capped).stdout);
    let mut simulated = vramtrace();
    simulated.args(["doctor", "--json"]).env("LD_LIBRARY_PATH", sim_dir());
    let found = simulated.env("VRAMTRACE_SIM", "2x24GiB").output().unwrap();
    checker.check("doctor with a driver", &found.stdout);
    // Itself beside a process that holds memory.
    let script = "import gpu, subprocess, sys\n\
        kept = gpu.Tensor(1 << 20)\n\
        print(subprocess.run(['vramtrace', 'ps', '--json'], capture_output=True, text=True).stdout)";
    let path = format!("{}:{}", testkit::bin_dir().display(), std::env::var("PATH").unwrap());
    let mut run = vramtrace();
    run.args(["run", "--simulate", "--job-cap", "1GiB", "python3", "-c", script]);
    let ps = run.env("PATH", path).current_dir(&scratch.0).output().unwrap();
    let text = String::from_utf8_lossy(&ps.stdout).into_owned();
    assert!(text.contains("\"live_bytes\"") && text.contains("\"pids\""), "{text}");
    checker.check("ps", text.as_bytes());
    assert_eq!(checker.seen.len(), 3);
}

#[test]
fn a_schema_refuses_what_it_does_not_describe() {
    let schemas = schemas();
    let ps = &schemas["vramtrace.ps/1"];
    let good = serde_json::json!({"schema": "vramtrace.ps/1", "processes": [], "groups": []});
    assert!(ps.is_valid(&good));
    for (key, value) in [("schema", "vramtrace.ps/2".into()), ("processes", Value::Null)] {
        let mut bad = good.clone();
        bad[key] = value;
        assert!(!ps.is_valid(&bad), "{bad}");
    }
    let mut lacking = good;
    lacking.as_object_mut().unwrap().remove("groups");
    assert!(!ps.is_valid(&lacking));
}
