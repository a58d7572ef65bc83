//! The rules: from the stack's class and the life of an allocation to its role. docs/roles.md
//! gives the reason of each.

use super::Role;
use super::learned::{Learned, Site};
use super::life::{End, Life};
use super::stack_class::{Phase, StackClass};

/// What outlives this many further rounds is kept for good.
const KEPT: u32 = 3;
/// In a backward that the trace's end cuts off, what is older than this many of its allocations is
/// taken for a gradient: what goes from node to node is freed sooner.
const NODES: u32 = 32;

pub(super) fn role(life: &Life, site: Site, learned: &Learned) -> Role {
    match life.class {
        StackClass::Workspace => Role::Workspace,
        StackClass::Communication => Role::Communication,
        StackClass::Graph => Role::GraphMemory,
        StackClass::Accumulate => Role::Gradients,
        StackClass::Recompute => Role::Activations,
        StackClass::Load => load(life),
        StackClass::Cache => cache(life, learned),
        StackClass::Forward => forward(life, site, learned),
        StackClass::Backward => backward(life, site, learned),
        StackClass::Optimizer | StackClass::OptimizerState => optimizer(life, site, learned),
        StackClass::Outside | StackClass::Constructor => outside(life, site, learned),
        StackClass::Unknown => Role::Unknown,
    }
}

/// Weights are there when the first forward begins; what helped to load them is not.
fn load(life: &Life) -> Role {
    match life.is_freed() && life.forwards() == 0 && life.backwards() == 0 {
        true => Role::Temporary,
        false => Role::Weights,
    }
}

/// A cache that backward reads holds activations: the same code runs in training.
fn cache(life: &Life, learned: &Learned) -> Role {
    if life.backwards() > 0 && life.backwards() < KEPT {
        return Role::Activations;
    }
    match life.is_freed() && life.forwards() == 0 && life.ended.phase == Phase::Forward {
        true => within_forward(learned),
        false => Role::KvCache,
    }
}

/// What is freed in the forward that made it: scratch where others are kept for backward.
fn within_forward(learned: &Learned) -> Role {
    match learned.trains() {
        true => Role::Temporary,
        false => Role::Activations,
    }
}

fn forward(life: &Life, site: Site, learned: &Learned) -> Role {
    if life.older || life.backwards() >= KEPT || life.backwards() == 0 && life.forwards() >= KEPT {
        return kept_from_forward(life, site, learned);
    }
    if !life.is_freed() || life.backwards() > 0 {
        return Role::Activations;
    }
    if life.forwards() == 0 {
        return match life.ended.phase {
            Phase::Forward => within_forward(learned),
            _ => Role::Activations,
        };
    }
    // It was read in the middle of a later forward, and replaced there. What a variable holds until
    // the next result takes its place is freed behind that forward.
    match life.freed_amid(Phase::Forward) && !learned.trains() {
        true => Role::KvCache,
        false => Role::Activations,
    }
}

/// Libraries make scratch memory at their first use, below a line that makes activations as well.
/// What is kept again and again is no scratch.
fn kept_from_forward(life: &Life, site: Site, learned: &Learned) -> Role {
    if learned.is_kept_once(site) {
        return Role::Workspace;
    }
    match life.backwards() == 0 && !learned.trains() {
        true => Role::KvCache,
        false => Role::Activations,
    }
}

fn backward(life: &Life, site: Site, learned: &Learned) -> Role {
    // Each backward makes gradients anew, unless the program sets them to zero in place.
    let renewed = learned.gradient_life();
    if renewed.is_some_and(|most| life.backwards() > KEPT.max(2 * most)) && !life.is_freed() {
        return Role::Workspace;
    }
    if !life.within_phase() {
        return Role::Gradients;
    }
    match life.end {
        // The program's thread freed it, not the engine's: behind the last node.
        End::Freed { same_thread: false, .. } => Role::Gradients,
        End::Freed { same_thread: true, .. } => Role::Temporary,
        End::NotSeen => learned.usual(site).unwrap_or({
            match life.ended.in_backward - life.born.in_backward > NODES {
                true => Role::Gradients,
                false => Role::Temporary,
            }
        }),
    }
}

fn optimizer(life: &Life, site: Site, learned: &Learned) -> Role {
    if !life.within_phase() {
        return Role::OptimizerState;
    }
    if life.is_freed() {
        return Role::Temporary;
    }
    let by_name = match life.class {
        StackClass::OptimizerState => Role::OptimizerState,
        _ => Role::Temporary,
    };
    learned.usual(site).unwrap_or(by_name)
}

/// Made by the program's own lines, between the calls of modules.
fn outside(life: &Life, site: Site, learned: &Learned) -> Role {
    let rounds = life.backwards().max(life.forwards());
    if rounds >= KEPT || life.older {
        // Parameters without a module: their gradients have their size.
        let has_gradient = learned.makes_gradients_of(site.bytes);
        return match (has_gradient, life.class) {
            (true, _) | (_, StackClass::Constructor) => Role::Weights,
            _ if learned.trains() => Role::Input,
            _ => Role::Unknown,
        };
    }
    let after_forward = life.born.last == Phase::Forward;
    let functional = learned.forwards() == 0;
    if life.backwards() > 0 || life.ended.phase == Phase::Backward {
        // A loss is made behind the forward, and a model without modules makes all here.
        return match after_forward || functional {
            true => Role::Activations,
            false => Role::Input,
        };
    }
    if life.forwards() > 0 {
        return Role::Input;
    }
    match life.end {
        End::Freed { .. } => Role::Temporary,
        End::NotSeen if after_forward && learned.trains() => Role::Activations,
        End::NotSeen => Role::Input,
    }
}
