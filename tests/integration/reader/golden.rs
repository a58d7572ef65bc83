//! Traces that an earlier version recorded are read with the same output: every reading command,
//! over every trace of `tests/data/golden` and what else the tests keep. `make.sh` there records one
//! more.
//!
//! A change of output that is wanted: `VRAMTRACE_GOLDEN_WRITE=1 cargo test --test reader golden::` writes the
//! expectations anew, and the difference stands in the commit.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;

use testkit::{Scratch, gunzip};

/// `@` stands for the trace. What a command writes to `out` is compared too.
const OF_A_TRACE: &[&str] = &[
    "report @",
    "report --json @",
    "report --full --all @",
    "report --full --at peak --top 20 @",
    "report --full --at 0.0005 @",
    "report --by phase @",
    "report --by phase --json @",
    "holders @",
    "holders --json @",
    "holders --at end --full @",
    "holders --at peak-allocated @",
    "holders --by function @",
    "holders --by library @",
    "holders --by stack --full @",
    "holders --level driver @",
    "holders --level driver --json --at end @",
    "leaks @",
    "leaks --full @",
    "leaks --json @",
    "flame -o - @",
    "flame --at end --level driver -o - @",
    "export --format csv -o - @",
    "export --format csv --from 0.0002 --to 0.01 -o - @",
    "export --format perfetto -o - @",
    "export --format folded -o - @",
    "export --format folded --at end --level driver -o - @",
    "export --format pprof -o - @",
    "export --format torch-snapshot -o - @",
    "pack -o out @",
];

/// These read PyTorch's snapshots too.
const OF_A_CACHE: &[&str] = &[
    "oom @",
    "oom --at all --full @",
    "oom --json @",
    "frag @",
    "frag --at end @",
    "frag --at oom @",
    "frag --json @",
    "whatif @",
    "whatif --json @",
    "whatif --capacity 1GiB --conf expandable_segments:True @",
];

/// A trace that is made of another recording carries random numbers: only what is read of it counts.
const OF_AN_IMPORT: &[&str] = &[
    "import -o imported.vtrace @",
    "report --full imported.vtrace",
    "report --json imported.vtrace",
    "holders imported.vtrace",
    "leaks imported.vtrace",
    "frag imported.vtrace",
    "whatif imported.vtrace",
    "export --format csv -o - imported.vtrace",
];

/// Longer output is kept as hashes of its parts.
const MOST_BYTES: usize = 5000;
const MOST_JSON: usize = 1000;
const PARTS: usize = 8;
/// Begins the only line of an output that is the same as one before it.
const AS: &str = "as ";

/// A trace, or a directory of a run's traces.
struct Source {
    name: String,
    files: Vec<PathBuf>,
    commands: Vec<&'static str>,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn directory() -> PathBuf {
    root().join("tests/data/golden")
}

fn packed_in(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut found: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "gz") || path.is_dir())
        .collect();
    found.sort();
    found
}

/// `a/b.vtrace.gz` -> `b.vtrace`
fn unpacked_name(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().trim_end_matches(".gz").to_string()
}

fn sources() -> Vec<Source> {
    let of_a_trace = || [OF_A_TRACE, OF_A_CACHE].concat();
    let mut found = Vec::new();
    for path in packed_in(&directory()) {
        let files = if path.is_dir() { packed_in(&path) } else { vec![path.clone()] };
        found.push(Source { name: unpacked_name(&path), files, commands: of_a_trace() });
    }
    let mut more = |path: &str, commands| {
        let path = root().join(path);
        found.push(Source { name: unpacked_name(&path), files: vec![path], commands });
    };
    more("assets/recorded.vtrace.gz", of_a_trace());
    more("tests/data/torch_snapshot_2.11.pickle.gz", [OF_A_CACHE, OF_AN_IMPORT].concat());
    more("tests/data/resvar_s5.csv.gz", OF_AN_IMPORT.to_vec());
    found
}

impl Source {
    fn unpack(&self, to: &Path) {
        for file in &self.files {
            let name = unpacked_name(file);
            let place =
                if name == self.name { to.join(&name) } else { to.join(&self.name).join(&name) };
            std::fs::create_dir_all(place.parent().unwrap()).unwrap();
            std::fs::write(place, gunzip(&std::fs::read(file).unwrap())).unwrap();
        }
    }

    fn expectations(&self) -> PathBuf {
        directory().join(format!("{}.txt", self.name.trim_end_matches(".vtrace")))
    }

