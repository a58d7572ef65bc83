//! `vramtrace pack`: traces that need nothing of this machine.

use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;
use vramtrace_reader::symbols::Packed;
use vramtrace_reader::trace::{Trace, load};

use super::{DONE, Failure, Outcome, say};

#[derive(clap::Args)]
#[command(
    long_about = "Copy a trace with the names of its native functions in it, for a machine that \
        does not have the program's libraries. Everything else stays as it is.",
    after_help = "\
Examples:
  vramtrace pack train.vtrace                         writes train.packed.vtrace
  vramtrace pack train.vtrace -o for-anna.vtrace
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
    let loaded = load(&args.traces)?;
    loaded.warnings.iter().for_each(say);
    if let Some(living) = loaded.traces.iter().find(|trace| trace.is_living()) {
        return Err(Failure::new(format!(
            "{}: its process still runs (pid {}): pack it when that has ended",
            living.path().display(),
            living.header().pid
        )));
    }
    let source = match (&loaded.chosen, &args.traces[..]) {
        (Some(chosen), _) => Some(chosen),
        (None, [only]) => Some(only),
        _ => None,
    };
    let pairs = match (source, &loaded.traces[..]) {
        (Some(source), [only]) if !source.is_dir() => {
            let to = args.output.unwrap_or_else(|| packed_name(source));
            vec![(only, to)]
        }
        (source, traces) => {
            let to = args.output.or(source.map(|source| packed_name(source)));
            let directory = to.ok_or_else(|| {
                Failure::new("several traces: give the directory for them with -o DIR")
            })?;
            into_directory(traces, &directory)?
        }
    };
    for (trace, to) in &pairs {
        free(trace, to, args.force)?;
    }
    for (trace, to) in pairs {
        pack(trace, &to, args.force)?;
    }
    Ok(DONE)
}

/// `train.vtrace` to `train.packed.vtrace`, `run/` to `run.packed`.
fn packed_name(source: &Path) -> PathBuf {
    // A name as `.` or `..` has none of its own.
    let full = source.canonicalize().unwrap_or_else(|_| source.to_path_buf());
    let (named, path) = match source.file_name() {
        Some(name) => (name, source),
        None => (full.file_name().unwrap_or("run".as_ref()), &*full),
    };
    let named = Path::new(named);
    let mut name = match named.extension() {
        Some(extension) if extension == "vtrace" => named.file_stem().unwrap_or_default(),
        _ => named.as_os_str(),
    }
    .to_os_string();
    name.push(".packed");
    if named.extension().is_some_and(|extension| extension == "vtrace") {
        name.push(".vtrace");
    }
    path.with_file_name(name)
}

fn into_directory<'t>(
    traces: &'t [Trace],
    directory: &Path,
) -> Result<Vec<(&'t Trace, PathBuf)>, Failure> {
    std::fs::create_dir_all(directory)
        .map_err(|error| Failure::new(format!("{}: {error}", directory.display())))?;
    let to = |trace: &Trace| directory.join(trace.path().file_name().unwrap_or_default());
    let pairs: Vec<_> = traces.iter().map(|trace| (trace, to(trace))).collect();
    for (at, (trace, to)) in pairs.iter().enumerate() {
        if let Some((other, _)) = pairs[..at].iter().find(|(_, other)| other == to) {
            return Err(Failure::new(format!(
                "{} and {} have the same name: pack them one by one",
                other.path().display(),
                trace.path().display()
            )));
        }
    }
    Ok(pairs)
}

/// Refuses to replace what is there; the trace itself in any case.
fn free(trace: &Trace, to: &Path, force: bool) -> Result<(), Failure> {
    let shown = to.display();
    if to.canonicalize().is_ok_and(|to| trace.path().canonicalize().is_ok_and(|from| from == to)) {
        return Err(Failure::new(format!(
            "{shown} is the trace itself: give another name with -o"
        )));
    }
    if to.is_dir() {
        return Err(Failure::new(format!("{shown} is a directory: give a file for one trace")));
    }
    super::export::check_output(to, force)
}

fn pack(trace: &Trace, to: &Path, force: bool) -> Result<(), Failure> {
    let shown = to.display();
    let failed = |error: std::io::Error| Failure::new(format!("{shown}: {error}"));
    let (definitions, damage) = trace.definitions();
    if !damage.is_empty() {
        say(format_args!("{}: a part of it is broken, and is copied so", trace.path().display()));
    }
    let packed = Packed::of(&definitions, trace.header());
    let directory = to.parent().filter(|parent| *parent != Path::new(""));
    let file = NamedTempFile::new_in(directory.unwrap_or(Path::new("."))).map_err(failed)?;
    trace.copy_with(&packed.definitions, file.as_file()).map_err(failed)?;
    readable_as(trace, &file).map_err(failed)?;
    let kept = if force { file.persist(to) } else { file.persist_noclobber(to) };
    kept.map_err(|error| failed(error.error))?;
    packed.problems.iter().for_each(|problem| say(format_args!("without names: {problem}")));
    let before = match packed.before {
        0 => String::new(),
        before => format!(", {before} had theirs"),
    };
    let now = packed.addresses;
    say(format_args!("{shown}: names of {now} native addresses are in it{before}"));
    Ok(())
}

/// A temporary file is its owner's alone.
fn readable_as(trace: &Trace, file: &NamedTempFile) -> std::io::Result<()> {
    let permissions = std::fs::metadata(trace.path())?.permissions();
    file.as_file().set_permissions(permissions)
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
