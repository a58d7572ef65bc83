//! The list of processes, keys and questions.

mod opened;
mod rates;
mod untraced;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use vramtrace_format::live::LiveState;
use vramtrace_format::physical::{GIB, MIB};
use vramtrace_format::{LiveDevice, LiveOwner};

use super::draw::{draw, text};
use super::look::{Look, ProcessOwner};
use super::opened::HolderLine;
use super::row::script;
use super::state::State;
use crate::live_processes::process::{LiveProcess, ProcessKey};

pub(super) fn device(ordinal: u8, counted: u64, cap: Option<u64>, refused: u64) -> LiveDevice {
    LiveDevice {
        ordinal,
        live: counted,
        peak: counted + GIB,
        counted,
        cap,
        refused_by_cap: refused,
        total_bytes: 80 * GIB,
        uuid: [ordinal; 16],
        resident: counted,
        ..LiveDevice::default()
    }
}

pub(super) fn process(pid: u32, command: &str, devices: Vec<LiveDevice>) -> LiveProcess {
    LiveProcess {
        key: ProcessKey::default(),
        pid,
        is_here: true,
        state: LiveState::Recording,
        off_by: Vec::new(),
        trace: format!("/nowhere/{pid}.vtrace"),
        start_mono_ns: 0,
        updated_ns: 1,
        group: None,
        devices,
        sites: Vec::new(),
        // Where the test puts what /proc says.
        owner: LiveOwner { executable: command.into(), ..LiveOwner::default() },
        escapes: 0,
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

/// A look at these processes, where there is no NVML.
pub(super) fn look(processes: Vec<LiveProcess>) -> Look {
    let owner = |process: &LiveProcess| {
        let command = process.owner.executable.clone();
        (process.pid, ProcessOwner { user: "ann".into(), is_mine: true, command })
    };
    Look {
        owners: processes.iter().map(owner).collect(),
        cards: Some(Err("no library".into())),
        verdicts: processes.iter().map(|process| (process.pid, None)).collect(),
        processes,
        in_first_namespace: true,
    }
}

fn state() -> State {
    let mut state = State::default();
    for part in 1..=30u64 {
        let mut processes = three();
        processes[0].devices[0].counted = part * GIB / 3;
        state.update(&look(processes));
    }
    state.update(&look(three()));
    state
}

fn drawn(state: &State, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, state)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(|y| line(y).trim_end().to_string()).collect()
}

fn screen(state: &State, width: u16) -> Vec<String> {
    drawn(state, width, 24)
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
                "GPU 1 512.00 MiB (1 %)",
                "cap 1.00 GiB (50 %)",
                "> 4712",
                "20.00 GiB",
                "12.00 GiB",
                "16.00 GiB",
                "train_lla",
                "hpl",
                "without NVML (no library",
                "q quit up, down choose Enter open / filter",
            ],
        );
        assert!(lines.iter().all(|line| line.chars().count() <= width.into()), "{lines:?}");
        // The curve: one cell a figure, the last one at its right end.
        let curve = lines.iter().find(|line| line.contains('▁') || line.contains('▂')).unwrap();
        assert!(curve.chars().count() >= 31, "{curve}");
    }
    has(&screen(&state, 60), &["pid user counted cap MiB/min command"]);
    has(&screen(&state, 80), &["pid user peak counted cap MiB/min full in command"]);
    has(
        &screen(&state, 200),
        &[
            "pid user device util live peak counted cap refused MiB/min full in command",
            "4711 ann cuda:0 - 12.00 GiB 13.00 GiB 12.00 GiB 16.00 GiB 0 - - train_llama.py",
        ],
    );
}

/// Processes of the first version do not say how large the card is, and a page may be damaged.
#[test]
fn a_card_without_a_size_has_no_percentage_and_no_sum_overflows() {
    let mut state = State::default();
    let unknown = LiveDevice { total_bytes: 0, ..device(0, 8 * GIB, None, 0) };
    state.update(&look(vec![process(1, "a", vec![unknown])]));
    has(&screen(&state, 80), &["GPU 0 8.00 GiB of ?"]);
    assert!(!screen(&state, 80).iter().any(|line| line.contains('%')));
    let text = text(&state);
    assert!(text.lines().any(|line| line.contains("8.00 GiB") && line.contains("?")), "{text}");
    let absurd = LiveDevice {
        live: u64::MAX,
        counted: u64::MAX,
        cap: Some(u64::MAX - 1),
        refused_by_cap: u64::MAX,
        ..device(0, 0, None, 1)
    };
    state.update(&look(vec![process(1, "a", vec![absurd, absurd]), process(2, "b", vec![absurd])]));
    has(&screen(&state, 120), &["(over 999 %)"]);
    // Each look names another card.
    for n in 0..1000u64 {
        let mut uuid = [9; 16];
        uuid[..8].copy_from_slice(&n.to_le_bytes());
        state.update(&look(vec![process(1, "a", vec![LiveDevice { uuid, ..unknown }])]));
    }
    assert!(state.cards.len() < 300, "{}", state.cards.len());
}

#[test]
fn keys_choose_filter_and_open() {
    let mut state = state();
    assert_eq!(state.chosen, Some(4712), "the largest");
    press(&mut state, &[KeyCode::Down]);
    assert_eq!(state.chosen, Some(4711));
    press(&mut state, &[KeyCode::Down, KeyCode::Down, KeyCode::Down]);
    assert_eq!(state.chosen, Some(99), "the last stays");
    press(&mut state, &[KeyCode::PageUp]);
    assert_eq!(state.chosen, Some(4712));
    press(&mut state, &"/llama".chars().map(KeyCode::Char).collect::<Vec<_>>());
    has(&screen(&state, 80), &["filter: llama", "/llama Enter keeps it"]);
    press(&mut state, &[KeyCode::Enter]);
    assert_eq!((state.rows().len(), state.chosen), (1, Some(4711)));
    press(&mut state, &[KeyCode::Enter]);
    assert_eq!(state.opened, Some(4711));
    press(&mut state, &[KeyCode::Esc, KeyCode::Esc]);
    assert_eq!((state.opened, state.filter.as_str()), (None, ""));
    press(&mut state, &[KeyCode::Char('q')]);
    assert!(state.is_left);
}

fn line(name: &str, bytes: u64) -> HolderLine {
    HolderLine { name: name.into(), bytes, grew: 0 }
}

#[test]
fn many_cards_have_a_line_each_and_leave_room_for_the_processes() {
    let mut state = State::default();
    let all = (0..8).map(|n| process(100 + n, "a", vec![device(n as u8, GIB, None, 0)]));
    state.update(&look(all.collect()));
    let lines = screen(&state, 80);
    has(&lines, &["GPU 0 1.00 GiB", "GPU 7 1.00 GiB", "> 100", "107 ann"]);
    assert!(!lines.iter().any(|line| line.starts_with('▁')), "{lines:?}");
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
    let text = anstream::adapter::strip_str(&text(&state())).to_string();
    let lines: Vec<String> = text.lines().map(String::from).collect();
    has(
        &lines,
        &[
            "card in use of util counted cap refused",
            "GPU 0 ? 80.00 GiB - 32.00 GiB - 3",
            "pid user rank device util live peak counted cap refused MiB/min full in command",
            "4711 ann cuda:0 - 12.00 GiB 13.00 GiB 12.00 GiB 16.00 GiB 0 - - train_llama.py \
             --config configs/7b.yaml",
            "without NVML (no library)",
        ],
    );
}