    fn outputs(&self) -> Vec<Output> {
        let scratch = Scratch::new();
        // verify.rs says which of them agree with themselves.
        scratch.contradicts();
        self.unpack(&scratch.0);
        self.commands.iter().map(|command| Output::of(command, &self.name, &scratch.0)).collect()
    }
}

/// Output without what is another each time: compression, the name of a temporary file in `oom --json` of a snapshot.
fn stable(output: Vec<u8>) -> Vec<u8> {
    let plain = if output.starts_with(&[0x1f, 0x8b]) { gunzip(&output) } else { output };
    let Ok(text) = std::str::from_utf8(&plain) else { return plain };
    text.split_inclusive('\n').map(without_temporary_name).collect::<String>().into_bytes()
}

/// `"/tmp/.tmpA1b2C3"` -> `"(temporary)"`
fn without_temporary_name(line: &str) -> String {
    let parts = line.split_once("\"/tmp/.tmp");
    let parts = parts.and_then(|(before, name)| Some((before, name.split_once('"')?.1)));
    parts.map_or(line.into(), |(before, behind)| format!("{before}\"(temporary)\"{behind}"))
}

/// The output of one command.
struct Output {
    command: String,
    /// As it is kept, a line each.
    kept: Vec<String>,
    stdout: Vec<u8>,
}

impl Output {
    /// Knows nothing of the machine: no environment, a directory of its own, no terminal.
    fn of(command: &str, name: &str, cwd: &Path) -> Output {
        let command = command.replace('@', name);
        let _ = std::fs::remove_file(cwd.join("out"));
        let mut ended = testkit::vramtrace();
        ended.args(command.split(' ')).current_dir(cwd).env_clear().env("TZ", "UTC");
        let ended = ended.stdin(Stdio::null()).output().unwrap();
        let stdout = stable(ended.stdout);
        let mut kept = vec![format!("exit {:?}", ended.status.code())];
        kept.extend(lines("", &stdout));
        kept.extend(lines("stderr ", &ended.stderr));
        if let Ok(written) = std::fs::read(cwd.join("out")) {
            kept.extend(lines("written ", &written));
        }
        Output { command, kept, stdout }
    }
}

/// Short text as it is, each line behind `| `; anything else as its parts' hashes.
fn lines(label: &str, bytes: &[u8]) -> Vec<String> {
    let most = if bytes.starts_with(b"{") { MOST_JSON } else { MOST_BYTES };
    match std::str::from_utf8(bytes) {
        Ok(text) if bytes.len() <= most => {
            let mut kept: Vec<_> = text
                .lines()
                .map(|line| format!("{label}| {line}").trim_end().to_string())
                .collect();
            if !text.is_empty() && !text.ends_with('\n') {
                kept.push(format!("{label}without a newline at the end"));
            }
            kept
        }
        _ => vec![format!("{label}{} bytes, {}", bytes.len(), hashes(bytes).join(" "))],
    }
}

/// Where parts begin: lines of text, any bytes of other output.
fn parts(bytes: &[u8]) -> Vec<&[u8]> {
    let pieces: Vec<&[u8]> = if std::str::from_utf8(bytes).is_ok() {
        bytes.split_inclusive(|byte| *byte == b'\n').collect()
    } else {
        bytes.chunks(64).collect()
    };
    let mut rest = bytes;
    pieces
        .chunks(pieces.len().div_ceil(PARTS).max(1))
        .map(|pieces| {
            let (part, behind) = rest.split_at(pieces.iter().map(|piece| piece.len()).sum());
            rest = behind;
            part
        })
        .collect()
}

/// 40 bits of FNV-1a each.
fn hashes(bytes: &[u8]) -> Vec<String> {
    let hash = |part: &&[u8]| {
        part.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        })
    };
    parts(bytes).iter().map(|part| format!("{:010x}", hash(part) >> 24)).collect()
}

fn written(outputs: &[Output]) -> String {
    let mut text = String::new();
    for (at, output) in outputs.iter().enumerate() {
        writeln!(text, "$ vramtrace {}", output.command).unwrap();
        if let Some(same) = outputs[..at].iter().find(|before| before.kept == output.kept) {
            writeln!(text, "{AS}{}", same.command).unwrap();
            continue;
        }
        for line in &output.kept {
            writeln!(text, "{line}").unwrap();
        }
    }
    text
}

