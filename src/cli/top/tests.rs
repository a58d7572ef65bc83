use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use rustc_hash::FxHashMap;
use testkit::trace_builder::cached;
use vramtrace_format::live::LiveState;
use vramtrace_format::{HEADER_BYTES, Kind, LiveDevice, LiveSite, SLOT};
use vramtrace_reader::analysis::roles::{Role, RoleLearner};
use vramtrace_reader::replay::{State as ReplayState, Until};
use vramtrace_reader::symbols::Symbols;
use vramtrace_reader::trace::Trace;

use super::draw::draw;
use super::growth::{GrowingTrace, Line, Lines, by_name, compare, lines};
use super::inside::{self, Block, Inside, Segment};
use super::state::{State, View, script};
use crate::live_processes::process::LiveProcess;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

pub(super) fn device(ordinal: u8, counted: u64, cap: Option<u64>, refused: u64) -> LiveDevice {
    LiveDevice {
        ordinal,
        live: counted,
        peak: counted + GIB,
        reserved: 0,
        counted,
        cap,
        live_allocations: 3,
        allocations: 9,
        frees: 6,
        refused_by_cap: refused,
        refused_by_driver: 0,
        events: 15,
        warned: 0,
        total_bytes: 80 * GIB,
        uuid: [ordinal; 16],
        only_warns: false,
        free_cache: 0,
        resident: counted,
        paused: 0,
    }
}

pub(super) fn process(pid: u32, command: &str, devices: Vec<LiveDevice>) -> LiveProcess {
    LiveProcess {
        pid,
        command: command.into(),
        state: LiveState::Recording,
        trace: format!("/nowhere/{pid}.vtrace"),
        updated_ns: 1,
        group: None,
        devices,
        sites: Vec::new(),
    }
}

fn three() -> Vec<LiveProcess> {
    let long = "/opt/venv/bin/python3.11 -u /home/me/experiments/train_llama.py --config configs/7b.yaml --lr 3e-4";
    vec![
        process(4711, long, vec![device(0, 12 * GIB, Some(16 * GIB), 0)]),
        process(4712, "python -m vllm.entrypoints.api_server", vec![device(0, 20 * GIB, None, 3)]),
        process(99, "/usr/bin/hpl --big", vec![device(1, 512 * MIB, Some(GIB), 0)]),
    ]
}

fn state() -> State {
    let mut state = State::default();
    for part in 1..=30u64 {
        let mut processes = three();
        processes[0].devices[0].counted = part * GIB / 3;
        state.update(processes);
    }
    state.update(three());
    state
}

fn screen(state: &State, width: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, 24)).unwrap();
    terminal.draw(|frame| draw(frame, state)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..24).map(|y| line(y).trim_end().to_string()).collect()
}

fn press(state: &mut State, keys: &[KeyCode]) {
    keys.iter().for_each(|key| state.key(KeyEvent::from(*key)));
}

#[track_caller]
fn has(lines: &[String], words: &[&str]) {
    let all = lines.iter().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    let all: Vec<String> = all.collect();
    for word in words {
        assert!(all.iter().any(|line| line.contains(word)), "{word}\n{}", lines.join("\n"));
    }
}

#[test]
fn cards_processes_and_keys_are_shown_at_every_width() {
    let state = state();
    for width in [60, 80, 120] {
        let lines = screen(&state, width);
        has(
            &lines,
            &[
                "GPU 0 32.00 GiB (40 %) of 80.00 GiB, 3 refused",
                "GPU 1 0.50 GiB (50 %) of 80.00 GiB, capped at 1.00 GiB",
                "> 4712",
                "20.00 GiB",
                "12.00 GiB",
                "16.00 GiB",
                "train_llama",
                "hpl",
                "q quit Enter open s sort / filter p pause",
            ],
        );
        // The curve: one cell a figure, the last one at its right end.
        let curve = lines.iter().find(|line| line.contains('▁') || line.contains('▂')).unwrap();
        assert!(curve.chars().count() >= 31, "{curve}");
    }
    has(&screen(&state, 120), &["pid rank GPU in use allocated cap refused program"]);
    has(&screen(&state, 60), &["pid rank in use cap refused program"]);
}

