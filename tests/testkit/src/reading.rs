//! The command `vramtrace` in a test's directory, and what it says.

use std::io::Read;
use std::process::{Command, Output};

use serde_json::Value;

use crate::trace_builder::TraceBuilder;
use crate::{Scratch, repository, vramtrace};

/// The text with single blanks between its words.
pub fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Scratch {
    /// A new directory with this trace as `t.vtrace`.
    pub fn with(trace: &TraceBuilder) -> Scratch {
        let scratch = Scratch::new();
        trace.write(&scratch.0.join("t.vtrace"));
        scratch
    }

    /// A new directory with a recorded run of this repository, which is compressed there, as `t.vtrace`.
    pub fn recorded(packed: &str) -> Scratch {
        let scratch = Scratch::new();
        std::fs::write(scratch.0.join("t.vtrace"), unpacked(packed)).unwrap();
        scratch
    }

    /// The command with these words, without colours, a preload or a rank.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = vramtrace();
        command.args(words).current_dir(&self.0).env("NO_COLOR", "1");
        command.env_remove("LD_PRELOAD").env_remove("RANK").env_remove("WORLD_SIZE");
        command
    }

    /// What it says with these words.
    pub fn says(&self, words: &[&str]) -> Said {
        Said::by(&mut self.command(words))
    }

    /// What a shell prints that succeeds here.
    #[track_caller]
    pub fn shell(&self, script: &str) -> String {
        let mut shell = Command::new("bash");
        let shell = shell.args(["-c", script]).current_dir(&self.0).env_remove("LD_PRELOAD");
        Said::by(shell).ended(0).out
    }

    /// Runs the command with the words of a line.
    pub fn run(&self, line: &str) -> Output {
        let words: Vec<&str> = line.split(' ').filter(|word| !word.is_empty()).collect();
        self.command(&words).output().unwrap()
    }

    /// The bytes that it writes to stdout where it succeeds.
    #[track_caller]
    pub fn bytes(&self, line: &str) -> Vec<u8> {
        let output = self.run(line);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "vramtrace {line}: {}: {stderr}", output.status);
        output.stdout
    }

    /// What it prints where it succeeds.
    #[track_caller]
    pub fn text(&self, line: &str) -> String {
        String::from_utf8(self.bytes(line)).unwrap()
    }

    /// The document that it prints with `--json`.
    #[track_caller]
    pub fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.text(&format!("{line} --json"))).unwrap()
    }

    /// It ends with this status, and says why on stderr.
    #[track_caller]
    pub fn fails(&self, status: i32, line: &str, why: &str) {
        let output = self.run(line);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "vramtrace {line}: {stderr}");
        assert!(stderr.contains(why), "vramtrace {line}: {why:?} is not in: {stderr}");
    }
}

/// Exit status, stdout and stderr of a command that ended.
#[derive(Debug)]
pub struct Said {
    /// `None`: a signal ended it.
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Said {
    pub fn by(command: &mut Command) -> Said {
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Said { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// It ended with this status.
    #[track_caller]
    pub fn ended(self, code: i32) -> Said {
        assert_eq!(self.code, Some(code), "{}{}", self.out, self.err);
        self
    }

    /// Its stdout is a document.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

pub fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(bytes).read_to_end(&mut plain).unwrap();
    plain
}

/// A compressed file of this repository.
pub fn unpacked(packed: &str) -> Vec<u8> {
    gunzip(&std::fs::read(repository().join(packed)).unwrap())
}

/// The sum of a field over rows of a document; where it may be left out, that is 0.
pub fn sum(rows: &Value, field: &str) -> u64 {
    rows.as_array().unwrap().iter().map(|row| row[field].as_u64().unwrap_or(0)).sum()
}

/// The functions of a stack in a document, innermost first.
pub fn functions(of: &Value) -> Vec<&str> {
    let frames = of["frames"].as_array().unwrap().iter();
    frames.map(|frame| frame["function"].as_str().unwrap_or("")).collect()
}

/// Asserts that a document has these values; it may have more.
#[track_caller]
pub fn has(found: &Value, wanted: Value) {
    for (key, value) in wanted.as_object().unwrap() {
        assert_eq!(found[key], *value, "{key} of {found:#}");
    }
}
