//! The recorded run that comes with the command, as `top` would have shown it at its peak.
//! `VRAMTRACE_PICTURE=FILE` writes the opened process with its colours: `web/tests/screenshots.sh`
//! makes a picture of it.

use std::fmt::Write;
use std::io::Read;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier};
use vramtrace_format::DeviceId;
use vramtrace_reader::analysis::roles::{LiveRoles, RoleLearner};
use vramtrace_reader::analysis::{Moment, Process};
use vramtrace_reader::replay::{State as ReplayState, Until};
use vramtrace_reader::symbols::Symbols;
use vramtrace_reader::trace::{Trace, open};

use super::draw::draw;
use super::look::Look;
use super::opened::{Lines, lines};
use super::state::State;
use super::tests::{device, look, process};
use crate::live_processes::followed::TraceFigures;

const RECORDED: &[u8] = include_bytes!("../../../assets/recorded.vtrace.gz");
/// Looks at the process, from its start on.
const LOOKS: u64 = 96;

/// The trace, in a file that goes with the handle.
fn unpacked() -> (tempfile::NamedTempFile, Trace) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(RECORDED).read_to_end(&mut bytes).unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let trace = open(file.path()).unwrap();
    (file, trace)
}

/// The lines and roles at a moment of a trace.
fn at(trace: &Trace, until: Until) -> Lines {
    let definitions = trace.definitions().0;
    let all = Symbols::of_all(&definitions, trace.header());
    let mut learner = RoleLearner::new(&definitions, &all);
    let mut state = ReplayState::default();
    let mut there = (vec![until], |_: usize, at: &ReplayState| state = at.clone());
    trace.visit_observed(&definitions, &mut [&mut there], &mut learner.observer());
    let roles = LiveRoles::now(&learner).sums(&state).into_iter().collect();
    lines((trace.header(), &definitions, &state), &TraceFigures { roles, ..Default::default() })
}

/// At the peak of the run; opened when half of the time up to it was over.
fn opened(trace: &Trace) -> State {
    let definitions = trace.definitions().0;
    let gpu = DeviceId(0);
    let end = Process::read(trace, Moment::AllocatedPeak).state.time_ns;
    let header = trace.header();
    let stops: Vec<Until> = (1..=LOOKS).map(|n| Until::Time(end * n / LOOKS)).collect();
    let mut state = State::default();
    let mut looks = (stops, |_: usize, at: &ReplayState| {
        let Some(of) = at.devices.get(&gpu) else { return };
        let mut one =
            device(0, of.in_use().in_nvidia_smi().unwrap_or(0), of.cap_bytes, of.refused());
        one.live = of.live_bytes;
        one.total_bytes = definitions.device(gpu).map_or(0, |info| info.total_bytes);
        let seen = look(vec![process(header.pid, &header.command.join(" "), vec![one])]);
        state.update(&Look { cards: Some(Ok(Vec::new())), ..seen });
    });
    trace.visit(&definitions, &mut [&mut looks]);
    state.open(header.pid);
    state.set_lines(at(trace, Until::Time(end / 2)));
    state.set_lines(at(trace, Until::Time(end)));
    state
}

fn screen(state: &State, width: u16, height: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, state)).unwrap();
    terminal.backend().buffer().clone()
}

/// As a terminal gets it. `colours`: with its escapes.
fn text(buffer: &Buffer, colours: bool) -> String {
    let mut out = String::new();
    for y in 0..buffer.area.height {
        let mut line = String::new();
        for x in 0..buffer.area.width {
            let cell = &buffer[(x, y)];
            if colours {
                let bold = if cell.modifier.contains(Modifier::BOLD) { ";1" } else { "" };
                write!(line, "\u{1b}[0{bold}{}m", code(cell.fg)).unwrap();
            }
            line.push_str(cell.symbol());
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

fn code(colour: Color) -> &'static str {
    match colour {
        Color::Red => ";31",
        Color::Green => ";32",
        Color::Yellow => ";33",
        Color::Blue => ";34",
        Color::Magenta => ";35",
        Color::Cyan => ";36",
        Color::DarkGray => ";90",
        Color::LightRed => ";91",
        Color::LightGreen => ";92",
        Color::LightYellow => ";93",
        Color::LightBlue => ";94",
        Color::LightMagenta => ";95",
        Color::LightCyan => ";96",
        _ => "",
    }
}

#[test]
fn the_recorded_run_shows_its_lines_and_roles() {
    let (_file, trace) = unpacked();
    let state = opened(&trace);
    for (width, height) in [(60, 24), (100, 24), (200, 50)] {
        let shown = text(&screen(&state, width, height), false);
        // What is free in the cache is no holder.
        assert!(!shown.contains("(free)"), "{shown}");
        for words in ["activations", "weights", "activations.py:66 < train.py:23", "+", "GiB"] {
            assert!(shown.contains(words), "{words} at {width} columns\n{shown}");
        }
        assert!(shown.lines().all(|line| line.chars().count() <= width.into()), "{shown}");
    }
    if let Some(file) = std::env::var_os("VRAMTRACE_PICTURE") {
        std::fs::write(file, text(&screen(&state, 100, 20), true)).unwrap();
    }
}
