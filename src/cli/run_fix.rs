//! `vramtrace run --fix=on-oom`: a command that ended out of memory is started again once, with the setting of
//! PyTorch's allocator that its post-mortem proposes.

use std::ffi::OsString;
use std::fs::File;
use std::io::Seek;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::time::{Duration, Instant};

use jiff::SignedDuration;
use vramtrace_format::torch_conf::CONF_VARIABLES;
use vramtrace_reader::allocator::{CONF_VARIABLE, Conf};
use vramtrace_reader::analysis::oom::PostMortem;
use vramtrace_reader::analysis::whatif::{InForce, Recorded};
use vramtrace_reader::analysis::{self, Collect, Moment, Process, Wanted};
use vramtrace_reader::report::shell::quoted;
use vramtrace_reader::trace::{Trace, load};
use vramtrace_reader::units::size;

use crate::error::Failure;
use crate::launch::RunResult;
use crate::launch::child::Status;
use crate::launch::output::{Output, from_here};

#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// If the command ends out of memory and another setting of PyTorch's allocator fits (replayed),
    /// start it again once with that setting. It then writes its files, logs and checkpoints again:
    /// the option is the permission for that. Exit status: that of the second run. Not if it read
    /// standard input, or sets PYTORCH_CUDA_ALLOC_CONF itself, or is one rank of a job
    #[arg(long, value_name = "WHEN", value_enum)]
    fix: Option<When>,
    /// For --fix: only if the command ended within this time after its start: 90s, 5m, 1h
    #[arg(long, value_name = "TIME", default_value = "5m", requires = "fix", value_parser = within)]
    fix_within: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum When {
    /// The command ended out of memory
    OnOom,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("give a time above zero with its unit, like 90s, 5m or 1h")]
pub struct NotATime;

pub fn within(text: &str) -> Result<Duration, NotATime> {
    let parsed: SignedDuration = text.parse().map_err(|_| NotATime)?;
    Duration::try_from(parsed).ok().filter(|time| !time.is_zero()).ok_or(NotATime)
}

/// The options, and what has to be known from before the command starts.
pub struct Fix {
    within: Duration,
    started: Instant,
    input: Input,
}

/// A second run.
pub struct Again {
    conf: String,
    /// Bytes that it leaves, by the replay.
    spare: u64,
    /// Where the traces of the first run are: the second one may write beside them.
    first: String,
}

/// Why a command that was out of memory is not started again.
#[derive(Debug, thiserror::Error)]
pub enum NotAgain {
    #[error("it ended {} s after its start, later than --fix-within", .0.as_secs())]
    Late(Duration),
    #[error("processes that it started still run")]
    StillRunning,
    #[error("it is one rank of several ({0}); start the whole launcher under vramtrace run")]
    OneRank(String),
    #[error("{0}")]
    Input(&'static str),
    #[error("{0} is set, so its allocator is the program's choice")]
    OwnSetting(String),
    #[error("the program sets PyTorch's allocator itself")]
    OwnAllocator,
    #[error("no setting of PyTorch's allocator is known that fits")]
    NoSetting,
    #[error("{conf}, which fits for {first}, does not for {other}")]
    OtherProcess { conf: String, first: String, other: String },
}

impl Fix {
    /// `None`: the option is not given. Call it right before the command starts.
    pub fn new(args: &Args, output: &Output) -> Result<Option<Fix>, Failure> {
        if args.fix.is_none() {
            return Ok(None);
        }
        if output.is_off() {
            return Err(Failure::new(
                "--fix needs a trace: give --out (or VRAMTRACE_OUT) a place instead of `off`",
            ));
        }
        Ok(Some(Fix { within: args.fix_within, started: Instant::now(), input: Input::now() }))
    }

