//! NVML: what `doctor` checks of it, and what `top` shows of the cards.

mod calls;
#[cfg(any(feature = "metrics", feature = "top"))]
pub mod cards;

use self::calls::Calls;
use super::Error;

/// The driver version and the devices that NVML reports.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Nvml {
    pub driver_version: String,
    pub devices: u32,
    /// Those that answer.
    pub cards: Vec<Card>,
}

/// What is in use on a card.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Card {
    pub index: u32,
    pub used_bytes: u64,
    /// Processes that compute, and those that draw.
    pub computing: usize,
    pub drawing: usize,
    /// False: processes are not listed, or without their memory.
    pub has_figures: bool,
}

pub fn ask() -> Result<Nvml, Error> {
    let calls = Calls::open()?;
    let found = answers(&calls);
    calls.shut_down();
    found
}

fn answers(calls: &Calls) -> Result<Nvml, Error> {
    let (driver_version, devices) = (calls.driver_version()?, calls.count()?);
    let cards = (0..devices).filter_map(|index| card(calls, index)).collect();
    Ok(Nvml { driver_version, devices, cards })
}

/// `None`: the card, or a driver that is too old, does not answer.
fn card(calls: &Calls, index: u32) -> Option<Card> {
    let handle = calls.handle(index)?;
    let memory = calls.memory(handle)?;
    let computing = calls.processes(handle, "Compute");
    let drawing = calls.processes(handle, "Graphics");
    Some(Card {
        index,
        used_bytes: memory.used,
        has_figures: computing
            .as_ref()
            .is_some_and(|list| list.iter().all(|process| process.bytes().is_some())),
        computing: computing.map_or(0, |list| list.len()),
        drawing: drawing.map_or(0, |list| list.len()),
    })
}
