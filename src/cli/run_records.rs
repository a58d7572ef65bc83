//! `vramtrace run --json FILE`: appends a line for each process of the run and one for the job.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use vramtrace_format::cgroup;
use vramtrace_reader::analysis::leaks::UnusedRule;
use vramtrace_reader::files::append;
use vramtrace_reader::report::json::Document;
use vramtrace_reader::report::json::run::{Judged, RunEnd, RunRecord, RunRecords, SCHEMA, read};
use vramtrace_reader::trace::{Trace, host_name};

use super::output::Output;
use crate::console::{json_line, message};
use crate::error::Failure;
use crate::launch::RunResult;
use crate::launch::child::Status;
use crate::live_processes::{owner::slurm_job, process};

/// Maximum size in bytes of traces that are read in full for the lines. A batch system kills a job soon after its end.
const MAX_TRACE_BYTES: u64 = 512 << 20;

/// The file of --json.
pub struct RecordsFile {
    path: PathBuf,
    /// A pipe, a device or an open descriptor (`-`); `None`: a regular file, to which others append as well.
    stream: Option<Output>,
}

fn wrong(failure: Failure) -> Failure {
    Failure { message: format!("--json {}", failure.message), ..failure }
}

impl RecordsFile {
    /// What cannot be written fails before the run, not after it. `rules`: a file that is read.
    pub fn new(path: &Path, rules: Option<&Path>) -> Result<RecordsFile, Failure> {
        let output = Output::new(path, true).map_err(wrong)?;
        output.refuse_inputs(rules).map_err(wrong)?;
        let path = path.to_path_buf();
        if !output.is_regular() {
            return Ok(RecordsFile { path, stream: Some(output) });
        }
        let file = RecordsFile { path, stream: None };
        match append::check(&file.path, &is_record) {
            Ok(true) => {}
            Ok(false) => {
                return Err(wrong(Failure::new(format!(
                    "{} has no JSON lines of `vramtrace run` (an earlier version replaced the file by one object): \
                     give another name",
                    file.path.display()
                ))));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                output.probe().map_err(wrong)?;
            }
            Err(error) => return Err(file.cannot(&error)),
        }
        Ok(file)
    }

    fn cannot(&self, error: &std::io::Error) -> Failure {
        wrong(Failure::new(format!("{}: {error}", self.path.display())))
    }

    fn append(&self, lines: &str) -> Result<(), Failure> {
        match &self.stream {
            Some(stream) => stream.write(|out| out.write_all(lines.as_bytes())).map_err(wrong),
            None => {
                append::lines(&self.path, lines.as_bytes()).map_err(|error| self.cannot(&error))
            }
        }
    }
}

/// Whether a line is one of ours, of this version or another.
fn is_record(line: &[u8]) -> bool {
    let parsed: Result<serde_json::Value, _> = serde_json::from_slice(line);
    parsed.is_ok_and(|line| {
        line["schema"].as_str().is_some_and(|schema| schema.starts_with("vramtrace.run/"))
    })
}

/// What the checks of a run found.
pub struct Checks {
    pub reasons: Vec<String>,
    pub max_peak_bytes: Option<u64>,
    pub unused_suppressions: Vec<UnusedRule>,
}

pub fn append(
    file: &RecordsFile,
    traces: &[Trace],
    judged: Judged,
    ended: &RunResult,
    checks: Checks,
) -> Result<(), Failure> {
    let (exit_status, signal) = match ended.status {
        Status::Exited(code) => (Some(code), None),
        Status::Signalled(signal) => (None, Some(signal)),
    };
    let since_1970 = ended.started.duration_since(UNIX_EPOCH).unwrap_or_default();
    let host = host_name();
    let facts = RunEnd {
        run: format!("{host}.{}.{}", std::process::id(), since_1970.as_nanos()),
        job: job(),
        host,
        command: ended.command.clone(),
        started_unix_s: since_1970.as_secs_f64(),
        duration_s: ended.took.as_secs_f64(),
        passed: checks.reasons.is_empty(),
        exit_status,
        signal,
        reasons: checks.reasons,
        max_peak_bytes: checks.max_peak_bytes,
        unused_suppressions: checks.unused_suppressions,
    };
    let RunRecords { processes, job } = read(traces, judged, MAX_TRACE_BYTES, facts);
    let mut lines = String::new();
    for process in &processes {
        lines.push_str(&json_line(&Document::new(SCHEMA, &RunRecord::Process(process), []))?);
    }
    lines.push_str(&json_line(&Document::new(SCHEMA, &RunRecord::Job(&job), traces))?);
    if job.processes_in_full < job.processes {
        message(format_args!(
            "--json: {} of {} processes were read in full, the others by their summaries: all would have \
             taken too long",
            job.processes_in_full, job.processes
        ));
    }
    file.append(&lines)
}

/// The job of the batch system in which this command runs.
fn job() -> Option<String> {
    let variable = |name: &&str| std::env::var(name).ok().filter(|job| !job.is_empty());
    let of_cgroup = || process::cgroup("self").as_deref().and_then(slurm_job).map(String::from);
    cgroup::JOB_VARIABLES.iter().find_map(variable).or_else(of_cgroup)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_of_a_run_are_appended_to() {
        assert!(is_record(br#"{"record":"job","schema":"vramtrace.run/3","passed":true}"#));
        assert!(is_record(br#"{"schema":"vramtrace.run/3"}"#), "of a newer version");
        for other in
            [&b"{"[..], b"", b"import sys", br#"{"schema":"vramtrace.oom/2"}"#, b"[1]", b"\xFF"]
        {
            assert!(!is_record(other), "{}", String::from_utf8_lossy(other));
        }
    }
}
