//! An opened process: its lines, roles and map.

use ratatui::crossterm::event::KeyCode;
use testkit::trace_builder::{TraceBuilder, cached};
use vramtrace_format::{HEADER_BYTES, Kind, LiveSite, SLOT};
use vramtrace_reader::analysis::roles::{Role, RoleLearner};
use vramtrace_reader::replay::{State as ReplayState, Until};
use vramtrace_reader::symbols::Symbols;
use vramtrace_reader::trace::Trace;

use super::super::growth::{GrowingTrace, Lines, by_name, lines};
use super::super::inside::{self, Block, Inside, Segment};
use super::super::state::{State, View};
use super::{GIB, MIB, has, line, look, press, screen, state, three};

#[test]
fn an_opened_process_shows_what_grows_and_what_falls() {
    let mut state = state();
    state.open(4711);
    has(&screen(&state, 80), &["reading its trace"]);
    let known = |lines: &[(&str, u64)]| {
        let lines = lines.iter().map(|(name, bytes)| line(name, *bytes)).collect();
        (Lines::Known(lines), Inside::default())
    };
    state.set_lines(known(&[
        ("gpu.py:35 < train.py:41", GIB),
        ("data.py:12", GIB),
        ("eval.py:7", GIB),
    ]));
    state.set_lines(known(&[("gpu.py:35 < train.py:41", 3 * GIB), ("data.py:12", GIB)]));
    for width in [60, 80, 120] {
        has(
            &screen(&state, width),
            &[
                "pid 4711, ann train_llama.py --config",
                "since opened",
                "line < its caller",
                "3.00 GiB +2.00 GiB",
                "gpu.py:35 < train.py:41",
                "data.py:12",
                "0 B -1.00 GiB",
                "eval.py:7",
                "q quit Esc back d compare c cap o page p pause ? keys",
            ],
        );
    }
    has(
        &screen(&state, 80),
        &["held since opened count line", "3.00 GiB +2.00 GiB 2 gpu.py:35 < train.py:41"],
    );
    press(&mut state, &[KeyCode::Char('d')]);
    let lines = screen(&state, 80);
    has(&lines, &["only what changed", "+2.00 GiB", "-1.00 GiB"]);
    assert!(!lines.iter().any(|line| line.contains("data.py")), "{lines:?}");
    press(&mut state, &[KeyCode::Char('d'), KeyCode::Down]);
    let lines = screen(&state, 80);
    has(&lines, &["data.py:12", "eval.py:7"]);
    assert!(!lines.iter().any(|line| line.contains("train.py:41")), "scrolled: {lines:?}");
    // It is compared with when it was opened last.
    press(&mut state, &[KeyCode::Esc]);
    state.open(4711);
    state.set_lines(known(&[("gpu.py:35 < train.py:41", 3 * GIB), ("data.py:12", GIB)]));
    assert!(!screen(&state, 80).iter().any(|line| line.contains('+')), "{state:?}");
    state.view = View::Process(1);
    has(&screen(&state, 80), &["pid 1 has ended"]);
    state.update(&look(Vec::new()));
    state.view = View::List;
    has(&screen(&state, 60), &["no recorded process of this user is running"]);
}

/// The lines and the rest at a moment of a trace.
pub fn at(trace: &Trace, until: Until) -> (Lines, Inside) {
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
    let mut builder = TraceBuilder::new();
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
    state.open(4711);
    state.lines = Lines::Known(vec![line("train.py:41 step", 3 * GIB)]);
    state.inside = read;
    for width in [60, 80, 120] {
        let lines = screen(&state, width);
        has(
            &lines,
            &[
                "█ activations 10.00 MiB █ weights 5.00 MiB",
                "3.00 GiB",
                "train.py:41 step",
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
    let mut builder = TraceBuilder::new();
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
    state.open(4711);
    state.lines = Lines::Known(vec![line("train.py:41 step", 3 * GIB)]);
    state.inside = read;
    for width in [60, 80, 140] {
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
    state.update(&look(all));
    state.open(4711);
    state.lines = Lines::None("/nowhere/4711.vtrace: no such file".into());
    for width in [60, 80] {
        let lines = screen(&state, width);
        has(
            &lines,
            &["/nowhere/4711.vtrace: no such file", "4.00 GiB 4 PyTorch", "1.00 GiB 2 NCCL"],
        );
    }
}
