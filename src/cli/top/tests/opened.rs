//! An opened process: its lines and roles.

use ratatui::crossterm::event::KeyCode;
use testkit::trace_builder::cached;
use vramtrace_format::{HEADER_BYTES, Kind, LiveSite, SLOT};
use vramtrace_reader::analysis::roles::Role;

use super::super::opened::{Lines, by_name, lines};
use super::super::state::State;
use super::{GIB, MIB, has, line, look, press, screen, state, three};
use crate::live_processes::followed::Followed;
use crate::live_processes::process::user;

#[test]
fn an_opened_process_shows_what_grows_and_what_falls() {
    let mut state = state();
    state.open(4711);
    has(&screen(&state, 80), &["reading its trace"]);
    let known = |lines: &[(&str, u64)]| {
        let lines = lines.iter().map(|(name, bytes)| line(name, *bytes)).collect();
        Lines::Known { lines, roles: vec![(Role::Activations, 2 * GIB), (Role::Weights, GIB)] }
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
                "activations 2.00 GiB weights 1.00 GiB",
                "q quit up, down scroll Esc back / filter",
            ],
        );
    }
    has(
        &screen(&state, 80),
        &["held since opened line", "3.00 GiB +2.00 GiB gpu.py:35 < train.py:41"],
    );
    press(&mut state, &[KeyCode::Down]);
    let lines = screen(&state, 80);
    has(&lines, &["data.py:12", "eval.py:7"]);
    assert!(!lines.iter().any(|line| line.contains("train.py:41")), "scrolled: {lines:?}");
    // It is compared with when it was opened last.
    press(&mut state, &[KeyCode::Esc]);
    state.open(4711);
    state.set_lines(known(&[("gpu.py:35 < train.py:41", 3 * GIB), ("data.py:12", GIB)]));
    assert!(!screen(&state, 80).iter().any(|line| line.contains('+')), "{state:?}");
    state.opened = Some(1);
    has(&screen(&state, 80), &["pid 1 has ended"]);
    state.update(&look(Vec::new()));
    state.opened = None;
    has(&screen(&state, 60), &["no recorded process of this user is running"]);
}

/// The lines and roles of a trace as far as it is written.
pub(in super::super) fn read(followed: &mut Followed, path: &std::path::Path) -> Lines {
    while followed.read([path.into()], user(), |_| true).is_some_and(|whole| !whole) {}
    lines(followed.now(), &followed.figures)
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
    let mut growing = Followed::with_roles();
    let mut events = Vec::new();
    for slots in 2..=slots {
        std::fs::write(file.path(), &whole[..HEADER_BYTES + slots * SLOT]).unwrap();
        let now = read(&mut growing, file.path());
        let afresh = read(&mut Followed::with_roles(), file.path());
        let (
            Lines::Known { lines: now, roles },
            Lines::Known { lines: afresh, roles: roles_afresh },
        ) = (now, afresh)
        else {
            panic!("the trace has stacks");
        };
        assert_eq!(by_name(&now), by_name(&afresh), "{slots}");
        assert_eq!(roles, roles_afresh);
        events.push(growing.now().2.events);
    }
    assert!(events.is_sorted_by(|a, b| a < b), "each window was read once: {events:?}");
    // What was read is no longer there: it begins anew.
    std::fs::write(file.path(), cached().bytes()).unwrap();
    read(&mut growing, file.path());
    assert!(growing.now().2.events < 100, "{}", growing.now().2.events);
}

#[test]
fn what_is_free_in_a_cache_is_a_role_and_no_line() {
    let file = tempfile::NamedTempFile::new().unwrap();
    cached().write(file.path());
    let Lines::Known { lines, roles } = read(&mut Followed::with_roles(), file.path()) else {
        panic!("the trace has stacks");
    };
    let free = roles.iter().find(|(role, _)| *role == Role::FreeCache).unwrap().1;
    let sum = |all: &[(Role, u64)]| all.iter().map(|(_, bytes)| bytes).sum::<u64>();
    assert!(free > 0 && roles.is_sorted_by_key(|(_, bytes)| std::cmp::Reverse(*bytes)));
    assert_eq!(lines.iter().map(|line| line.bytes).sum::<u64>(), sum(&roles) - free, "{lines:?}");
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
