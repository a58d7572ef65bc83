//! The limits that make `vramtrace run` exit 1: --fail-on-leak, --max-peak.

use std::path::PathBuf;

use vramtrace_format::size as sizes;
use vramtrace_reader::analysis::leaks::{Leaks, Suppressions};
use vramtrace_reader::report::json::run::Judged;
use vramtrace_reader::report::text::leaks::{one_liner, process_name};
use vramtrace_reader::report::wording::gpu_name;
use vramtrace_reader::trace::load;
use vramtrace_reader::units::size;

use super::caveats;
use super::leaks::{bytes, find_all, suppressions};
use super::run_records::{self, Checks, RecordsFile};
use crate::console::message;
use crate::error::{DONE, Failure};
use crate::launch::RunResult;

#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Exit 1 if a process leaks GPU memory [at least BYTES]: see `vramtrace leaks`
    #[arg(long, value_name = "BYTES", default_missing_value = "0", value_parser = bytes)]
    #[arg(num_args = 0..=1, require_equals = true)]
    fail_on_leak: Option<u64>,
    /// Exit 1 if a process held more than this of a device
    #[arg(long, value_name = "SIZE", value_parser = sizes::parse)]
    max_peak: Option<u64>,
    /// For --fail-on-leak: a file with patterns of leaks that are known and accepted
    #[arg(long, value_name = "FILE", requires = "fail_on_leak")]
    suppressions: Option<PathBuf>,
    /// Append what was found to this file as JSON lines (schema vramtrace.run/3): one for each process, one for the job
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The options, checked before the command starts.
pub struct Gate {
    args: Args,
    rules: Suppressions,
    /// Where the findings go.
    json: Option<RecordsFile>,
}

impl Gate {
    /// `None`: no such option is given. `recorded`: the run writes traces.
    pub fn new(args: Args, recorded: bool) -> Result<Option<Gate>, Failure> {
        if args.fail_on_leak.is_none() && args.max_peak.is_none() && args.json.is_none() {
            return Ok(None);
        }
        if !recorded {
            return Err(Failure::new(
                "--fail-on-leak, --max-peak and --json need a trace: give --out (or VRAMTRACE_OUT) \
                 a place instead of `off`",
            ));
        }
        let rules = suppressions(args.suppressions.as_deref())?;
        let records = |path: &PathBuf| RecordsFile::new(path, args.suppressions.as_deref());
        let json = args.json.as_ref().map(records).transpose()?;
        Ok(Some(Gate { args, rules, json }))
    }

    /// Checks the traces of the run, prints the reasons for failure and appends the JSON. True: no reason.
    pub fn passes(&self, ended: &RunResult) -> Result<bool, Failure> {
        let traces = ended.output.traces();
        let traces = if traces.is_empty() { Vec::new() } else { load(&traces)?.traces };
        // A check is about all events of all processes, however long that takes.
        let checks = self.args.fail_on_leak.is_some() || self.args.max_peak.is_some();
        let found = checks.then(|| find_all(&traces, &self.rules, 0));
        let processes = found.as_deref().unwrap_or_default();
        caveats::warn_damage(&traces);
        let reasons = self.reasons(processes);
        let passed = caveats::status(&reasons) == DONE;
        let least = self.args.fail_on_leak;
        if processes.iter().flat_map(|process| &process.leaks).any(|leak| leak.fails(least)) {
            message("`vramtrace leaks` with the trace shows the evidence for each leak");
        }
        let unused_suppressions = self.rules.unused(processes);
        for rule in &unused_suppressions {
            let (line, rule) = (rule.line, &rule.rule);
            message(format_args!("line {line} of the suppressions matches no leak: {rule}"));
        }
        if let Some(file) = &self.json {
            let judged = Judged { leaks: found.as_deref(), least };
            let max_peak_bytes = self.args.max_peak;
            let checks = Checks { reasons, max_peak_bytes, unused_suppressions };
            run_records::append(file, &traces, judged, ended, checks)?;
        }
        Ok(passed)
    }

    /// Why the run fails.
    fn reasons(&self, processes: &[Leaks]) -> Vec<String> {
        let (most, least) = (self.args.max_peak.unwrap_or(u64::MAX), self.args.fail_on_leak);
        let mut reasons = Vec::new();
        for process in processes {
            for (device, bytes) in process.peaks.iter().filter(|(_, bytes)| **bytes > most) {
                reasons.push(format!(
                    "{} held {} of {} at its peak, {} more than --max-peak {}",
                    process_name(process),
                    size(*bytes),
                    gpu_name(*device),
                    size(bytes - most),
                    size(most),
                ));
            }
        }
        for process in processes {
            let name = process_name(process);
            let leaks = process.leaks.iter().filter(|leak| leak.fails(least));
            reasons
                .extend(leaks.map(|leak| format!("{name}: {}", one_liner(leak, process.running))));
        }
        reasons
    }
}