    /// What to start the command again with. `None`: it did not end out of memory.
    pub fn again(&self, ended: &RunResult) -> Option<Result<Again, NotAgain>> {
        let took = self.started.elapsed();
        // An uncaught C++ exception ends by SIGABRT; other signals are the wish of someone else.
        let failed = match ended.status {
            Status::Exited(code) => code != 0,
            Status::Signalled(signal) => signal == libc::SIGABRT,
        };
        let traces = ended.output.traces();
        if !failed || traces.is_empty() {
            return None;
        }
        // The summary says what cannot be read.
        let traces = load(&traces).ok()?.traces;
        let mut processes =
            analysis::read_all(&traces, Moment::End, Collect::default(), &|_, _| {});
        for (process, trace) in processes.iter_mut().zip(&traces) {
            process.look_closer(trace, Wanted { fatal: true, ..Wanted::default() });
        }
        processes.iter().any(|process| !process.fatal.is_empty()).then_some(())?;
        let found = self.allowed(took, ended).and_then(|()| setting(&processes, &traces));
        Some(found.map(|(conf, spare)| Again { conf, spare, first: place(ended) }))
    }

    fn allowed(&self, took: Duration, ended: &RunResult) -> Result<(), NotAgain> {
        if took > self.within {
            return Err(NotAgain::Late(took));
        }
        if ended.observed.still_running {
            return Err(NotAgain::StillRunning);
        }
        if let Some(rank) = one_rank(|name| std::env::var(name).ok()) {
            return Err(NotAgain::OneRank(rank));
        }
        self.input.still_whole().map_err(NotAgain::Input)?;
        let set = CONF_VARIABLES.iter().find_map(|name| {
            let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
            Some(format!("{name}={}", value.display()))
        });
        set.map_or(Ok(()), |set| Err(NotAgain::OwnSetting(set)))
    }
}

fn place(run: &RunResult) -> String {
    run.output.shown().map_or("no trace".to_string(), |shown| from_here(&shown))
}

impl Again {
    /// The variable for the second run.
    pub fn variable(&self) -> (&'static str, OsString) {
        (CONF_VARIABLE, OsString::from(&self.conf))
    }

    /// The line before the second run.
    pub fn first_line(&self) -> String {
        format!(
            "--fix=on-oom: the command was out of memory; it starts again with {} (replayed: it fits, \
             {} to spare)",
            self.assignment(),
            size(self.spare)
        )
    }

    /// The line after the second run.
    pub fn last_line(&self, second: &RunResult) -> String {
        let how = match second.status {
            Status::Exited(code) => format!("ended with status {code}"),
            Status::Signalled(signal) => format!("was ended by signal {signal}"),
        };
        format!(
            "--fix=on-oom: the second run, with {}, {how}; first run: {}, second run: {}",
            self.assignment(),
            self.first,
            place(second)
        )
    }

