//! What an inference engine got of a card at its peak, by part, and the arithmetic of the setting with which it sizes its
//! KV cache.
//!
//! vLLM, SGLang and llama.cpp decide sizes at their start, from estimates. The parts here are recorded. The arithmetic
//! adds what stayed unused to the KV cache and leaves a margin; nothing of it was tried on the engine, and it holds while
//! everything else keeps its size.

use serde::Serialize;
use vramtrace_format::{Cause, DeviceId};

use super::Process;
use super::engines::names_holder;
use super::roles::Role;
use crate::replay::{DeviceState, held_by_others};
use crate::symbols::{Frame, Language};

/// What the arithmetic leaves free: the margin that llama.cpp keeps by default.
pub const MARGIN: u64 = 1 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Vllm,
    Sglang,
    LlamaCpp,
}

impl Engine {
    pub fn name(self) -> &'static str {
        match self {
            Engine::Vllm => "vLLM",
            Engine::Sglang => "SGLang",
            Engine::LlamaCpp => "llama.cpp",
        }
    }

    /// By the functions that hold memory at the peak or at the end.
    fn of(frames: &[Frame]) -> Option<Engine> {
        let has = |folder: &str| {
            frames.iter().any(|it| it.language == Language::Python && it.file.contains(folder))
        };
        let of_llama = |frame: &Frame| {
            let begins = ["llama_", "ggml_"].iter().any(|begin| frame.function.starts_with(begin));
            begins && names_holder(frame)
        };
        // SGLang imports parts of vLLM.
        match () {
            () if has("/sglang/") => Some(Engine::Sglang),
            () if has("/vllm/") => Some(Engine::Vllm),
            () if frames.iter().any(of_llama) => Some(Engine::LlamaCpp),
            () => None,
        }
    }
}

/// What one device gave to an engine.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
    /// What the arithmetic below leaves free.
    pub margin_bytes: u64,
    #[serde(flatten)]
    pub setting: Setting,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct EnginePart {
    pub part: &'static str,
    pub bytes: u64,
}

/// The setting that sizes the KV cache. Without a KV cache there is none.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Setting {
    /// The KV cache that leaves the margin, by arithmetic from the trace; not tried on the engine. Absent without a KV
    /// cache, or if no value fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_cache_bytes: Option<u64>,
    /// Bytes that are missing even without a KV cache: no value fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_value_fits_missing_bytes: Option<u64>,
    /// The options that give that KV cache.
    pub options: Vec<SettingOption>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SettingOption {
    #[serde(rename = "option")]
    pub name: &'static str,
    /// Its value in the command line. `None`: it is not there.
    pub had: Option<String>,
    pub value: String,
}

/// `None`: no engine is known by the stacks of the process, or the roles at its peak were not looked for.
pub fn engine_use(process: &Process, id: DeviceId) -> Option<EngineUse> {
    let who = process.who.as_ref()?;
    let roles = who.peak_roles.as_ref()?;
    let engine = Engine::of(who.symbols.frames())?;
    let device = process.state.devices.get(&id)?;
    let card = process.definitions.device(id)?.total_bytes;
    let roles = roles.of_device(id);
    let of = |role: Role| roles.get(&role).map_or(0, |held| held.bytes);
    let parts = parts(device, &of);
    let refused = process.state.last_refusals.iter().rev().find(|at| at.device == id);
    let missing = refused.map(|at| at.refused).filter(|_| ended_out_of_memory(process, id));
    let limit =
        device.cap_bytes.filter(|_| !device.cap_only_warns).map_or(card, |cap| cap.min(card));
    let others = device.peak_sample.and_then(|at| held_by_others(&at.sample)).unwrap_or(0);
    let highest = device.peak.in_use.counted_by_cap().max(highest_reading(device));
    let others_here = if limit < card { 0 } else { others };
    let free =
        to_signed(limit).saturating_sub(to_signed(highest)).saturating_sub(to_signed(others_here));
    let unused = match missing {
        Some(refused) => free.min(free_at(&refused).saturating_sub(to_signed(refused.size))),
        None => free,
    };
    let setting = setting(engine, &process.header.command, of(Role::KvCache), unused, card);
    Some(EngineUse {
        engine: engine.name(),
        parts,
        limit_bytes: limit,
        others_bytes: others,
        unused_bytes: unused,
        margin_bytes: MARGIN,
        setting,
    })
}

