//! The limits that make `vramtrace run` exit 1: --fail-on-leak, --max-peak, and their findings as JSON.

use std::path::{Path, PathBuf};

use vramtrace_format::size as sizes;
use vramtrace_reader::analysis::leaks::{Leaks, Suppressions};
use vramtrace_reader::report::json::damage::WithDamage;
use vramtrace_reader::report::json::leaks as json;
use vramtrace_reader::report::json::run::{JudgedLeak, PeakFacts, RunReport, SCHEMA};
use vramtrace_reader::report::text::leaks::{one_liners, process_name};
use vramtrace_reader::report::wording::{gpu_name, ordinal};
use vramtrace_reader::trace::load;
use vramtrace_reader::units::size;

use super::caveats;
use super::leaks::{bytes, find_all, suppressions};
use super::output::Output;
use crate::console::{json as json_text, message};
use crate::error::Failure;
use crate::launch::RunResult;
use crate::launch::child::Status;

/// How many reasons are printed. The JSON has all.
const SHOWN: usize = 10;

#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Exit 1 if a process leaks GPU memory [at least BYTES]: see `vramtrace leaks`
    #[arg(
        long,
        value_name = "BYTES",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "0",
        value_parser = bytes
    )]
    fail_on_leak: Option<u64>,
    /// Exit 1 if a process held more than this of a device
    #[arg(long, value_name = "SIZE", value_parser = sizes::parse)]
    max_peak: Option<u64>,
    /// For --fail-on-leak: a file with patterns of leaks that are known and accepted
    #[arg(long, value_name = "FILE", requires = "fail_on_leak")]
    suppressions: Option<PathBuf>,
    /// Write what was found (schema vramtrace.run/1) to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The options, checked before the command starts.
pub struct Gate {
    args: Args,
    rules: Suppressions,
    /// Where the findings go.
    json: Option<Output>,
}

fn of_json(failure: Failure) -> Failure {
    Failure { message: format!("--json {}", failure.message), ..failure }
}

/// The file of --json. An existing file is replaced.
fn json_output(path: &Path, rules: Option<&Path>) -> Result<Output, Failure> {
    let output = Output::new(path, true).map_err(of_json)?;
    output.refuse_inputs(rules).map_err(of_json)?;
    // An output that cannot be written must fail before the run, not after it.
    output.probe().map_err(of_json)?;
    Ok(output)
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
        let json = match &args.json {
            Some(path) => Some(json_output(path, args.suppressions.as_deref())?),
            None => None,
        };
        Ok(Some(Gate { args, rules, json }))
    }

    /// Checks the traces of the run, prints the reasons for failure and writes the JSON. True: no reason.
    pub fn passes(&self, ended: &RunResult) -> Result<bool, Failure> {
        let traces = ended.output.traces();
        let traces = if traces.is_empty() { Vec::new() } else { load(&traces)?.traces };
        let processes = find_all(&traces, &self.rules, 0);
        caveats::warn_damage(&traces);
        let mut reasons = Vec::new();
        let peaks = self.peaks(&processes, &mut reasons);
        let leaks = self.leaks(&processes, &mut reasons);
        for reason in reasons.iter().take(SHOWN) {
            message(format_args!("FAILED: {reason}"));
        }
        if reasons.len() > SHOWN {
            message(format_args!("FAILED: and {} reasons more", reasons.len() - SHOWN));
        }
        if leaks.iter().any(|leak| leak.fails) {
            message("`vramtrace leaks` with the trace shows the evidence for each leak");
        }
        let unused_suppressions = json::unused(&self.rules, &processes);
        for rule in &unused_suppressions {
            let (line, rule) = (rule.line, &rule.rule);
            message(format_args!("line {line} of the suppressions matches no leak: {rule}"));
        }
        let passed = reasons.is_empty();
        if let Some(output) = &self.json {
            let (exit_status, signal) = match ended.status {
                Status::Exited(code) => (Some(code), None),
                Status::Signalled(signal) => (None, Some(signal)),
            };
            let max_peak_bytes = self.args.max_peak;
            let found = RunReport {
                schema: SCHEMA,
                passed,
                exit_status,
                signal,
                reasons,
                max_peak_bytes,
                peaks,
                leaks,
                unused_suppressions,
            };
            let text = json_text(&WithDamage::new(&found, &traces))?;
            output.write(|out| out.write_all(text.as_bytes())).map_err(of_json)?;
        }
        Ok(passed)
    }

    fn peaks(&self, processes: &[Leaks], reasons: &mut Vec<String>) -> Vec<PeakFacts> {
        let mut peaks = Vec::new();
        for process in processes {
            for (device, peak_bytes) in &process.peaks {
                let peak = PeakFacts {
                    pid: process.header.pid,
                    rank: process.header.rank,
                    device: ordinal(*device),
                    peak_bytes: *peak_bytes,
                };
                if let Some(most) = self.args.max_peak.filter(|most| peak_bytes > most) {
                    reasons.push(format!(
                        "{} held {} of {} at its peak, {} more than --max-peak {}",
                        process_name(process),
                        size(*peak_bytes),
                        gpu_name(*device),
                        size(peak_bytes - most),
                        size(most),
                    ));
                }
                peaks.push(peak);
            }
        }
        peaks
    }

    fn leaks(&self, processes: &[Leaks], reasons: &mut Vec<String>) -> Vec<JudgedLeak> {
        let mut all = Vec::new();
        for process in processes {
            let lines = one_liners(process);
            for ((leak, facts), line) in process.leaks.iter().zip(json::facts(process)).zip(lines) {
                let least = self.args.fail_on_leak;
                let fails = least.is_some_and(|least| leak.bytes >= least) && leak.is_sure();
                if fails {
                    reasons.push(format!("{}: {line}", process_name(process)));
                }
                all.push(JudgedLeak { fails, leak: facts });
            }
        }
        all
    }
}
