//! Roles as holders: each with the stack that holds the most of it.

use rustc_hash::FxHashMap;
use vramtrace_format::DeviceId;

use super::{HeldByRole, Role};
use crate::analysis::Level;
use crate::analysis::holders::{Group, Holder, StackClassifier, shared_out};

/// Largest first.
pub fn holders(classifier: &StackClassifier, held: &HeldByRole, level: Level) -> Vec<Holder> {
    let mut all: FxHashMap<(DeviceId, Role), Group> = FxHashMap::default();
    for ((device, role, stack), held) in &held.held {
        all.entry((*device, *role)).or_default().add(*stack, *held);
    }
    let holder = |((device, role), mut group): (_, Group)| {
        group.roles = classifier.roles_at(group.stack, level);
        group.of_cache = level == Level::Tensor;
        classifier.holder(device, None, Some(role), group)
    };
    shared_out(all.into_iter().map(holder).collect())
}
