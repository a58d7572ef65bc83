//! What an inference engine got of a device, as JSON.

use serde::Serialize;
use vramtrace_format::DeviceId;

use crate::analysis::Process;
use crate::analysis::engine_use::{MARGIN, Setting, SettingOption, engine_use};

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct EngineFacts {
    /// `vLLM`, `SGLang` or `llama.cpp`.
    pub engine: &'static str,
    /// At the peak; they add up to the process's memory then.
    pub parts: Vec<EnginePart>,
    /// The card, or the cap where that is smaller.
    pub limit_bytes: u64,
    /// What other processes have of the card.
    pub others_bytes: u64,
    /// Of the limit, at the highest reading. Negative: missing when a request was refused.
    pub unused_bytes: i64,
    /// What the arithmetic below leaves free.
    pub margin_bytes: u64,
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

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct EnginePart {
    pub part: &'static str,
    pub bytes: u64,
}

pub(super) fn facts(process: &Process, id: DeviceId) -> Option<EngineFacts> {
    let found = engine_use(process, id)?;
    let part = |(part, bytes): (&'static str, u64)| EnginePart { part, bytes };
    let (kv_cache_bytes, missing, options) = match found.setting {
        Setting::NoCache => (None, None, Vec::new()),
        Setting::NothingFits { missing } => (None, Some(missing), Vec::new()),
        Setting::Fits { kv_bytes, options } => (Some(kv_bytes), None, options),
    };
    Some(EngineFacts {
        engine: found.engine.name(),
        parts: found.parts.into_iter().map(part).collect(),
        limit_bytes: found.limit,
        others_bytes: found.others,
        unused_bytes: found.unused,
        margin_bytes: MARGIN,
        kv_cache_bytes,
        no_value_fits_missing_bytes: missing,
        options,
    })
}