/// Processes of the first version do not say how large the card is, and a page may be damaged.
#[test]
fn a_card_without_a_size_has_no_percentage_and_no_sum_overflows() {
    let mut state = State::default();
    let unknown = LiveDevice { total_bytes: 0, ..device(0, 8 * GIB, None, 0) };
    state.update(vec![process(1, "a", vec![unknown])]);
    has(&screen(&state, 80), &["GPU 0 8.00 GiB of ?"]);
    assert!(state.once().lines().any(|line| line.contains("8.00 GiB") && line.contains("?")));
    let absurd = LiveDevice {
        live: u64::MAX,
        counted: u64::MAX,
        cap: Some(u64::MAX - 1),
        refused_by_cap: u64::MAX,
        ..device(0, 0, None, 1)
    };
    state.update(vec![process(1, "a", vec![absurd, absurd]), process(2, "b", vec![absurd])]);
    has(&screen(&state, 120), &["(over 999 %)"]);
    // Each look names another card.
    for n in 0..1000u64 {
        let mut uuid = [9; 16];
        uuid[..8].copy_from_slice(&n.to_le_bytes());
        state.update(vec![process(1, "a", vec![LiveDevice { uuid, ..unknown }])]);
    }
    assert!(state.cards.len() < 300, "{}", state.cards.len());
}

#[test]
fn keys_choose_sort_filter_pause_and_open() {
    let mut state = state();
    assert_eq!(state.chosen, Some(4712), "the largest");
    press(&mut state, &[KeyCode::Down]);
    assert_eq!(state.chosen, Some(4711));
    press(&mut state, &[KeyCode::Down, KeyCode::Down, KeyCode::Down]);
    assert_eq!(state.chosen, Some(99), "the last stays");
    press(&mut state, &[KeyCode::Char('s'), KeyCode::Char('s'), KeyCode::Char('s')]);
    has(&screen(&state, 80), &["sorted by pid"]);
    let order: Vec<u32> = state.rows().iter().map(|row| row.pid).collect();
    assert_eq!(order, [99, 4711, 4712]);
    press(&mut state, &"/llama".chars().map(KeyCode::Char).collect::<Vec<_>>());
    has(&screen(&state, 80), &["filter: llama", "/llama Enter keeps it"]);
    press(&mut state, &[KeyCode::Enter]);
    assert_eq!((state.rows().len(), state.chosen), (1, Some(4711)));
    press(&mut state, &[KeyCode::Char('p')]);
    has(&screen(&state, 60), &["PAUSED"]);
    press(&mut state, &[KeyCode::Enter]);
    assert_eq!(state.view, View::Process(4711));
    press(&mut state, &[KeyCode::Esc, KeyCode::Esc]);
    assert_eq!((state.view, state.filter.as_str()), (View::List, ""));
    press(&mut state, &[KeyCode::Char('q')]);
    assert!(state.is_left);
}

fn line(name: &str, bytes: u64) -> Line {
    Line { name: name.into(), library: "PyTorch".into(), bytes, count: 2, grew: 0 }
}

#[test]
fn an_opened_process_shows_what_grows_and_what_falls() {
    let mut lines = vec![line("train.py:41 step", 3 * GIB), line("data.py:12 load", GIB)];
    let before = [("train.py:41 step", GIB), ("data.py:12 load", GIB), ("eval.py:7 run", GIB)];
    let before: FxHashMap<String, u64> =
        before.into_iter().map(|(name, bytes)| (name.to_string(), bytes)).collect();
    compare(&mut lines, &before);
    let mut state = state();
    state.view = View::Process(4711);
    has(&screen(&state, 80), &["reading its trace"]);
    state.lines = Lines::Known(lines);
    for width in [60, 80, 120] {
        has(
            &screen(&state, width),
            &[
                "pid 4711 train_llama.py --config",
                "held since opened count line",
                "3.00 GiB +2.00 GiB 2 train.py:41 step",
                "1.00 GiB 2 data.py:12 load",
                "0 B -1.00 GiB 0 eval.py:7 run",
                "q quit Esc back p pause",
            ],
        );
    }
    state.view = View::Process(1);
    has(&screen(&state, 80), &["pid 1 has ended"]);
    state.update(Vec::new());
    state.view = View::List;
    has(&screen(&state, 60), &["no recorded process of this user is running"]);
}

