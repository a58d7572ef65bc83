//! Every `--json` output is what its schema in docs/schemas says: over all kept traces, a live
//! process, a run that fails on a leak, and `doctor`.

use std::collections::BTreeMap;

use jsonschema::Validator;
use serde_json::Value;
use testkit::{Said, Scratch, bin_dir, gunzip, repository, shim, sim, sim_dir};

fn schemas() -> BTreeMap<String, Validator> {
    let folder = repository().join("docs/schemas");
    let entries = std::fs::read_dir(folder).unwrap();
    let read = |path: std::path::PathBuf| {
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

const READING: [&str; 14] = [
    "holders --by role",
    "verify",
    "report",
    "report --by phase --at peak",
    "report --by step",
    "holders",
    "holders --at end --by library",
    "leaks",
    "oom --at all",
    "frag",
    "whatif",
    "whatif --capacity 1GiB",
    "fits --recorded batch=4 --batch 8 --card 1GiB",
    // With itself, where nothing grew.
    "diff t.vtrace",
];

#[test]
fn every_document_of_the_kept_traces_is_what_its_schema_says() {
    let scratch = Scratch::new();
    // One of the kept traces is of a program that gave wrong figures.
    scratch.contradicts();
    let mut checker = Checker::new();
    let golden = std::fs::read_dir(repository().join("tests/data/golden")).unwrap();
    let golden = golden.map(|entry| entry.unwrap().path());
    let golden = golden.filter(|path| path.extension().is_some_and(|end| end == "gz"));
    let more = ["assets/recorded.vtrace.gz", "tests/data/torch_snapshot_2.11.pickle.gz"];
    let sources: Vec<_> = golden.chain(more.map(|name| repository().join(name))).collect();
    assert!(sources.len() > 20);
    for source in sources {
        scratch.write("t.vtrace", gunzip(&std::fs::read(&source).unwrap()));
        // And with another run.
        let with_another = scratch.0.join("before.vtrace").exists().then_some("diff before.vtrace");
        for line in READING.into_iter().chain(with_another) {
            let json = if line.starts_with("diff") { "--format json" } else { "--json" };
            let output = scratch.run(&format!("{line} t.vtrace {json}"));
            // Without blocks or stacks some commands have nothing to say: they exit with 2.
            if output.status.code() != Some(2) {
                checker.check(&format!("{line} {}", source.display()), &output.stdout);
            }
        }
        std::fs::rename(scratch.0.join("t.vtrace"), scratch.0.join("before.vtrace")).unwrap();
    }
    for (name, least) in [
        ("vramtrace.diff/1", 40),
        ("vramtrace.report/3", 40),
        ("vramtrace.holders/2", 30),
        ("vramtrace.leaks/2", 20),
        ("vramtrace.oom/2", 20),
        ("vramtrace.frag/2", 5),
        ("vramtrace.whatif/2", 10),
        ("vramtrace.fits/2", 3),
        ("vramtrace.verify/2", 20),
    ] {
        let seen = checker.seen.get(name).copied().unwrap_or(0);
        assert!(seen >= least, "{name}: {seen} documents");
    }
}

#[test]
fn run_doctor_and_ps_are_what_their_schemas_say() {
    let scratch = Scratch::with_programs();
    sim();
    shim();
    let mut checker = Checker::new();
    let gate = "run --simulate --fail-on-leak --max-peak 1GiB --json found.json python3";
    for program in ["server.py", "train.py 12"] {
        scratch.fails(1, &format!("{gate} {program}"), "");
    }
    let lines = std::fs::read_to_string(scratch.0.join("found.json")).unwrap();
    lines.lines().for_each(|line| checker.check("run", line.as_bytes()));
    assert_eq!(checker.seen["vramtrace.run/3"], 4);
    let capped = "doctor --json --simulate --cap 0=8GiB,7=1GiB python3 train.py";
    for line in ["doctor --json", capped] {
        checker.check(line, &scratch.run(line).stdout);
    }
    let mut simulated = scratch.command(&["doctor", "--json"]);
    simulated.env("LD_LIBRARY_PATH", sim_dir()).env("VRAMTRACE_SIM", "2x24GiB");
    checker.check("doctor with a driver", Said::by(&mut simulated).out.as_bytes());
    // Itself beside a process that holds memory.
    let script = "import gpu, subprocess, sys\n\
        kept = gpu.Tensor(1 << 20)\n\
        print(subprocess.run(['vramtrace', 'ps', '--json'], capture_output=True, text=True).stdout)";
    let path = format!("{}:{}", bin_dir().display(), std::env::var("PATH").unwrap());
    let job = ["run", "--simulate", "--job-cap", "1GiB", "python3", "-c", script];
    let text = Said::by(scratch.command(&job).env("PATH", path)).out;
    assert!(text.contains("\"live_bytes\"") && text.contains("\"pids\""), "{text}");
    checker.check("ps", text.as_bytes());
    assert_eq!(checker.seen.len(), 3);
}
