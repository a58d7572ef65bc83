//! How much more a device can give.

use vramtrace_format::DeviceId;

use crate::replay::State;
use crate::trace::Definitions;

/// Bytes up to the cap or the card's end, whichever is nearer. `None`: neither is known.
pub(super) fn headroom(state: &State, definitions: &Definitions, device: DeviceId) -> Option<u64> {
    let sums = state.devices.get(&device)?;
    let used = sums.process_bytes().unwrap_or(sums.live_bytes.saturating_add(sums.context_bytes));
    // A cap that only warns refuses nothing. What others of a group hold is not known here: there
    // is no more than this.
    let cap = sums.cap_bytes.filter(|_| !sums.cap_only_warns);
    let caps = cap.into_iter().chain(sums.group_cap_bytes).map(|cap| cap.saturating_sub(used));
    // The driver's own figure knows of the other processes on the card.
    let sampled = sums.sample.and_then(|at| {
        let grown = sums.live_bytes.saturating_sub(at.live_bytes);
        Some(at.sample.driver_free?.saturating_sub(grown))
    });
    let known = definitions.device(device).filter(|device| device.total_bytes > 0);
    let total = known.map(|device| device.total_bytes.saturating_sub(used));
    let card = sampled.or(total);
    caps.chain(card).min()
}