fn ended_out_of_memory(process: &Process, id: DeviceId) -> bool {
    process.ended_out_of_memory().iter().any(|oom| oom.device == id)
}

/// What was free when a request was refused: below the cap, or on the card.
fn free_at(refused: &vramtrace_format::Refused) -> i64 {
    match refused.limit {
        0 => to_signed(refused.driver_free),
        limit => to_signed(limit).saturating_sub(to_signed(refused.counted)),
    }
}

fn highest_reading(device: &DeviceState) -> u64 {
    device.peak_sample.and_then(|at| at.sample.process_bytes).unwrap_or(0)
}

fn to_signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// The process's memory at the peak. What no other part has is the last one's.
fn parts(device: &DeviceState, of: &impl Fn(Role) -> u64) -> Vec<EnginePart> {
    let in_use = &device.peak.in_use;
    let graphs = in_use.driver_own[Cause::Graphs as usize].min(in_use.taken_by_driver());
    let sum = |roles: &[Role]| roles.iter().fold(0, |sum: u64, role| sum.saturating_add(of(*role)));
    let mut parts = vec![
        ("weights", sum(&[Role::Weights, Role::PagedWeights, Role::Copies])),
        ("KV cache", sum(&[Role::KvCache])),
        ("activations, compute buffers", sum(&[Role::Activations, Role::Temporary, Role::Input])),
        ("workspace", sum(&[Role::Workspace])),
        ("communication", sum(&[Role::Communication])),
        ("graphs", of(Role::GraphMemory).saturating_add(graphs)),
        ("contexts and modules", in_use.contexts.saturating_add(in_use.taken_by_driver() - graphs)),
        ("free in PyTorch's cache", sum(&[Role::FreeCache])),
    ];
    let named = parts.iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add);
    parts.push(("the rest", in_use.headline().saturating_sub(named)));
    parts.retain(|(_, bytes)| *bytes > 0);
    parts.into_iter().map(|(part, bytes)| EnginePart { part, bytes }).collect()
}

fn setting(engine: Engine, command: &[String], kv: u64, unused: i64, card: u64) -> Setting {
    if kv == 0 {
        return Setting::default();
    }
    let more = unused.saturating_sub(to_signed(MARGIN));
    let room = to_signed(kv).saturating_add(more);
    if room <= 0 {
        let missing = Some(room.unsigned_abs());
        return Setting { no_value_fits_missing_bytes: missing, ..Setting::default() };
    }
    let options = match engine {
        Engine::Vllm => {
            let had = value_of(command, &["--gpu-memory-utilization"]);
            let share = fraction(had.as_deref().or(Some("0.9")), more, card);
            let share = share.map(|value| option("--gpu-memory-utilization", had, value));
            let bytes = value_of(command, &["--kv-cache-memory", "--kv-cache-memory-bytes"]);
            let bytes = option("--kv-cache-memory", bytes, room.to_string());
            share.into_iter().chain([bytes]).collect()
        }
        Engine::Sglang => {
            // Its default depends on the card and on other options.
            let had = value_of(command, &["--mem-fraction-static"]);
            let share = fraction(had.as_deref(), more, card);
            share.map(|value| option("--mem-fraction-static", had, value)).into_iter().collect()
        }
        Engine::LlamaCpp => {
            let had = value_of(command, &["-c", "--ctx-size"]);
            let tokens: Option<u64> = had.as_deref().and_then(|text| text.parse().ok());
            let tokens = tokens.filter(|tokens| *tokens > 0).map(|tokens| {
                let tokens = u128::from(tokens) * room as u128 / u128::from(kv);
                // It pads a context to 256 tokens.
                option("--ctx-size", had, (tokens / 256 * 256).to_string())
            });
            tokens.into_iter().collect()
        }
    };
    Setting { kv_cache_bytes: Some(room.unsigned_abs()), options, ..Setting::default() }
}

