//! `vramtrace demo`: a recorded training run that comes with the command, why it was out of memory, as text and as a
//! page; and which batch would fit, by two small recorded batches. Needs no GPU and no PyTorch.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::{Path, PathBuf};

use vramtrace_reader::files::{self, Directory};

use super::output::Output;
use crate::error::{DONE, Failure, Outcome};
use crate::launch::output::{RunOutput, from_here};

/// A trace, as it was recorded or imported: `tests/gpu/programs/train.py` under a cap, on a card.
const RECORDED: &[u8] = include_bytes!("../../assets/recorded.vtrace.gz");
const NAME: &str = "recorded.vtrace";
/// The same model at two batches, whose larger ones were really run (docs/fits.md).
const BATCHES: [(&str, &[u8]); 2] = [
    ("batch4.vtrace", include_bytes!("../../tests/data/fits/gpt2_b4.vtrace.gz")),
    ("batch6.vtrace", include_bytes!("../../tests/data/fits/gpt2_b6.vtrace.gz")),
];
/// Below the run, so that the run stays one process.
const BATCHES_IN: &str = "batches";
const CARD: &str = "24GiB";

#[derive(clap::Args)]
#[command(
    long_about = "Explain a recorded run of PyTorch that was out of memory. The recording comes \
        with this command; no GPU is needed.",
    after_help = "Examples:\n  vramtrace demo"
)]
pub struct Args {
    /// The directory for the recording and its page [default: a new vramtrace-DATE-TIME/]
    #[arg(long, value_name = "DIR")]
    out: Option<OsString>,
}

/// `execute` runs another vramtrace command, given its arguments.
pub fn run(args: Args, execute: &dyn Fn(&[&OsStr]) -> Outcome) -> Outcome {
    let directory = directory(args.out)?;
    let trace = directory.join(NAME);
    unpack(&trace, RECORDED)?;
    let batches = directory.join(BATCHES_IN);
    Directory::made(&batches).map_err(|error| cannot(&batches, &error))?;
    for (name, packed) in BATCHES {
        unpack(&batches.join(name), packed)?;
    }
    let shown = from_here(&trace);
    println!("A recorded run: GPT-2 on an H200 under a cap. Why was it out of memory?\n");
    println!("vramtrace oom --short {shown}");
    execute(&["oom".as_ref(), "--short".as_ref(), shown.as_ref()])?;
    let page = trace.with_extension("html");
    // A page that is there is an earlier demo's, or another's: nothing is overwritten.
    if page.symlink_metadata().is_err() {
        let page = page.as_os_str();
        let report = ["report", "--no-hints", "--html"].map(OsStr::new);
        execute(&[&report[..], &["-o".as_ref(), page, shown.as_ref()]].concat())?;
    }
    let batches = from_here(&batches);
    println!("\nvramtrace fits --short {batches} --card {CARD}    # from its batches 4 and 6");
    execute(&["fits", "--short", &batches, "--card", CARD].map(OsStr::new))?;
    println!("\nAs a page:     {}", from_here(&page));
    println!("Look further:  vramtrace oom {shown}");
    println!("Your program:  vramtrace run python train.py");
    Ok(DONE)
}

/// `out`, or a new directory.
fn directory(out: Option<OsString>) -> Result<PathBuf, Failure> {
    match out {
        Some(directory) => {
            Directory::made(Path::new(&directory))
                .map_err(|error| cannot(Path::new(&directory), &error))?;
            Ok(PathBuf::from(directory))
        }
        None => {
            let mut output = RunOutput::new(None)?;
            output.create()?;
            output.shown().ok_or_else(|| Failure::new("no directory for the trace"))
        }
    }
}

/// Writes a trace. A file of that name with other contents is an error: nothing is overwritten.
fn unpack(path: &Path, packed: &[u8]) -> Result<(), Failure> {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes)?;
    match path.symlink_metadata().map(|_| files::read(path, bytes.len() as u64)) {
        // An earlier demo wrote it.
        Ok(Ok(there)) if there == bytes => Ok(()),
        Ok(_) => {
            let shown = path.display();
            Err(Failure::new(format!(
                "{shown} exists and is not the recorded run: give another --out"
            )))
        }
        Err(_) => Ok(Output::new(path, false)?.write(|out| out.write_all(&bytes))?),
    }
}

fn cannot(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    /// The recording is part of the executable and of the repository.
    #[test]
    fn what_ships_is_small() {
        let batches = super::BATCHES.iter().map(|(_, packed)| packed.len()).sum::<usize>();
        assert!(super::RECORDED.len() < 1_000_000 && batches < 250_000, "{batches}");
    }
}
