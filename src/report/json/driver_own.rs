//! What the driver took for itself, by cause and by the line that made it do so.

use std::collections::BTreeMap;

use serde::Serialize;
use vramtrace_format::Cause;

use super::stack::{FrameFacts, frame_facts};
use crate::analysis::{Process, Reconciled, StackClassifier, TakenBy, taken_by};
use crate::replay::DeviceState;

/// Of `report --json`: memory that the driver took after calls from one line.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TakenFacts {
    pub bytes: u64,
    /// As in `driver_bytes`.
    pub cause: &'static str,
    /// Of the call that took the most of it, as are `name`, `lead` and `caller`.
    pub api: String,
    /// The kernel, variable or file that it was for.
    pub name: Option<String>,
    pub library: Option<String>,
    /// As in `holders`.
    pub lead: Option<FrameFacts>,
    pub caller: Option<FrameFacts>,
}

/// By what it was taken for; what has no name is `unknown`, and may be below 0.
pub fn driver_bytes(sum: &Reconciled) -> BTreeMap<&'static str, i64> {
    let of = |cause: Cause| i64::try_from(sum.driver_bytes[cause as usize]).unwrap_or(i64::MAX);
    let named = Cause::ALL.into_iter().map(|cause| (cause.name(), of(cause)));
    named.chain([("unknown", sum.unknown_bytes())]).collect()
}

pub fn taken_facts(process: &Process, device: &DeviceState, top: usize) -> Vec<TakenFacts> {
    let classifier =
        process.who.as_ref().map(|who| StackClassifier::new(&who.symbols, &process.header));
    let all = taken_by(device, classifier.as_ref());
    let facts = |taken: &TakenBy| {
        let roles =
            classifier.as_ref().map(|classifier| (classifier, classifier.roles(taken.stack)));
        let frame = |at: fn(&crate::analysis::FrameRoles) -> Option<usize>| {
            let (classifier, roles) = roles.as_ref()?;
            classifier.frame(taken.stack, at(roles)).map(frame_facts)
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
