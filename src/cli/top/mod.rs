//! `vramtrace top`: the recorded processes and the lines that grow, live. Reads live pages and growing traces; it
//! neither attaches to the programs nor sends them anything.

mod draw;
mod look;
mod opened;
#[cfg(test)]
mod recorded;
mod row;
mod state;
#[cfg(test)]
mod tests;

use std::io::{IsTerminal, stdout};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyEventKind};

use self::look::{Look, Sources};
use self::opened::LineReader;
use self::state::State;
use crate::console::{message, print_text};
use crate::error::{DONE, Failure, Outcome};
use crate::live_processes;

#[derive(clap::Args)]
#[command(
    long_about = "Show live what the processes of your cards hold: each card with its use over time, \
        each recorded process with the figures of `vramtrace ps`, its rate and the time until its cap \
        or card is full where `vramtrace leaks` says GROWING, the other processes by NVML, and, for \
        the process that is opened, which lines hold its memory and what it is for.\n\n\
        Without a terminal it prints the state once.",
    after_help = "\
Columns, as in `vramtrace ps`:
  live        allocated now         peak      the most that was allocated at once
  counted     what the cap counts; of a process that is not traced, what NVML lists
  refused     requests refused by the cap or the driver
  MiB/min     of the lines that grow; - where none does, ? before the first verdict
  full in     until the cap or the card is full at this rate

Keys:
  up, down    choose a process          Enter   open it: its lines with their callers
  /           filter by text            Esc     back
  q           quit

Examples:
  vramtrace top
  vramtrace top --interval 0.5
  vramtrace top | head                          the state once"
)]
pub struct Args {
    /// Seconds between two looks at the processes, 0.1 to 60
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
}

fn interval(text: &str) -> Result<Duration, &'static str> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=60.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("a number of seconds from 0.1 to 60 is needed"),
    }
}

pub fn run(args: Args) -> Outcome {
    let mut state = State::default();
    let sources = Sources::start(args.interval);
    if !stdout().is_terminal() || !std::io::stdin().is_terminal() {
        let (look, problems) = answered(&sources);
        state.update(&look);
        live_processes::lines(&problems).iter().for_each(message);
        print_text(&draw::text(&state))?;
        return Ok(DONE);
    }
    let mut terminal = ratatui::try_init()?;
    let result = live(&mut terminal, &mut state, &sources, args.interval);
    ratatui::try_restore()?;
    result.map(|()| DONE)
}

/// How long the state that is printed once waits for NVML, and for the verdicts on long traces.
const NVML_WAIT: Duration = Duration::from_secs(2);
const VERDICTS_WAIT: Duration = Duration::from_secs(10);

/// The first look for which all sources have answered, or the last one in these times.
fn answered(sources: &Sources) -> (Look, Vec<live_processes::PageProblem>) {
    let began = Instant::now();
    loop {
        let (look, problems) = sources.look();
        let waited = began.elapsed();
        if (look.cards.is_some() || waited > NVML_WAIT)
            && (look.has_verdicts() || waited > VERDICTS_WAIT)
        {
            return (look, problems);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The longest pause between two looks while NVML or a verdict is outstanding.
const AGAIN: Duration = Duration::from_secs(1);

/// The event loop: updates after each interval, draws after each key, ends when the user quits.
fn live(
    terminal: &mut ratatui::DefaultTerminal,
    state: &mut State,
    sources: &Sources,
    interval: Duration,
) -> Result<(), Failure> {
    let mut reader: Option<LineReader> = None;
    let mut look = sources.look().0;
    state.update(&look);
    let mut looked = Instant::now();
    while !state.is_left {
        if reader.as_ref().map(|reader| reader.pid) != state.opened {
            let trace =
                state.opened.and_then(|pid| Some((pid, state.row_of(pid)?.trace()?.into())));
            reader = trace.map(|(pid, trace)| LineReader::of(pid, trace));
        }
        if let Some(reader) = &reader {
            state.set_lines(reader.latest());
        }
        terminal.draw(|frame| draw::draw(frame, state))?;
        // What has not answered yet is asked again soon.
        let interval = match look.cards.is_some() && look.has_verdicts() {
            true => interval,
            false => interval.min(AGAIN),
        };
        let rest = interval.saturating_sub(looked.elapsed()).min(Duration::from_millis(200));
        let mut has_event = event::poll(rest)?;
        // All that is there, before the next drawing.
        while has_event && !state.is_left {
            if let Event::Key(key) = event::read()?
                && key.kind != KeyEventKind::Release
            {
                state.key(key);
            }
            has_event = event::poll(Duration::ZERO)?;
        }
        if looked.elapsed() >= interval {
            looked = Instant::now();
            look = sources.look().0;
            state.update(&look);
        }
    }
    Ok(())
}
