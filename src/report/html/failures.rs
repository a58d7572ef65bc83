//! The out-of-memory failures with which a run ended: what the page shows first, and the moment that it pins.

use std::collections::BTreeMap;

use serde::Serialize;
use vramtrace_format::{Header, RefusedBy};

use super::tables::{display_name, place_and_function};
use crate::analysis::oom::{Advice, PostMortem, UsedPart, UsedSum, advice};
use crate::analysis::{Level, StackClassifier};
use crate::report::oom::fits_in_words;
use crate::report::shell::quoted;
use crate::report::text::oom as words;
use crate::symbols::{Frame, Symbols};

/// One failure, at its moment.
#[derive(Debug, Serialize)]
pub(super) struct Failure {
    pub device: u8,
    /// `None`: the page has no event of it; `at_s` says when it was.
    pub ordinal: Option<u64>,
    pub at_s: f64,
    /// PyTorch raised its out-of-memory error. False: a call of the driver was refused.
    pub of_torch: bool,
    pub asked_bytes: u64,
    /// The line that asked, and the program's line that called it; empty: not known.
    pub line: String,
    pub caller: String,
    /// `under your cap of 14.44 GiB`.
    pub limit: String,
    /// The cap; under a group's cap or on a full card what the process had plus what was left. `None`: not known.
    pub limit_bytes: Option<u64>,
    /// The process's own cap refused the request: `used` is what the cap counts.
    pub of_cap: bool,
    pub used: Used,
    /// What to try, the most promising first.
    pub tries: Vec<Try>,
}

/// Memory in use, whose parts add up.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Used {
    pub bytes: u64,
    /// Blocks of PyTorch's cache; without a cache, the calls of the driver.
    pub tensors: i64,
    /// Free bytes of the cache.
    pub cache: i64,
    pub context: i64,
    pub rest: i64,
    /// NVML had a figure: it is what nvidia-smi shows, and managed memory.
    pub in_nvidia_smi: bool,
}

/// One thing to try.
#[derive(Debug, Serialize)]
pub(super) struct Try {
    pub text: String,
    /// A line to copy. `None`: it is no line.
    pub copy: Option<String>,
}

impl Used {
    fn of(sum: &UsedSum, has_cache: bool) -> Used {
        let bytes_of = |wanted: &dyn Fn(&UsedPart) -> bool| {
            let parts = sum.parts.iter().filter(|(what, _)| wanted(what));
            parts.map(|(_, bytes)| *bytes).fold(0, i64::saturating_add)
        };
        let tensors = match has_cache {
            true => bytes_of(&|what| *what == UsedPart::Tensors),
            false => bytes_of(&|what| {
                matches!(what, UsedPart::Tensors | UsedPart::Library(_) | UsedPart::Rounding)
            }),
        };
        let cache = bytes_of(&|what| *what == UsedPart::TorchCache);
        let context = bytes_of(&|what| *what == UsedPart::Context);
        let known = tensors.saturating_add(cache).saturating_add(context);
        let rest = (sum.bytes as i64).saturating_sub(known);
        Used { bytes: sum.bytes, tensors, cache, context, rest, in_nvidia_smi: sum.knows_process }
    }
}

/// `ordinals`: by offset in the trace.
pub(super) fn failures(
    fatal: &[PostMortem],
    ordinals: &BTreeMap<u64, u64>,
    symbols: &Symbols,
    header: &Header,
) -> Vec<Failure> {
    let classifier = StackClassifier::new(symbols, header);
    fatal.iter().map(|one| failure(one, ordinals, &classifier)).collect()
}

fn failure(
    one: &PostMortem,
    ordinals: &BTreeMap<u64, u64>,
    classifier: &StackClassifier,
) -> Failure {
    let roles = classifier.roles(one.oom.stack);
    let lead = classifier.frame(one.oom.stack, roles.lead);
    let caller = classifier.frame(one.oom.stack, roles.caller);
    let sum = UsedSum::of(&one.device, &one.oom, Vec::new());
    let refused = one.oom.refusal.map(|at| at.refused);
    let of_cap = refused.is_some_and(|refused| refused.by == RefusedBy::Cap);
    let limit_bytes = refused.and_then(|refused| match refused.by {
        RefusedBy::Cap => Some(refused.limit),
        RefusedBy::Group => {
            Some(one.ours().saturating_add(refused.limit.saturating_sub(refused.counted)))
        }
        RefusedBy::Driver | RefusedBy::BadCap | RefusedBy::Warned => Some(refused.driver_free)
            .filter(|free| *free > 0)
            .map(|free| one.ours().saturating_add(free)),
    });
    let named = |frame: &Frame| match frame.place() {
        Some(_) => place_and_function(frame),
        None => display_name(frame),
    };
    Failure {
        device: one.oom.device.0,
        ordinal: ordinals.get(&one.oom.offset).copied(),
        at_s: one.oom.time_ns as f64 / 1e9,
        of_torch: one.oom.level == Level::Tensor,
        asked_bytes: one.oom.size,
        line: lead.map(named).unwrap_or_default(),
        caller: caller.map(place_and_function).unwrap_or_default(),
        limit: words::limit_in_words(one),
        limit_bytes,
        of_cap,
        used: Used::of(&sum, one.device.cache.reserved > 0),
        tries: advice(one).iter().map(of_advice).collect(),
    }
}

fn of_advice(advice: &Advice) -> Try {
    match advice {
        // The line stands for itself, and the text says what comes of it.
        Advice::Setting { conf, spare, origin } => Try {
            text: format!(
                "replayed up to the failed request, it fits {}, {} to spare",
                fits_in_words(*origin),
                crate::units::size(*spare)
            ),
            copy: Some(format!("export PYTORCH_CUDA_ALLOC_CONF={}", quoted(conf))),
        },
        Advice::EmptyCache { .. } => {
            Try { text: words::advice(advice), copy: Some("torch.cuda.empty_cache()".into()) }
        }
        _ => Try { text: words::advice(advice), copy: None },
    }
}
