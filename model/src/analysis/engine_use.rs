//! What an inference engine got of a card at its peak, by part. vLLM, SGLang and llama.cpp decide sizes at their start, from
//! estimates; the parts here are recorded.

use std::collections::BTreeMap;

use serde::Serialize;
use vramtrace_format::{DeviceId, DriverCause};

use super::Process;
use super::engines::engine_of;
use super::roles::Role;
use crate::replay::{DeviceState, held_by_others, signed};

const KV_CACHE: &str = "KV cache";

/// What one device gave to an engine.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct EngineUse {
    /// `vLLM`, `SGLang` or `llama.cpp`.
    pub engine: &'static str,
    /// At the peak; they add up to what nvidia-smi shows of the process then.
    pub parts: Vec<EnginePart>,
    /// The card, or the cap where that is smaller.
    pub limit_bytes: u64,
    /// What other processes have of the card.
    pub others_bytes: u64,
    /// Of the limit, at the highest reading. Negative: missing when a request was refused.
    pub unused_bytes: i64,
    /// What sized vLLM's KV cache, or was too much for a start. Null: of other engines, or not known.
    pub setting: Option<EngineSetting>,
}

// A share of the card for all of the process.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct EngineSetting {
    pub option: &'static str,
    /// In the command line. Else `share` is what the process took.
    pub given: bool,
    pub share: f64,
    pub budget_bytes: u64,
    pub kv_cache_bytes: u64,
    /// Where less than the share was free at its start, which vLLM refuses. Null: it had more, or started.
    pub too_little_free_bytes: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct EnginePart {
    pub part: &'static str,
    pub bytes: u64,
}

/// What vLLM takes where nothing is given, or more.
const LEAST_DEFAULT: f64 = 0.9;

fn setting(
    process: &Process,
    device: &DeviceState,
    parts: &[EnginePart],
    card: u64,
) -> Option<EngineSetting> {
    let option = "--gpu-memory-utilization";
    let mut words = process.header.command.iter().flat_map(|word| word.split('='));
    let named = words.find(|word| word.replace('_', "-") == option);
    let given: Option<f64> = named.and_then(|_| words.next()?.parse().ok());
    let cache = parts.iter().find(|part| part.part == KV_CACHE).map(|part| part.bytes);
    let took = device.peak.in_use.headline() as f64 / card as f64;
    let took = Some(took).filter(|_| cache.is_some() && process.fatal().is_empty());
    let has_failed = !process.running && !process.ended_in_order();
    let at_start = device.allocations == 0 && has_failed;
    let share = given.or(took).or(at_start.then_some(LEAST_DEFAULT))?;
    let budget_bytes = (card as f64 * share) as u64;
    let free = device.peak_sample.and_then(|at| at.sample.driver_free);
    let too_little_free_bytes = free.filter(|free| at_start && *free < budget_bytes);
    let kv_cache_bytes = cache.or(too_little_free_bytes.map(|_| 0))?;
    let given = given.is_some();
    Some(EngineSetting {
        option,
        given,
        share,
        budget_bytes,
        kv_cache_bytes,
        too_little_free_bytes,
    })
}

/// `None`: no engine is known by the stacks of the process, or the roles at its peak were not looked for.
pub fn engine_use(process: &Process, id: DeviceId) -> Option<EngineUse> {
    let who = process.who.as_ref()?;
    let engine = engine_of(who.symbols.frames())?;
    let device = process.state.devices.get(&id)?;
    let card = process.definitions.device(id)?.total_bytes;
    let roles = match &who.peak_roles {
        Some(roles) => roles.of_device(id),
        None if device.allocations == 0 => BTreeMap::new(),
        None => return None,
    };
    let of = |role: Role| roles.get(&role).map_or(0, |held| held.bytes);
    let parts = parts(device, &of);
    let refused = process.state.last_refusals.iter().rev().find(|at| at.device == id);
    let ended = process.ended_out_of_memory().iter().any(|oom| oom.device == id);
    let missing = refused.map(|at| at.refused).filter(|_| ended);
    let cap = device.cap_bytes.filter(|_| !device.cap_only_warns);
    let limit_bytes = cap.map_or(card, |cap| cap.min(card));
    let others_bytes = device.peak_sample.and_then(|at| held_by_others(&at.sample)).unwrap_or(0);
    let (reading, _) = device.highest_reading().unwrap_or_default();
    let highest = device.peak.in_use.counted_by_cap().max(reading);
    let others_here = if limit_bytes < card { 0 } else { others_bytes };
    let free = signed(limit_bytes).saturating_sub(signed(highest));
    let free = free.saturating_sub(signed(others_here));
    let unused_bytes = match missing {
        Some(refused) => {
            // What was free then: below the cap, or on the card.
            let left = match refused.limit {
                0 => signed(refused.driver_free),
                limit => signed(limit).saturating_sub(signed(refused.counted)),
            };
            free.min(left.saturating_sub(signed(refused.size)))
        }
        None => free,
    };
    let setting = (engine == "vLLM").then(|| setting(process, device, &parts, card)).flatten();
    Some(EngineUse { engine, parts, limit_bytes, others_bytes, unused_bytes, setting })
}

/// The process's memory at the peak. What no other part has is the last one's.
fn parts(device: &DeviceState, of: &impl Fn(Role) -> u64) -> Vec<EnginePart> {
    let in_use = &device.peak.in_use;
    let graphs = in_use.driver_own[DriverCause::Graphs as usize].min(in_use.taken_by_driver());
    let sum = |roles: &[Role]| roles.iter().fold(0, |sum: u64, role| sum.saturating_add(of(*role)));
    let mut parts = vec![
        ("weights", sum(&[Role::Weights, Role::PagedWeights, Role::Copies])),
        (KV_CACHE, sum(&[Role::KvCache])),
        ("activations, compute buffers", sum(&[Role::Activations, Role::Temporary, Role::Input])),
        ("workspace", sum(&[Role::Workspace])),
        ("communication", sum(&[Role::Communication])),
        ("graphs", of(Role::GraphMemory)),
        ("context and modules", in_use.contexts.saturating_add(in_use.taken_by_driver() - graphs)),
        ("free in cache", sum(&[Role::FreeCache])),
    ];
    let named = parts.iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add);
    parts.push(("the rest", in_use.headline().saturating_sub(named)));
    parts.retain(|(_, bytes)| *bytes > 0);
    parts.into_iter().map(|(part, bytes)| EnginePart { part, bytes }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_driver_took_is_of_graphs_or_of_the_context_once() {
        let mut device = DeviceState::default();
        device.peak.in_use.unattributed = Some(12);
        let took = [(DriverCause::Graphs, 5), (DriverCause::Modules, 7)];
        let own = &mut device.peak.in_use.driver_own;
        took.iter().for_each(|(cause, bytes)| own[*cause as usize] = *bytes);
        let of = |role| took.iter().filter(move |took| Role::of_cause(took.0) == role);
        let parts = parts(&device, &|role| of(role).map(|took| took.1).sum());
        let found: Vec<_> = parts.iter().map(|part| (part.part, part.bytes)).collect();
        assert_eq!(found, [("graphs", 5), ("context and modules", 7)]);
    }
}
