//! `vramtrace pack`: copies traces with the names of native functions, so that another machine can read them.

use std::collections::HashSet;
use std::io::Seek;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use vramtrace_reader::files::{self, Directory};
use vramtrace_reader::symbols::Packed;
use vramtrace_reader::trace::{Trace, copy_with};

use super::caveats;
use super::output::Output;
use super::select::{self, Selected, paths, traces_only};
use crate::console::message;
use crate::error::{DONE, Failure, Outcome};

#[derive(clap::Args)]
#[command(
    long_about = "Copy a trace with the names of its native functions in it, for a machine that \
        does not have the program's libraries. Everything else stays as it is.",
    after_help = "\
Examples:
  vramtrace pack train.vtrace                         writes train.packed.vtrace
  vramtrace pack train.vtrace -o for-anna.vtrace
  vramtrace pack train.vtrace -o for-anna.vtrace.gz   compressed; every command reads it
  vramtrace pack vramtrace-20260101-120000/           all ranks: vramtrace-20260101-120000.packed/"
)]
pub struct Args {
    /// Trace files or a run's directory; default: the newest run in the working directory
    traces: Vec<PathBuf>,
    /// Where to: a file for one trace, else a directory; default: beside it, with `.packed`
    #[arg(long, short, value_name = "FILE|DIR")]
    output: Option<PathBuf>,
    /// Replace what is there
    #[arg(long)]
    force: bool,
}

pub fn run(args: Args) -> Outcome {
    traces_only(&args.traces, "only a trace has names to pack")?;
    let Selected { traces, chosen } = select::open(&args.traces)?;
    if let Some(running) = traces.iter().find(|trace| trace.is_running()) {
        return Err(Failure::new(format!(
            "{}: its process (pid {}) is still running: pack it after it has ended",
            running.path().display(),
            running.header().pid
        )));
    }
    let only = args.traces.first().filter(|_| args.traces.len() == 1);
    let source = chosen.as_ref().or(only);
    let pairs = match &traces[..] {
        [only] if is_one_file(source.map(PathBuf::as_path), args.output.as_deref()) => {
            let packed = || packed_name(source.map_or(only.path(), PathBuf::as_path));
            vec![(only, args.output.unwrap_or_else(packed))]
        }
        traces => {
            let to = args.output.or(source.map(|source| packed_name(source)));
            let to = to.ok_or("several traces: give the directory for them with -o DIR");
            into_directory(traces, &to.map_err(Failure::new)?)?
        }
    };
    let open = |(trace, to): (_, PathBuf)| {
        let output = Output::new(&to, args.force)?;
        output.refuse_inputs(paths(&traces))?;
        Ok((trace, output))
    };
    // All outputs are checked before the first is written.
    let outputs = pairs.into_iter().map(open).collect::<Result<Vec<_>, Failure>>()?;
    for (trace, output) in &outputs {
        pack(trace, output)?;
    }
    Ok(DONE)
}

/// Whether one trace is written to one file: its source is a file, or the output names no directory.
fn is_one_file(source: Option<&Path>, output: Option<&Path>) -> bool {
    match (source, output) {
        (Some(source), _) if !source.is_dir() => true,
        (_, Some(output)) => !output.is_dir() && !output.as_os_str().as_bytes().ends_with(b"/"),
        (_, None) => false,
    }
}

/// `train.vtrace` to `train.packed.vtrace`, `run/` to `run.packed`.
fn packed_name(source: &Path) -> PathBuf {
    // A path such as `.` or `..` has no last name.
    let full = source.canonicalize().unwrap_or_else(|_| source.to_path_buf());
    let (named, path) = match source.file_name() {
        Some(name) => (name, source),
        None => (full.file_name().unwrap_or("run".as_ref()), &*full),
    };
    let named = named.to_string_lossy();
    path.with_file_name(match named.strip_suffix(".vtrace") {
        Some(stem) => format!("{stem}.packed.vtrace"),
        None => format!("{named}.packed"),
    })
}

fn into_directory<'t>(
    traces: &'t [Trace],
    directory: &Path,
) -> Result<Vec<(&'t Trace, PathBuf)>, Failure> {
    Directory::made(directory)
        .map_err(|error| Failure::new(format!("{}: {error}", directory.display())))?;
    let to = |trace: &Trace| directory.join(trace.path().file_name().unwrap_or_default());
    let pairs: Vec<_> = traces.iter().map(|trace| (trace, to(trace))).collect();
    let mut names = HashSet::new();
    match pairs.iter().find(|(_, to)| !names.insert(to)) {
        Some((trace, _)) => Err(Failure::new(format!(
            "{}: another trace has the same name: pack them one by one",
            trace.path().display()
        ))),
        None => Ok(pairs),
    }
}

fn pack(trace: &Trace, to: &Output) -> Result<(), Failure> {
    let (definitions, _) = trace.definitions();
    // Damage is known only after all events were read.
    trace.for_each_event(&mut |_| {});
    caveats::warn_damage([trace]);
    let packed = Packed::of(&definitions, trace.header());
    to.write_at(|file| {
        match to.path.extension().is_some_and(|own| own == "gz") {
            false => copy_with(trace, &packed.definitions, file)?,
            true => {
                let mut whole = tempfile::tempfile()?;
                copy_with(trace, &packed.definitions, &whole)?;
                whole.rewind()?;
                let mut compressed = GzEncoder::new(file, Compression::default());
                std::io::copy(&mut whole, &mut compressed)?;
                compressed.finish()?;
            }
        }
        // The new file, which is created 0600, is for the readers of the trace. Its other bits are those of the user who wrote
        // the trace: they are not taken over.
        let mode = std::fs::metadata(trace.path())?.permissions().mode();
        files::set_mode(file, mode & 0o044 | 0o600)
    })?;
    packed.problems.iter().for_each(message);
    let before = match packed.before {
        0 => String::new(),
        before => format!(", {before} had names before"),
    };
    let now = packed.addresses;
    message(format_args!("{}: added the names of {now} native addresses{before}", to.shown()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beside_the_source() {
        let named = |source: &str| packed_name(Path::new(source)).to_str().unwrap().to_string();
        assert_eq!(named("train.vtrace"), "train.packed.vtrace");
        assert_eq!(named("a/b.7.vtrace"), "a/b.7.packed.vtrace");
        assert_eq!(named("runs/vramtrace-1-2/"), "runs/vramtrace-1-2.packed");
        assert_eq!(named("odd.name"), "odd.name.packed");
    }
}