    fn assignment(&self) -> String {
        format!("{CONF_VARIABLE}={}", quoted(&self.conf))
    }
}

/// The setting under which every process that was out of memory fits, and no other process fails; and the bytes
/// that it leaves.
fn setting(processes: &[Process], traces: &[Trace]) -> Result<(String, u64), NotAgain> {
    for process in processes {
        let in_force = InForce::of(&process.definitions);
        if let Some((name, value)) = in_force.variable() {
            return Err(NotAgain::OwnSetting(format!("{name}={value}")));
        }
    }
    let recorded: Vec<Vec<Recorded>> = processes
        .iter()
        .zip(traces)
        .map(|(process, trace)| Recorded::of(trace, &process.definitions))
        .collect();
    if recorded.iter().flatten().any(|device| device.obstacles.mapped_by_others) {
        return Err(NotAgain::OwnAllocator);
    }
    let at = |(process, fatal): &(&Process, &PostMortem)| {
        process.header.start_unix_ns.saturating_add(fatal.oom.time_ns)
    };
    let failures = || {
        processes.iter().flat_map(|process| process.fatal.iter().map(move |fatal| (process, fatal)))
    };
    let (first, fatal) = failures().min_by_key(at).ok_or(NotAgain::NoSetting)?;
    let remedy = fatal.remedy.as_ref().ok_or(NotAgain::NoSetting)?;
    let (conf, spare) = remedy.fix.clone().ok_or(NotAgain::NoSetting)?;
    // The first process to fail is often the cause that others end, but each must go on with the setting.
    let fits = |fatal: &PostMortem| {
        let tried = fatal.remedy.as_ref().map_or(&[][..], |remedy| &remedy.settings);
        tried.iter().any(|it| it.conf == conf && it.fits && it.forbidden.is_none())
    };
    let parsed = Conf::parse(&conf).unwrap_or_default();
    let works = |process: &Process, recorded: &[Recorded]| {
        process.fatal.iter().all(fits)
            && recorded.iter().all(|device| device.forbids(&conf, &parsed).is_none())
    };
    match processes.iter().zip(&recorded).find(|(process, recorded)| !works(process, recorded)) {
        Some((other, _)) => Err(NotAgain::OtherProcess {
            conf: conf.clone(),
            first: first.name(),
            other: other.name(),
        }),
        None => Ok((conf, spare)),
    }
}

/// `WORLD_SIZE=8`, where a launcher has started this process as one of several.
fn one_rank(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    // SLURM_NTASKS is also set in a batch script, which is the whole job.
    let sizes = [
        ("RANK", "WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
    ];
    sizes.into_iter().find_map(|(rank, size)| {
        variable(rank)?;
        let count: u64 = variable(size)?.trim().parse().ok()?;
        (count > 1).then(|| format!("{size}={count}"))
    })
}

/// Standard input before the command started. What a program has read, a second run does not get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    /// Closed, /dev/null, or a terminal, at which one can type again.
    Harmless,
    /// A file, read up to here. Its offset is shared with the command.
    File { offset: u64 },
    /// A pipe or a socket: whether something was read of it is not known.
    Stream,
}

impl Input {
    fn now() -> Input {
        let copy = std::io::stdin().as_fd().try_clone_to_owned();
        let Some(mut file) = copy.ok().map(File::from) else { return Input::Harmless };
        let Ok(kind) = file.metadata().map(|it| it.file_type()) else { return Input::Harmless };
        if kind.is_fifo() || kind.is_socket() {
            return Input::Stream;
        }
        match file.stream_position() {
            Ok(offset) if kind.is_file() || kind.is_block_device() => Input::File { offset },
            _ => Input::Harmless,
        }
    }

    /// Whether a second run gets all that the first one got.
    fn still_whole(self) -> Result<(), &'static str> {
        match self {
            Input::Harmless => Ok(()),
            Input::File { .. } if Input::now() == self => Ok(()),
            Input::File { .. } => Err("it read standard input"),
            Input::Stream => {
                Err("standard input is a pipe or a socket, and what it read of that is gone; give \
                 `< /dev/null`")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(within("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(within("1h30m"), Ok(Duration::from_secs(5400)));
        for bad in ["", "5", "0s", "-5m", "soon"] {
            assert_eq!(within(bad), Err(NotATime), "{bad}");
        }
    }

    #[test]
    fn a_rank_of_several_is_known_by_its_launcher() {
        let of = |set: &[(&str, &str)]| {
            one_rank(|name| {
                let found = set.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| value.to_string())
            })
        };
        assert_eq!(of(&[("RANK", "0"), ("WORLD_SIZE", "8")]).as_deref(), Some("WORLD_SIZE=8"));
        assert_eq!(of(&[("RANK", "0"), ("WORLD_SIZE", "1")]), None);
        // What torchrun would be given.
        assert_eq!(of(&[("WORLD_SIZE", "8")]), None);
        assert_eq!(of(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")]), None, "a batch script");
        let step = of(&[("SLURM_PROCID", "3"), ("SLURM_STEP_NUM_TASKS", "8")]);
        assert_eq!(step.as_deref(), Some("SLURM_STEP_NUM_TASKS=8"));
    }
}