/// The lines and the rest at a moment of a trace.
pub(super) fn at(trace: &Trace, until: Until) -> (Lines, Inside) {
    let definitions = trace.definitions().0;
    let all = Symbols::of_all(&definitions, trace.header());
    let mut learner = RoleLearner::new(&definitions, &all);
    let mut state = ReplayState::default();
    let mut there = (vec![until], |_: usize, at: &ReplayState| state = at.clone());
    trace.visit_observed(&definitions, &mut [&mut there], &mut learner.observer());
    (lines(&definitions, trace.header(), &state), inside::of(&state, &learner))
}

#[test]
fn readings_of_a_growing_trace_go_on_where_the_last_ended() {
    let mut builder = cached();
    // Two windows and a half.
    for n in 0..25_000 {
        let (time, key) = ((20_000_000 + n) * 1000, (9 << 40) + n * MIB);
        builder.alloc_by(time, Kind::Device, key, MIB, 3 + (n % 2) as u32);
    }
    let whole = builder.bytes();
    let slots = (whole.len() - HEADER_BYTES) / SLOT;
    assert!(slots >= 4, "{slots}");
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut growing = GrowingTrace::default();
    let mut read = Vec::new();
    for slots in 2..=slots {
        std::fs::write(file.path(), &whole[..HEADER_BYTES + slots * SLOT]).unwrap();
        let (Lines::Known(now), inside) = growing.read(file.path()).unwrap() else {
            panic!("the trace has stacks");
        };
        let trace = Trace::open(file.path()).unwrap();
        let (Lines::Known(afresh), inside_afresh) = at(&trace, Until::End) else {
            panic!("the trace has stacks");
        };
        assert_eq!(by_name(&now), by_name(&afresh), "{slots}");
        assert_eq!(inside.roles, inside_afresh.roles);
        read.push(growing.events());
    }
    assert!(read.is_sorted_by(|a, b| a < b), "each window was read once: {read:?}");
    // What was read is no longer there: it begins anew.
    std::fs::write(file.path(), cached().bytes()).unwrap();
    growing.read(file.path()).unwrap();
    assert!(growing.events() < 100, "{}", growing.events());
}

#[test]
fn an_opened_process_shows_roles_and_the_map_of_its_blocks() {
    let mut builder = testkit::trace_builder::TraceBuilder::new();
    let second = 1_000_000_000;
    builder.alloc_by(second, Kind::Device, 1 << 40, 20 * MIB, 1);
    builder.alloc_by(second, Kind::Device, 2 << 40, 32 * MIB, 2);
    builder.alloc_by(second, Kind::Block, 1 << 40, 5 * MIB, 3);
    builder.alloc_by(second, Kind::Block, (1 << 40) + 10 * MIB, 10 * MIB, 4);
    let file = tempfile::NamedTempFile::new().unwrap();
    builder.write(file.path());
    let trace = Trace::open(file.path()).unwrap();
    let mut read = at(&trace, Until::End).1;
    assert_eq!(read.roles, [(Role::Unknown, 47 * MIB), (Role::FreeCache, 5 * MIB)]);
    let block = |at, bytes| Block { at: at * MIB, bytes: bytes * MIB, role: Role::Unknown };
    let blocks = vec![block(0, 5), block(10, 10)];
    let segment = Segment { address: 1 << 40, bytes: 20 * MIB, asleep: 0, blocks };
    assert_eq!(read.segments, [segment]);
    // Of a program that trains.
    read.segments[0].blocks[0].role = Role::Weights;
    read.roles = vec![(Role::Activations, 10 * MIB), (Role::Weights, 5 * MIB)];
    let mut state = state();
    state.view = View::Process(4711);
    state.lines = Lines::Known(vec![line("train.py:41 step", 3 * GIB)]);
    state.inside = read;
    for width in [60, 80, 120] {
        let lines = screen(&state, width);
        has(
            &lines,
            &[
                "█ activations 10.00 MiB █ weights 5.00 MiB",
                "3.00 GiB 2 train.py:41 step",
                "segments",
                "0x10000000000 20.00 MiB ██",
            ],
        );
        let row = lines.iter().find(|line| line.contains("0x10000000000")).unwrap();
        let full = row.chars().filter(|sign| *sign == '█').count();
        let empty = row.chars().filter(|sign| *sign == '·').count();
        assert!(full.abs_diff(3 * empty) <= 4 && row.ends_with("75 %"), "{row}");
    }
    // What has no memory says so; before anything is read there is no map.
    state.cards.clear();
    state.inside.segments[0].asleep = MIB;
    has(&screen(&state, 80), &["asleep"]);
    state.inside = Inside::default();
    assert!(!screen(&state, 80).iter().any(|line| line.contains("segments")));
}

