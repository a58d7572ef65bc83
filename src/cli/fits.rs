//! `vramtrace fits`: which batch fits on a card, from runs at other batches.

use std::path::PathBuf;

use vramtrace_format::{DeviceId, size};
use vramtrace_reader::allocator::Conf;
use vramtrace_reader::analysis::fits::{
    Answer, Axis, Batches, Card, LARGEST_BATCH, Question, Recording, Varied, VariedName, answer,
    card_named, card_names, marked_numbers, usual_settings,
};
use vramtrace_reader::analysis::parallel;
use vramtrace_reader::report::json::FITS;
use vramtrace_reader::report::text::fits::{short, text};
use vramtrace_reader::trace::Trace;

use super::reading::show;
use super::{caveats, select, whatif};
use crate::error::{DONE, FOUND, Failure, Outcome};

/// The answer is the memory that a run needs, and no verdict: the card is of another architecture.
const NO_VERDICT: u8 = 3;

#[derive(clap::Args)]
#[command(
    long_about = "Which batch fits on a card: each block of PyTorch's cache is followed from one recorded batch to \
        another, and the run is replayed at other batches in a model of the allocator, with its first steps.\n\n\
        Two recorded batches are enough: small ones, of a few steps each. One run serves where its steps differ, as \
        with a short last batch. One recorded batch gives a wide interval.\n\n\
        Two numbers may differ, as the batch and the length of samples: three runs tell how the memory follows both, \
        and --at says which one is given, and which is searched.\n\n\
        A batch between those that fit and those that do not is \"too close to say\".",
    after_help = "\
Exit status: 0; 1 if a batch of --batch does not fit or is too close to say; 2 bad input; 3 the card is of another \
architecture than the recorded one: it chooses other kernels, and there is no verdict.

