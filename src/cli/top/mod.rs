//! `vramtrace top`: the recorded processes and the lines that grow, live. Reads live pages and growing traces; it
//! neither attaches to the programs nor sends them anything.

mod draw;
mod growth;
mod inside;
#[cfg(test)]
mod recorded;
mod state;
#[cfg(test)]
mod tests;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyEventKind};

use self::growth::LineReader;
use self::state::{State, View};
use crate::console::{message, print_text};
use crate::error::{DONE, Failure, Outcome};
use crate::live_processes::{self, process};

#[derive(clap::Args)]
#[command(
    long_about = "Show live what your recorded processes hold: each card with its use over time, each \
        process with its cap and refusals, and, for the process that is opened, which lines grow, what \
        its memory is for, and how full its segments are.\n\n\
        Without a terminal it prints the state once.",
    after_help = "\
Keys:
  up, down    choose a process          Enter   open it: its lines, growing or falling
  s           sort by another column    p       pause
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

#[derive(Debug, thiserror::Error)]
#[error("a number of seconds from 0.1 to 60 is needed")]
struct NotAnInterval;

fn interval(text: &str) -> Result<Duration, NotAnInterval> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=60.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(NotAnInterval),
    }
}

pub fn run(args: Args) -> Outcome {
    let mut state = State::default();
    let (processes, problems) = process::all();
    state.update(processes);
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        live_processes::lines(&problems).iter().for_each(message);
        print_text(&state.once())?;
        return Ok(DONE);
    }
    let mut terminal = ratatui::try_init()?;
    let result = live(&mut terminal, &mut state, args.interval);
    ratatui::try_restore()?;
    result.map(|()| DONE)
}

/// The event loop: updates after each interval, draws after each key, ends when the user quits.
fn live(
    terminal: &mut ratatui::DefaultTerminal,
    state: &mut State,
    interval: Duration,
) -> Result<(), Failure> {
    let mut growth: Option<LineReader> = None;
    let mut looked = Instant::now();
    while !state.is_left {
        // The user opened another process, or went back to the list.
        let wanted = match state.view {
            View::Process(pid) => Some(pid),
            View::List => None,
        };
        if growth.as_ref().map(|growth| growth.pid) != wanted {
            growth = wanted.and_then(|pid| Some(LineReader::of(pid, state.trace_of(pid)?)));
        }
        if let Some(growth) = &growth
            && !state.is_paused
        {
            (state.lines, state.inside) = growth.latest();
        }
        terminal.draw(|frame| draw::draw(frame, state))?;
        let rest = interval.saturating_sub(looked.elapsed()).min(Duration::from_millis(200));
        if event::poll(rest)?
            && let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
        {
            state.key(key);
        }
        if looked.elapsed() >= interval {
            looked = Instant::now();
            if !state.is_paused {
                state.update(process::all().0);
            }
        }
    }
    Ok(())
}