#[test]
fn without_segments_the_map_is_of_allocations_by_address() {
    let mut builder = testkit::trace_builder::TraceBuilder::new();
    builder.alloc_by(1, Kind::Device, 2 << 40, 20 * MIB, 2);
    builder.alloc_by(2, Kind::Device, 1 << 40, 40 * MIB, 1);
    let file = tempfile::NamedTempFile::new().unwrap();
    builder.write(file.path());
    let trace = Trace::open(file.path()).unwrap();
    let mut read = at(&trace, Until::End).1;
    let block = |at, bytes| Block { at: at * MIB, bytes: bytes * MIB, role: Role::Unknown };
    assert_eq!(read.allocations, [block(0, 40), block(40, 20)]);
    read.allocations[0].role = Role::Weights;
    read.roles = vec![(Role::Weights, 40 * MIB)];
    let mut state = state();
    state.view = View::Process(4711);
    state.lines = Lines::Known(vec![line("train.py:41 step", 3 * GIB)]);
    state.inside = read;
    for width in [60, 80, 160] {
        let lines = screen(&state, width);
        let from =
            lines.iter().position(|line| line.starts_with("allocations by address")).unwrap();
        let rows: Vec<&String> =
            lines[from + 1..].iter().filter(|line| line.contains('█')).collect();
        // All of it is there: full rows, the last as far as there is something.
        let cells = |row: &str| row.chars().filter(|sign| *sign == '█').count();
        assert!(
            rows.len() > 3 && rows.iter().all(|row| cells(row) > usize::from(width) / 2),
            "{rows:?}"
        );
        assert!(rows[0].trim_start().starts_with("0 B"), "{rows:?}");
    }
}

#[test]
fn without_a_trace_the_live_page_says_which_libraries_hold() {
    let mut all = three();
    let site = |library: &str, bytes| LiveSite {
        library: library.into(),
        bytes,
        count: 2,
        ..LiveSite::default()
    };
    all[0].sites = vec![site("PyTorch", 3 * GIB), site("NCCL", GIB), site("PyTorch", GIB)];
    let mut state = State::default();
    state.update(all);
    state.view = View::Process(4711);
    state.lines = Lines::None("/nowhere/4711.vtrace: no such file".into());
    for width in [60, 80] {
        let lines = screen(&state, width);
        has(
            &lines,
            &["/nowhere/4711.vtrace: no such file", "4.00 GiB 4 PyTorch", "1.00 GiB 2 NCCL"],
        );
    }
}

#[test]
fn programs_are_named_by_their_script() {
    for (command, name) in [
        ("/opt/venv/bin/python3 -u /home/me/train.py --lr 3", "train.py --lr 3"),
        ("python -m torch.distributed.run x.py", "torch.distributed.run x.py"),
        ("python3.12 -X dev -W error a/b.py", "b.py"),
        ("python3 -c import torch", "python3 -c import torch"),
        ("python3", "python3"),
        ("/usr/bin/hpl --big", "hpl --big"),
        ("", "(no command)"),
    ] {
        assert_eq!(script(command), name);
    }
}

#[test]
fn without_a_terminal_it_is_a_table() {
    let text = anstream::adapter::strip_str(&state().once()).to_string();
    let lines: Vec<String> = text.lines().map(String::from).collect();
    has(
        &lines,
        &[
            "card in use of caps refused",
            "GPU 0 32.00 GiB 80.00 GiB - 3",
            "4711 0 12.00 GiB 12.00 GiB 16.00 GiB 0 train_llama.py --config configs/7b.yaml",
        ],
    );
}
