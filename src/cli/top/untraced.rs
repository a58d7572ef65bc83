//! What NVML knows of processes: utilization, and the processes that have no live page.

use std::collections::BTreeSet;

use vramtrace_format::LiveDevice;

use super::look::Look;
use super::rates::Rate;
use super::row::{Row, RowDevice, Tracing, script};
use crate::driver::nvml::cards::CardFacts;
use crate::launch::processes;
use crate::live_processes::kernel_driver;

/// The highest of the cards that a process is on.
pub fn utilization(cards: &[CardFacts], pid: u32) -> Option<u32> {
    cards.iter().filter_map(|card| card.processes.get(&pid)?.utilization).max()
}

/// Whether NVML knows processes by the pids that they have here. In a container it lists those of the machine.
pub fn pids_are_those_of_nvml(look: &Look, cards: &[CardFacts]) -> bool {
    let is_listed = |pid: &u32| cards.iter().any(|card| card.processes.contains_key(pid));
    let on_a_card = |device: &LiveDevice| {
        device.resident > 0 && cards.iter().any(|card| card.uuid == device.uuid)
    };
    let mut traced =
        look.processes.iter().filter(|process| process.devices.iter().any(on_a_card)).peekable();
    let nothing_listed = cards.iter().all(|card| card.processes.is_empty());
    match traced.peek() {
        _ if nothing_listed => true,
        None => look.in_first_namespace,
        Some(_) => traced.any(|process| is_listed(&process.pid)),
    }
}

fn passes_libcuda_by(pid: u32) -> bool {
    let mapped = i32::try_from(pid).map_or(Vec::new(), processes::mapped_files);
    kernel_driver::is_called_by(pid, &mapped)
}

/// The processes of the cards that have no live page of this user.
pub fn rows(look: &Look, cards: &[CardFacts]) -> Vec<Row> {
    let traced: BTreeSet<u32> = look.processes.iter().map(|process| process.pid).collect();
    let pids: BTreeSet<u32> =
        cards.iter().flat_map(|card| card.processes.keys().copied()).collect();
    let row = |pid: u32| {
        let owner = look.owners.get(&pid);
        let on = cards.iter().filter_map(|card| Some((card, card.processes.get(&pid)?)));
        let on: Vec<_> = on.collect();
        let device = |card: &CardFacts, bytes: Option<u64>| RowDevice {
            ordinal: u8::MAX,
            index: Some(card.index),
            total: card.total,
            counted: bytes.unwrap_or(0),
        };
        let bytes: Option<Vec<u64>> = on.iter().map(|(_, process)| process.bytes).collect();
        Row {
            pid,
            user: owner.map_or("?".into(), |owner| owner.user.clone()),
            command: match owner {
                Some(owner) => script(&owner.command),
                None => "(not visible from here)".into(),
            },
            tracing: match owner {
                Some(owner) if owner.is_mine && passes_libcuda_by(pid) => Tracing::PastLibcuda,
                Some(owner) if owner.is_mine => Tracing::Untraced,
                _ => Tracing::OfOthers,
            },
            devices: on.iter().map(|(card, process)| device(card, process.bytes)).collect(),
            counted: bytes.map(|all| all.into_iter().fold(0, u64::saturating_add)),
            rate: Some(Rate::None),
            utilization: utilization(cards, pid),
            ..Row::default()
        }
    };
    pids.difference(&traced).map(|pid| row(*pid)).collect()
}