Examples:
  vramtrace fits a.vtrace b.vtrace --recorded batch=4,6 --card 24GiB
  vramtrace fits a.vtrace b.vtrace --card \"RTX 3060\" --in-use 1.2GiB   batches from NVTX ranges `batch=6`
  vramtrace fits a.vtrace b.vtrace --batch 22,24 --json
  vramtrace fits a.vtrace b.vtrace c.vtrace --recorded batch=4,6,4 --recorded length=256,256,512 --at batch=8"
)]
pub struct Args {
    /// Traces of one program, at two batches or more; or a directory with them
    #[arg(value_name = "TRACE", required = true)]
    traces: Vec<PathBuf>,
    /// The batch of each trace; for one trace, of each step; a name alone: from its marks. May be given for two numbers
    /// that differ, as batch and length [default: from NVTX ranges `batch=6` or `batch=6 length=512`]
    #[arg(long, value_name = "batch=N,N")]
    recorded: Vec<String>,
    /// Where two numbers differ: the one that is given; the answer is about the other [default: the length of the
    /// largest recorded run]
    #[arg(long, value_name = "length=N")]
    at: Option<String>,
    /// The memory of a card, e.g. 24GiB, or its name [default: the recorded card]
    #[arg(long, alias = "capacity", value_name = "SIZE|NAME")]
    card: Option<String>,
    /// Bytes of the card that others use: a desktop, other processes [default: on the recorded card what they held
    /// then, if the trace tells; else 0]
    #[arg(long, value_name = "SIZE")]
    in_use: Option<String>,
    /// Predict these batches
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    batch: Vec<u64>,
    /// Predict these lengths
    #[arg(long, value_name = "N,N", value_delimiter = ',', conflicts_with = "batch")]
    length: Vec<u64>,
    /// A setting to try, as in PYTORCH_CUDA_ALLOC_CONF; may be repeated [default: the recorded one,
    /// default and expandable_segments:True]
    #[arg(long, value_name = "STRING")]
    conf: Vec<String>,
    /// The device, by its ordinal as the program saw it [default: the one with the most memory]
    #[arg(long, value_name = "N")]
    device: Option<u8>,
    /// Print one line
    #[arg(long, conflicts_with = "json")]
    short: bool,
    /// Print JSON (schema vramtrace.fits/2)
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Outcome {
    let in_use = |text: &String| match text.as_str() {
        "0" => Ok(0),
        text => whatif::size_of("--in-use", text),
    };
    let in_use = args.in_use.as_ref().map(in_use).transpose()?;
    let card = args.card.as_deref().map(card).transpose()?;
    for (option, values) in [("batch", &args.batch), ("length", &args.length)] {
        if let Some(value) = values.iter().find(|value| !(1..=LARGEST_BATCH).contains(*value)) {
            return Err(Failure::new(format!(
                "--{option} {value}: give a {option} of 1 or more, up to {LARGEST_BATCH}"
            )));
        }
    }
    let marked = !args.recorded.iter().any(|text| text.contains('='));
    let traces =
        args.traces.iter().map(|path| open(path, marked)).collect::<Result<Vec<_>, _>>()?;
    let traces: Vec<Trace> = traces.into_iter().flatten().collect();
    let (varied, batches) = match args.recorded[..] {
        [] => {
            let definitions: Vec<_> = traces.iter().map(|trace| trace.definitions().0).collect();
            let varied = marked_numbers(definitions.iter()).unwrap_or_default();
            let marked = vec![Batches::Marked; varied.names().count()];
            (varied, vec![marked; traces.len()])
        }
        _ => named(&args.recorded, traces.len())?,
    };
    let at = args.at.as_deref().map(|text| given(text, &varied)).transpose()?;
    let values = asked(&args, &varied, at)?;
    let device = args.device.map(DeviceId);
    let all: Vec<&Trace> = traces.iter().collect();
    let read = |index: usize, trace: &Trace, _: &mut dyn FnMut(u64, u64)| {
        let named = args.traces.get(index).filter(|_| traces.len() == args.traces.len());
        let name = named.map_or(trace.path(), PathBuf::as_path).display().to_string();
        Recording::read(&name, trace, device, &varied, &batches[index])
    };
    let recordings: Result<Vec<Recording>, _> =
        parallel::each(&all, &|_, _| {}, read).into_iter().collect();
    let recordings = recordings.map_err(|why| {
        caveats::warn_damage(&traces);
        Failure::new(why)
    })?;
    let confs = confs(&args.conf, &recordings)?;
    let question = Question { at, card, in_use, values, confs };
    let answer = answer(&recordings, &question).map_err(Failure::new)?;
    let text = || if args.short { short(&answer) } else { text(&answer) };
    show(&traces, args.json, FITS, || &answer, text)?;
    Ok(status(&answer))
}

fn status(answer: &Answer) -> u8 {
    match () {
        () if answer.other.is_some() => NO_VERDICT,
        () if answer.all_fit() => DONE,
        () => FOUND,
    }
}

/// The process of a trace, or the processes of a directory: each with its batch in its marks (`marked`), and none of
/// them a rank of one job.
fn open(path: &PathBuf, marked: bool) -> Result<Vec<Trace>, Failure> {
    let traces = select::open(std::slice::from_ref(path))?.traces;
    let one_job = traces.iter().any(|trace| trace.header().rank.is_some());
    match traces.len() {
        1 => Ok(traces),
        _ if marked && !one_job => Ok(traces),
        processes => Err(Failure::new(format!(
            "{}: it has {processes} processes: give the trace of one of them",
            path.display(),
        ))),
    }
}

/// What --recorded names: the numbers that differ, and the values of each trace in their order.
fn named(texts: &[String], traces: usize) -> Result<(Varied, Vec<Vec<Batches>>), Failure> {
    let mut numbers =
        texts.iter().map(|text| number(text, traces)).collect::<Result<Vec<_>, _>>()?;
    let varied = match &numbers[..] {
        [(name, _)] => Varied::one(name.clone()),
        [(one, _), (other, _)] if one != other => Varied::two(one.clone(), other.clone()),
        _ => {
            return Err(Failure::new(format!(
                "--recorded {}: give one number that differs, or two with different names, as batch=4,6,4 and \
                 length=256,256,512",
                texts.join(" --recorded ")
            )));
        }
    };
    numbers.sort_by_key(|(name, _)| *name != varied.first);
    let of_trace = |trace: usize| numbers.iter().map(|(_, of)| of[trace].clone()).collect();
    Ok((varied, (0..traces).map(of_trace).collect()))
}

/// `batch=4,6`: a number that differs, and its value in each trace, or `batch`: its marks name the values.
fn number(text: &str, traces: usize) -> Result<(VariedName, Vec<Batches>), Failure> {
    let wrong = |why: &str| Failure::new(format!("--recorded {text}: {why}, as in batch=4,6"));
    let (name, values) = text.split_once('=').map_or((text, None), |(name, of)| (name, Some(of)));
    let name = VariedName::new(name).ok_or_else(|| wrong("give a name and numbers"))?;
    let Some(values) = values else { return Ok((name, vec![Batches::Marked; traces])) };
    let values: Option<Vec<u64>> = values.split(',').map(value).collect();
    let values = values.ok_or_else(|| wrong("give numbers of 1 or more"))?;
    match traces {
        count if count == values.len() => {
            Ok((name, values.into_iter().map(Batches::Each).collect()))
        }
        1 => Ok((name, vec![Batches::Steps(values)])),
        count => Err(wrong(&format!("{} for {count} traces: give one for each", values.len()))),
    }
}

fn value(text: &str) -> Option<u64> {
    text.trim().parse::<u64>().ok().filter(|value| *value > 0)
}

/// `length=1024`: which of two numbers is given.
fn given(text: &str, varied: &Varied) -> Result<(Axis, u64), Failure> {
    let Some(second) = &varied.second else {
        let first = varied.first.as_str();
        return Err(Failure::new(format!(
            "--at {text}: only the {first} differs between these runs: name the other number of each, \
             as in --recorded {first}=4,6,4 --recorded length=256,256,512"
        )));
    };
    let (first, second) = (varied.first.as_str(), second.as_str());
    let wrong = || {
        Failure::new(format!(
            "--at {text}: give {first}=N or {second}=N, from 1 to {LARGEST_BATCH}"
        ))
    };
    let (name, number) = text.split_once('=').ok_or_else(wrong)?;
    let number = value(number).filter(|value| *value <= LARGEST_BATCH).ok_or_else(wrong)?;
    match name.trim() {
        name if name.eq_ignore_ascii_case(first) => Ok((Axis::First, number)),
        name if name.eq_ignore_ascii_case(second) => Ok((Axis::Second, number)),
        _ => Err(wrong()),
    }
}

/// The values to predict. They are of the number that is searched.
fn asked(args: &Args, varied: &Varied, at: Option<(Axis, u64)>) -> Result<Vec<u64>, Failure> {
    let searched = at.map_or(Axis::First, |(axis, _)| axis.other());
    let name = varied.name(searched);
    let is_batch = name == VariedName::default().as_str();
    let wrong = |option: &str, how: &str| {
        Failure::new(format!("--{option}: the answer is about the {name} of these runs: {how}"))
    };
    if is_batch && !args.length.is_empty() {
        return Err(wrong("length", "give --batch, or --at batch=N where both differ"));
    }
    if varied.second.is_some() && !is_batch && !args.batch.is_empty() {
        return Err(wrong("batch", "give --length, or --at with that number"));
    }
    Ok(if args.length.is_empty() { args.batch.clone() } else { args.length.clone() })
}

fn card(text: &str) -> Result<Card, Failure> {
    if let Some(card) = card_named(text) {
        return Ok(card);
    }
    if let Ok(bytes) = size::parse(text) {
        return Ok(Card::of_size(bytes));
    }
    Err(Failure::new(format!(
        "--card {text}: give the size of its memory, as 24GiB, or one of these names: {}",
        card_names().join(", ")
    )))
}

fn confs(given: &[String], recordings: &[Recording]) -> Result<Vec<(String, Conf)>, Failure> {
    match given {
        [] => Ok(usual_settings(recordings)),
        _ => given.iter().map(|name| whatif::setting(name)).collect(),
    }
}
