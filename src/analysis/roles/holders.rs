//! Roles as holders: each with the stack that holds the most of it.

use std::cmp::Reverse;

use rustc_hash::FxHashMap;
use vramtrace_format::{DeviceId, StackId};

use super::{HeldByRole, Role};
use crate::analysis::holdings::Held;
use crate::analysis::{Holder, Level, StackClassifier};

/// What one role holds of one device. `holder.stack` holds the most of it.
#[derive(Clone, Debug, PartialEq)]
pub struct RoleHolder {
    pub role: Role,
    pub holder: Holder,
}

/// Largest first.
pub fn holders(classifier: &StackClassifier, held: &HeldByRole, level: Level) -> Vec<RoleHolder> {
    let mut all: FxHashMap<(DeviceId, Role), (Held, u64, Held, StackId)> = FxHashMap::default();
    for ((device, role, stack), held) in &held.held {
        let sum = all.entry((*device, *role)).or_insert((Held::default(), 0, *held, *stack));
        sum.0.add(*held);
        sum.1 += 1;
        // Of equal ones the first id: the same in every reading.
        if (held.bytes, Reverse(*stack)) > (sum.2.bytes, Reverse(sum.3)) {
            (sum.2, sum.3) = (*held, *stack);
        }
    }
    let holder = |((device, role), (held, stacks, _, stack)): (_, (Held, u64, Held, StackId))| {
        let roles = classifier.roles_at(stack, level);
        let library = classifier.library_name(&roles).map(str::to_string);
        let (lead, caller) = (roles.lead, roles.caller);
        let Held { bytes, count, paused, unmapped, brought_back_by, .. } = held;
        let of_cache = level == Level::Tensor;
        let holder = Holder {
            device,
            bytes,
            count,
            paused,
            unmapped,
            brought_back_by,
            error: held.error(),
            stacks,
            stack,
            library,
            of_cache,
            cause: None,
            lead,
            caller,
        };
        RoleHolder { role, holder }
    };
    let mut holders: Vec<RoleHolder> = all.into_iter().map(holder).collect();
    holders.sort_by_key(|of| (Reverse(of.holder.bytes), of.holder.device, of.role));
    holders
}
