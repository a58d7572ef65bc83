//! `vramtrace run`: runs a command with the recorder preloaded, then prints what it found.

use std::ffi::OsString;
use std::fmt::Display;

use vramtrace_format::policy::{self, Mode, OomReport};
use vramtrace_format::{capspec, recordspec, stackspec};

use super::gate::{self, Gate};
use super::{run_names, run_summary};
use crate::console::message;
use crate::error::{DONE, FOUND, Failure, Outcome};
use crate::launch::child::Status;
use crate::launch::output::RunOutput;
use crate::launch::simulate::{self, Simulated};
use crate::launch::{Launch, elf, signals};
use crate::live_processes::group;

#[derive(clap::Args)]
#[command(
    long_about = "Run a command and record its GPU memory.\n\n\
        The command's exit status is passed through, signals are passed on to it. 127: no such \
        command; 126: it cannot be run; 2: bad input, nothing was run. 1: the command ended with \
        0, and --require, --fail-on-leak or --max-peak failed; a command that fails keeps its own \
        status, and the reasons are on stderr.",
    after_help = "Examples:\n  \
        vramtrace run python train.py\n  \
        vramtrace run --cap 0=8GiB,1=50% --out traces/rank%r.vtrace torchrun train.py\n  \
        vramtrace run --stacks python --stack-depth 200 python train.py\n  \
        vramtrace run --fail-on-leak --max-peak 8GiB --json found.json pytest tests/\n  \
        vramtrace run --job-cap 40GiB torchrun --nproc-per-node 2 train.py\n  \
        vramtrace run --simulate=2x80GiB ./uses-the-driver-api"
)]
pub struct Args {
    /// What each process may take: 8GiB, 50%, 0=8GiB,1=50%, GPU-<uuid>=8GiB
    #[arg(long, value_name = "SPEC", env = "VRAMTRACE_CAP", hide_env_values = true)]
    cap: Option<String>,
    /// What all processes of the command together may take of each device: 8GiB, 50%, 0=8GiB,1=50%
    #[arg(long, value_name = "SPEC")]
    job_cap: Option<String>,
    /// What happens to a request that does not fit: `refuse` it, or `warn` (count it, print a line,
    /// grant it)
    /// [env: VRAMTRACE_CAP_MODE]
    #[arg(long, value_name = "MODE")]
    cap_mode: Option<String>,
    /// Print a line when the use passes this soft limit: 80% (of the cap, else of the device) or 6GiB
    /// [env: VRAMTRACE_CAP_WARN]
    #[arg(long, value_name = "LIMIT")]
    cap_warn: Option<String>,
    /// Where traces go: a directory, or a file (.vtrace), with %h host, %p pid, %r rank,
    /// %e executable, %t start; `off` records nothing
    /// [default: a new vramtrace-DATE-TIME/]
    #[arg(long, value_name = "DIR|FILE|PATTERN", env = "VRAMTRACE_OUT", hide_env_values = true)]
    out: Option<OsString>,
    /// Which call stacks each allocation carries: `native`, `python`, `native,python` or `none`
    /// [env: VRAMTRACE_STACKS]
    #[arg(long, value_name = "LANGUAGES")]
    stacks: Option<String>,
    /// How many frames of each language, from the innermost out, 1 to 1024
    /// [env: VRAMTRACE_STACK_DEPTH]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    stack_depth: Option<String>,
    /// Which stacks the blocks carry into which PyTorch cuts its memory: `python`, `full`, or `off`
    /// to record no blocks [env: VRAMTRACE_TENSORS]
    #[arg(long, value_name = "STACKS")]
    tensors: Option<String>,
    /// Record samples of PyTorch's blocks, by their bytes, and exact totals: for programs that stay on; driver memory is
    /// recorded whole [env: VRAMTRACE_RECORD=sampled]
    #[arg(long)]
    sampled: bool,
    /// With --sampled: above this share of a thread's time fewer samples are taken, e.g. 2%
    /// [env: VRAMTRACE_OVERHEAD]
    #[arg(long, value_name = "PERCENT")]
    overhead: Option<String>,
    /// Where the reason of an out-of-memory is written: `stderr` or `off` [env: VRAMTRACE_OOM_REPORT]
    #[arg(long, value_name = "WHERE")]
    oom_report: Option<String>,
    /// Put the simulated driver in front: no GPU is needed
    #[arg(long, value_name = "NxSIZE", default_missing_value = simulate::DEFAULT)]
    #[arg(num_args = 0..=1, require_equals = true)]
    simulate: Option<String>,
    /// Exit 1 when a process used the driver without being recorded, or none could be; processes are
    /// looked for after 0.1 s, then less and less often: one that lives shorter may be missed
    #[arg(long)]
    require: bool,
    #[command(flatten)]
    gate: gate::Args,
    /// The command and its arguments: all words from the first one that is no option of ours, or
    /// from `--` on
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub fn run(args: Args) -> Outcome {
    let simulate = || args.simulate.as_deref().map(Simulated::new).transpose();
    // What is wrong with it is said before anything else is done.
    simulate()?;
    let command = args.command;
    let executable = elf::examine(&command[0]);
    let escapes = executable.as_ref().map_or(&[][..], |found| &found.escapes);
    for escape in escapes {
        message(format_args!("{} {}", command[0].display(), escape.explanation()));
    }
    let unreachable = escapes.iter().any(|escape| escape.hides_executable());
    if let Some(cap) = &args.cap {
        let wrong = |why| Failure::new(format!("--cap (or VRAMTRACE_CAP) `{cap}`: {why}"));
        capspec::parse(cap).map_err(wrong)?;
    }
    let job = args.job_cap.as_deref().map(job).transpose()?;
    let sampled = args.sampled.then(|| "sampled".to_string());
    let mut settings: Vec<Setting> = Vec::new();
    settings.extend(job.iter().map(|variable| ("VRAMTRACE_CAP_GROUP", variable.clone())));
    let set = &mut settings;
    add(set, "--cap-mode", "VRAMTRACE_CAP_MODE", args.cap_mode, Mode::parse)?;
    add(set, "--cap-warn", "VRAMTRACE_CAP_WARN", args.cap_warn, policy::soft)?;
    add(set, "--stacks", "VRAMTRACE_STACKS", args.stacks, stackspec::languages)?;
    add(set, "--stack-depth", "VRAMTRACE_STACK_DEPTH", args.stack_depth, stackspec::depth)?;
    add(set, "--tensors", "VRAMTRACE_TENSORS", args.tensors, stackspec::tensors)?;
    add(set, "--sampled", "VRAMTRACE_RECORD", sampled, recordspec::recording)?;
    add(set, "--overhead", "VRAMTRACE_OVERHEAD", args.overhead, recordspec::overhead)?;
    add(set, "--oom-report", "VRAMTRACE_OOM_REPORT", args.oom_report, OomReport::parse)?;
    let output = RunOutput::new(args.out.as_deref())?;
    let recorded = !output.is_off();
    let gate = Gate::new(args.gate, recorded)?;
    // Without the group's page every request would be refused.
    let wrong = |problem| Failure::new(format!("--job-cap: {problem}; nothing was run"));
    job.map_or(Ok(()), |_| group::prepare()).map_err(wrong)?;
    let launch = Launch {
        command,
        cap: args.cap,
        settings,
        output,
        simulated: simulate()?,
        quiet_stdout: false,
    };
    let ended = launch.run()?;
    run_names::add(&ended);
    run_summary::print(&ended);
    let missing = if !ended.observed.without_shim.is_empty() {
        Some("a process used the driver without the recorder")
    } else if unreachable && !ended.observed.with_shim && ended.output.traces().is_empty() {
        Some("no process of this run could load the recorder")
    } else {
        None
    };
    let missing = missing.filter(|_| args.require);
    if let Some(missing) = missing {
        message(format_args!("--require: {missing}"));
    }
    let passed = gate.map_or(Ok(true), |gate| gate.passes(&ended))?;
    if let Status::Signalled(signal) = ended.status {
        signals::die_by(signal);
    }
    match ended.status.code() {
        DONE if !passed || missing.is_some() => Ok(FOUND),
        code => Ok(code),
    }
}

/// A variable for the recorder.
pub type Setting = (&'static str, OsString);

/// The value of VRAMTRACE_CAP_GROUP, for a group of the processes of this run alone.
fn job(cap: &str) -> Result<OsString, Failure> {
    capspec::parse(cap).map_err(|why| Failure::new(format!("--job-cap `{cap}`: {why}")))?;
    Ok(format!("{}:{cap}", group::fresh_name()).into())
}

/// Adds the value of an option, else of its variable, if the command can use it. An empty variable counts as unset.
fn add<T, E: Display>(
    settings: &mut Vec<Setting>,
    option: &str,
    variable: &'static str,
    given: Option<String>,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<(), Failure> {
    let by_variable = || std::env::var_os(variable).filter(|value| !value.is_empty());
    let (name, value) = match given {
        Some(value) => (option, value),
        None => match by_variable() {
            Some(value) => (variable, value.to_string_lossy().into_owned()),
            None => return Ok(()),
        },
    };
    parse(&value).map_err(|why| Failure::new(format!("{name} `{value}`: {why}")))?;
    settings.push((variable, value.into()));
    Ok(())
}