/// Below the first command whose output is another: the first line that differs, with some of what is around it. Of
/// output that is kept as hashes, the first part that is another, as it is now.
fn difference(was: &str, outputs: &[Output]) -> Option<String> {
    let is = written(outputs);
    let (was, is): (Vec<&str>, Vec<&str>) = (was.lines().collect(), is.lines().collect());
    let at = (0..was.len().max(is.len())).find(|at| was.get(*at) != is.get(*at))?;
    let line = |of: &[&str]| of.get(at).map_or("(no such line)".into(), ToString::to_string);
    let (before, now) = (line(&was), line(&is));
    let command = is[..is.len().min(at + 1)].iter().rposition(|line| line.starts_with("$ "));
    let from = command.unwrap_or(0);
    let mut shown = format!("  {}\n", is[from]);
    for line in &is[at.saturating_sub(3).max(from + 1).min(at)..at.min(is.len())] {
        writeln!(shown, "      {line}").unwrap();
    }
    writeln!(shown, "    - {before}\n    + {now}").unwrap();
    let of_parts = |line: &str| line.split(' ').skip(2).map(String::from).collect::<Vec<_>>();
    let (before, hashes) = (of_parts(&before), of_parts(&now));
    let part = (0..hashes.len()).find(|at| before.get(*at) != hashes.get(*at));
    let output = outputs.iter().find(|output| is[from].ends_with(&output.command))?;
    if let (true, Some(at)) = (now.contains(" bytes, "), part) {
        let parts = parts(&output.stdout);
        writeln!(shown, "    part {} of {} is another; it is now", at + 1, parts.len()).unwrap();
        let text = String::from_utf8_lossy(parts.get(at).copied().unwrap_or_default()).into_owned();
        for line in text.lines().take(40) {
            writeln!(shown, "      {}", line.chars().take(200).collect::<String>()).unwrap();
        }
    }
    Some(shown)
}

#[test]
fn earlier_traces_are_read_with_the_same_output() {
    let write = std::env::var_os("VRAMTRACE_GOLDEN_WRITE").is_some();
    let sources = sources();
    assert!(sources.len() > 20, "the traces of tests/data/golden are missing");
    let (left, differences) = (Mutex::new(sources), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(source) = { left.lock().unwrap().pop() } {
                    let (outputs, place) = (source.outputs(), source.expectations());
                    if write {
                        std::fs::write(&place, written(&outputs)).unwrap();
                    }
                    let was = std::fs::read_to_string(&place).unwrap_or_default();
                    let found = difference(&was, &outputs);
                    let found = found.map(|found| format!("{}:\n{found}", place.display()));
                    differences.lock().unwrap().extend(found);
                }
            });
        }
    });
    let mut differences = differences.into_inner().unwrap();
    differences.sort();
    let shown = differences.join("\n");
    assert!(differences.is_empty(), "outputs are not as they were (-: before, +: now):\n{shown}");
}

#[test]
fn no_expectation_is_left_of_a_trace_that_is_gone() {
    let known: Vec<_> = sources().iter().map(Source::expectations).collect();
    for entry in std::fs::read_dir(directory()).unwrap() {
        let path = entry.unwrap().path();
        let is_one = path.extension().is_some_and(|end| end == "txt");
        assert!(!is_one || known.contains(&path), "{}", path.display());
    }
}

#[test]
fn a_difference_is_shown_with_its_line_and_its_part() {
    let long: String = (0..2000).map(|n| format!("line {n}\n")).collect();
    let output = |stdout: &str| {
        let mut kept = vec!["exit Some(0)".to_string()];
        kept.extend(lines("", stdout.as_bytes()));
        [Output { command: "report".into(), kept, stdout: stdout.into() }]
    };
    let shown = |before: &str, now: &str| difference(&written(&output(before)), &output(now));
    assert_eq!(shown(&long, &long), None);
    let cut = &long[..long.len() - 10];
    for (before, now, wanted) in [
        (
            "peak 1\nlive 2\n",
            "peak 1\nlive 3\n",
            "      | peak 1\n    - | live 2\n    + | live 3\n",
        ),
        ("peak 1\n", "peak 1", "without a newline"),
        (&*long, &*long.replace("line 700\n", "line x\n"), "part 3 of 8"),
        (&*long, cut, "part 8 of 8"),
    ] {
        assert!(shown(before, now).unwrap().contains(wanted), "{wanted}");
    }
}