fn option(name: &'static str, had: Option<String>, value: String) -> SettingOption {
    SettingOption { name, had, value }
}

/// A share of the card with so many bytes more, in hundredths, rounded down. `None`: no share.
fn fraction(had: Option<&str>, more: i64, card: u64) -> Option<String> {
    let had: f64 = had?.parse().ok().filter(|share| (0.0..=1.0).contains(share))?;
    let share = had + more as f64 / card.max(1) as f64;
    let hundredths = (share * 100.0 + 1e-9).floor().clamp(0.0, 99.0);
    (hundredths > 0.0).then(|| format!("{:.2}", hundredths / 100.0))
}

/// The value of an option in a command line: `--name VALUE` or `--name=VALUE`. The last one counts.
fn value_of(command: &[String], names: &[&str]) -> Option<String> {
    let mut found = None;
    for (at, argument) in command.iter().enumerate() {
        for name in names {
            match argument.strip_prefix(name) {
                Some("") => found = command.get(at + 1).cloned().or(found),
                Some(rest) => found = rest.strip_prefix('=').map(String::from).or(found),
                None => {}
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn command(text: &str) -> Vec<String> {
        text.split(' ').map(String::from).collect()
    }

    fn options(setting: &Setting) -> Vec<(&'static str, Option<&str>, &str)> {
        assert!(setting.kv_cache_bytes.is_some(), "{setting:?}");
        setting
            .options
            .iter()
            .map(|one| (one.name, one.had.as_deref(), one.value.as_str()))
            .collect()
    }

    #[test]
    fn what_stayed_unused_goes_to_the_cache() {
        let vllm = command("vllm serve m --gpu-memory-utilization=0.8");
        let found = setting(Engine::Vllm, &vllm, 40 * GIB, 9 * GIB as i64, 80 * GIB);
        let bytes = (48 * GIB).to_string();
        let wanted = [
            ("--gpu-memory-utilization", Some("0.8"), "0.90"),
            ("--kv-cache-memory", None, bytes.as_str()),
        ];
        assert_eq!(options(&found), wanted);
        let sglang = command("python -m sglang.launch_server --mem-fraction-static 0.85");
        let found = setting(Engine::Sglang, &sglang, 10 * GIB, -(3 * GIB as i64), 80 * GIB);
        assert_eq!(options(&found), [("--mem-fraction-static", Some("0.85"), "0.80")]);
        let llama = command("llama-server -m m.gguf -c 4096");
        let found = setting(Engine::LlamaCpp, &llama, GIB, 3 * GIB as i64, 24 * GIB);
        assert_eq!(options(&found), [("--ctx-size", Some("4096"), "12288")]);
        let default = setting(Engine::LlamaCpp, &command("llama-server"), GIB, 0, 24 * GIB);
        assert_eq!(default.no_value_fits_missing_bytes, Some(0), "the margin is the whole cache");
    }

    /// The engine fails with one value, and with the next lower one too (SGLang #4330).
    #[test]
    fn where_the_rest_alone_is_too_large_nothing_fits() {
        let asked = command("python -m sglang.launch_server --mem-fraction-static 0.85");
        let found = setting(Engine::Sglang, &asked, GIB, -(4 * GIB as i64), 24 * GIB);
        assert_eq!(found.no_value_fits_missing_bytes, Some(4 * GIB));
        assert_eq!(setting(Engine::Vllm, &[], 0, 0, 24 * GIB), Setting::default());
    }

    #[test]
    fn values_of_options_and_what_is_none() {
        let given = command("x --ctx-size 1 -c 2 --ctx-size=3 --ctx-sizes 4");
        assert_eq!(value_of(&given, &["-c", "--ctx-size"]).as_deref(), Some("3"));
        assert_eq!(value_of(&command("x -c"), &["-c"]), None);
        assert_eq!(fraction(Some("high"), 0, GIB), None);
        assert_eq!(fraction(Some("7"), 0, GIB), None);
        assert_eq!(fraction(Some("0.5"), i64::MIN, GIB), None);
        assert_eq!(fraction(Some("0.5"), i64::MAX, 0).as_deref(), Some("0.99"));
    }
}
