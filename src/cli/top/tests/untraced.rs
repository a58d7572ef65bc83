//! Cards and processes of NVML.

use ratatui::crossterm::event::KeyCode;

use super::super::draw::text;
use super::super::look::{CardsAnswer, ProcessOwner};
use super::super::state::State;
use super::{GIB, has, look, press, screen, three};
use crate::driver::nvml::{CardFacts, CardProcess};

/// NVML with these processes on GPU 0: pid, bytes.
fn nvml(index: u32, processes: &[(u32, Option<u64>)]) -> CardsAnswer {
    let process = |(pid, bytes): &(u32, Option<u64>)| {
        (*pid, CardProcess { bytes: *bytes, utilization: Some(*pid % 100) })
    };
    Some(Ok(vec![CardFacts {
        index,
        uuid: [0; 16],
        name: "Test Card".into(),
        total: 80 * GIB,
        used: 45 * GIB,
        utilization: Some(87),
        tells_utilization: true,
        processes: processes.iter().map(process).collect(),
    }]))
}

#[test]
fn nvml_adds_the_use_of_the_card_and_a_row_for_each_other_process() {
    let all = [(4711, Some(12 * GIB)), (4712, Some(20 * GIB)), (5000, Some(9 * GIB)), (5001, None)];
    let mut seen = look(three());
    seen.cards = nvml(0, &all);
    let owner = |user: &str, is_mine| ProcessOwner {
        user: user.into(),
        is_mine,
        command: "/usr/bin/python3 /srv/serve.py --port 80".into(),
    };
    seen.owners.insert(5000, owner("bob", false));
    let mut state = State::default();
    state.update(&seen);
    has(
        &screen(&state, 200),
        &[
            "GPU 0 Test Card 45.00 GiB (56 %) of 80.00 GiB, busy 87 %",
            "4711 ann cuda:0 11 % 12.00 GiB 13.00 GiB 12.00 GiB 16.00 GiB",
            "5000 bob GPU 0 0 % - - 9.00 GiB untraced - - -",
            "serve.py --port 80 (of another user)",
            "5001 ? GPU 0 1 % - - ? untraced",
            "(not visible from here)",
        ],
    );
    let text = text(&state);
    assert!(text.contains("serve.py --port 80 (of another user)"), "{text}");
    // A process of this user, without the recorder.
    seen.owners.insert(5000, owner("ann", true));
    state.update(&seen);
    has(&screen(&state, 200), &["serve.py --port 80 (not traced)"]);
    state.chosen = Some(5000);
    press(&mut state, &[KeyCode::Enter]);
    has(
        &screen(&state, 80),
        &["util 0 % counted 9.00 GiB cap untraced", "it runs without the recorder: start it by"],
    );
}

#[test]
fn a_card_has_the_index_of_nvml() {
    let mut seen = look(three());
    seen.cards = nvml(3, &[(4711, Some(GIB))]);
    let mut state = State::default();
    state.update(&seen);
    has(&screen(&state, 200), &["GPU 3 Test Card", "4711 ann cuda:0 (GPU 3)"]);
}

#[test]
fn pids_of_another_namespace_are_no_rows() {
    let mut seen = look(three());
    seen.cards = nvml(0, &[(900_001, Some(12 * GIB)), (900_002, Some(GIB))]);
    let mut state = State::default();
    state.update(&seen);
    assert_eq!(state.rows().len(), 3);
    has(&screen(&state, 120), &["NVML lists other pids: a container?"]);
    // Where nothing is recorded, the namespace says it.
    seen.processes.clear();
    seen.in_first_namespace = false;
    state.update(&seen);
    assert_eq!(state.rows().len(), 0);
    seen.in_first_namespace = true;
    state.update(&seen);
    assert_eq!(state.rows().len(), 2);
}
