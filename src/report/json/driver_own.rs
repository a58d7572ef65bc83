//! The driver's own memory, by cause and by the line of code whose calls made the driver allocate it.

use std::collections::BTreeMap;

use serde::Serialize;
use vramtrace_format::Cause;

use crate::analysis::{Process, Reconciled, StackClassifier, TakenBy, taken_by};
use crate::replay::DeviceState;
use crate::symbols::Frame;

/// Memory that the driver allocated for itself after calls from one line of code.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TakenFacts {
    pub bytes: u64,
    /// As in `driver_bytes`.
    pub cause: &'static str,
    /// The function of the call that took the most of it. `name`, `lead` and `caller` are of the same
    /// call.
    pub api: String,
    /// The kernel, variable or file that needed it.
    pub name: Option<String>,
    pub library: Option<String>,
    /// As in `holders`.
    pub lead: Option<Frame>,
    pub caller: Option<Frame>,
}

/// Bytes by cause. Bytes without a known cause are `unknown`, which may be negative.
pub(super) fn driver_bytes(sum: &Reconciled) -> BTreeMap<&'static str, i64> {
    let of = |cause: Cause| i64::try_from(sum.driver_bytes[cause as usize]).unwrap_or(i64::MAX);
    let named = Cause::ALL.into_iter().map(|cause| (cause.name(), of(cause)));
    named.chain([("unknown", sum.unknown_bytes())]).collect()
}

/// The largest entries, `top` at most.
pub(super) fn taken_facts(process: &Process, device: &DeviceState, top: usize) -> Vec<TakenFacts> {
    let classifier =
        process.who.as_ref().map(|who| StackClassifier::new(&who.symbols, &process.header));
    let all = taken_by(device, classifier.as_ref());
    let facts = |taken: &TakenBy| {
        let roles =
            classifier.as_ref().map(|classifier| (classifier, classifier.roles(taken.stack)));
        let frame = |at: fn(&crate::analysis::FrameRoles) -> Option<usize>| {
            let (classifier, roles) = roles.as_ref()?;
            classifier.frame(taken.stack, at(roles)).cloned()
        };
        TakenFacts {
            bytes: taken.bytes,
            cause: taken.cause.name(),
            api: process.definitions.site_api_name(taken.site),
            name: taken.name(&process.definitions),
            library: roles
                .as_ref()
                .and_then(|(classifier, roles)| classifier.library_name(roles))
                .map(str::to_string),
            lead: frame(|roles| roles.lead),
            caller: frame(|roles| roles.caller),
        }
    };
    all.iter().take(top).map(facts).collect()
}
