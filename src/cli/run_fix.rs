//! `vramtrace run --fix=on-oom`: a command that ended out of memory is started again once, with the setting of
//! PyTorch's allocator that its post-mortem proposes.

use std::fs::File;
use std::io::Seek;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;

use vramtrace_reader::allocator::{CONF_VARIABLE, Conf};
use vramtrace_reader::analysis::oom::PostMortem;
use vramtrace_reader::analysis::whatif::{InForce, Recorded};
use vramtrace_reader::analysis::{self, Collect, Moment, Process, Wanted};
use vramtrace_reader::report::shell::quoted;
use vramtrace_reader::trace::{Trace, load};
use vramtrace_reader::units::size;

use super::run::Setting;
use crate::console::message;
use crate::error::Failure;
use crate::launch::RunResult;
use crate::launch::child::{Status, signal_name};
use crate::launch::output::from_here;

/// When the command is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum When {
    /// The command ended out of memory
    OnOom,
}

/// Runs the command by `run_once`, and again with the setting that fits, if there is one. The result is that of the last run.
pub fn run(
    run_once: impl Fn(Option<Setting>) -> Result<RunResult, Failure>,
) -> Result<RunResult, Failure> {
    let input = input();
    let first = run_once(None)?;
    let (conf, spare) = match remedy(&first, input) {
        None => return Ok(first),
        Some(Err(why)) => {
            message(format_args!("--fix=on-oom: the command is not started again: {why}"));
            return Ok(first);
        }
        Some(Ok(found)) => found,
    };
    let assignment = format!("{CONF_VARIABLE}={}", quoted(&conf));
    message(format_args!(
        "--fix=on-oom: the command was out of memory; it starts again with {assignment} (replayed: it fits, \
         {} to spare)",
        size(spare)
    ));
    let second = run_once(Some((CONF_VARIABLE, conf.into())))?;
    let how = match second.status {
        Status::Exited(code) => format!("ended with status {code}"),
        Status::Signalled(signal) => format!("was ended by {}", signal_name(signal)),
    };
    message(format_args!(
        "--fix=on-oom: the second run, with {assignment}, {how}; first run: {}, second run: {}",
        place(&first),
        place(&second)
    ));
    Ok(second)
}

fn place(run: &RunResult) -> String {
    run.output.shown().map_or("no trace".to_string(), |shown| from_here(&shown))
}

/// A setting under which the command fits, and the bytes that it leaves; or why it is not started again with one. `None`:
/// it did not end out of memory.
fn remedy(ended: &RunResult, input: Input) -> Option<Result<(String, u64), String>> {
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
    let mut processes = analysis::read_all(&traces, Moment::End, Collect::default(), &|_, _| {});
    for (process, trace) in processes.iter_mut().zip(&traces) {
        process.look_closer(trace, Wanted { fatal: true, holders: false });
    }
    processes.iter().any(|process| !process.fatal().is_empty()).then_some(())?;
    Some(allowed(ended, input).and_then(|()| setting(&processes, &traces)))
}

fn allowed(ended: &RunResult, before: Input) -> Result<(), String> {
    if ended.observed.still_running {
        return Err("processes that it started still run".into());
    }
    if let Some(rank) = one_rank(|name| std::env::var(name).ok()) {
        return Err(format!(
            "it is one rank of several ({rank}); start the whole launcher under vramtrace run"
        ));
    }
    if before? == input()? { Ok(()) } else { Err("it read standard input".into()) }
}

/// The setting under which every process that was out of memory fits, and no other process fails; and the bytes
/// that it leaves.
fn setting(processes: &[Process], traces: &[Trace]) -> Result<(String, u64), String> {
    for process in processes {
        if let Some((name, value)) = InForce::of(&process.definitions).variable() {
            return Err(format!("{name}={value} is set, so its allocator is the program's choice"));
        }
    }
    let read = |(one, trace): (&Process, _)| Recorded::of(trace, &one.definitions);
    let recorded: Vec<Vec<Recorded>> = processes.iter().zip(traces).map(read).collect();
    if recorded.iter().flatten().any(|device| device.obstacles.mapped_by_others) {
        return Err("the program sets PyTorch's allocator itself".into());
    }
    let at = |(process, fatal): &(&Process, &PostMortem)| {
        process.header.start_unix_ns.saturating_add(fatal.oom.time_ns)
    };
    let failures = processes.iter().flat_map(|one| one.fatal().iter().map(move |of| (one, of)));
    let first = failures.min_by_key(at);
    let fix = |(first, fatal): (_, &PostMortem)| Some((first, fatal.remedy.as_ref()?.fix.clone()?));
    let none = "no setting of PyTorch's allocator is known that fits";
    let (first, (conf, spare)): (&Process, _) = first.and_then(fix).ok_or(none)?;
    // The first process to fail is often the cause that others end, but each must go on with the setting.
    let fits = |fatal: &PostMortem| {
        let tried = fatal.remedy.as_ref().map_or(&[][..], |remedy| &remedy.settings);
        tried.iter().any(|it| it.name == conf && it.fits() && it.forbidden.is_none())
    };
    let parsed = Conf::parse(&conf).unwrap_or_default();
    let works = |process: &Process, recorded: &[Recorded]| {
        process.fatal().iter().all(fits)
            && recorded.iter().all(|device| device.forbids(&conf, &parsed).is_none())
    };
    match processes.iter().zip(&recorded).find(|(process, recorded)| !works(process, recorded)) {
        Some((other, _)) => {
            Err(format!("{conf}, which fits for {}, does not for {}", first.name(), other.name()))
        }
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

/// How far standard input is read, if it is a file, whose offset is shared with the command. `None`: nothing can be lost.
/// An error: what was read is gone.
type Input = Result<Option<u64>, &'static str>;

fn input() -> Input {
    let copy = std::io::stdin().as_fd().try_clone_to_owned();
    let Some(mut file) = copy.ok().map(File::from) else { return Ok(None) };
    let Ok(kind) = file.metadata().map(|it| it.file_type()) else { return Ok(None) };
    if kind.is_fifo() || kind.is_socket() {
        return Err(
            "standard input is a pipe or a socket, and what it read of that is gone; give \
                    `< /dev/null`",
        );
    }
    // At a terminal one can type again.
    Ok(file.stream_position().ok().filter(|_| kind.is_file() || kind.is_block_device()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
