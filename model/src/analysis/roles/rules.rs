//! The rules that give the role of an allocation, from the class of its stack and its life. docs/roles.md
//! has the reasons.

use super::Role;
use super::class::{StackClass, StepPart};
use super::life::{End, KEPT, Learned, Life, StackAndSize};

/// In a backward pass that the end of the trace interrupts, memory that is older than this many of its
/// allocations counts as a gradient: what one node passes to the next is freed sooner.
const NODES: u32 = 32;

pub(super) fn role(life: &Life, site: StackAndSize, learned: &Learned) -> Role {
    match life.class {
        StackClass::Is(role) => role,
        StackClass::Accumulate => Role::Gradients,
        StackClass::Reduce => match backward(life, site, learned) {
            Role::Gradients => Role::Gradients,
            _ => Role::Communication,
        },
        StackClass::Recompute => Role::Activations,
        StackClass::Load => load(life),
        StackClass::Copy => match learned.surplus.contains(&site) {
            true if life.is_kept() => Role::Copies,
            _ => load(life),
        },
        StackClass::Cache => cache(life, learned),
        StackClass::Forward => forward(life, site, learned),
        StackClass::Backward => backward(life, site, learned),
        StackClass::Optimizer | StackClass::OptimizerState => optimizer(life, site, learned),
        StackClass::Outside | StackClass::Constructor => outside(life, site, learned),
        StackClass::Unknown | StackClass::Compiled => Role::Unknown,
    }
}

/// Weights are live when the first forward pass begins; temporary memory of loading is not.
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
    match life.is_freed() && life.forwards() == 0 && life.ended.phase == StepPart::Forward {
        true => within_forward(learned),
        false => Role::KvCache,
    }
}

/// Memory that is freed in the forward pass that made it: temporary in a program that trains.
fn within_forward(learned: &Learned) -> Role {
    if learned.trains() { Role::Temporary } else { Role::Activations }
}

fn forward(life: &Life, site: StackAndSize, learned: &Learned) -> Role {
    if life.older || life.is_kept() {
        // A library allocates its workspace at the first use, below a line that allocates activations as well.
        // Memory that several passes keep is no workspace.
        return match learned.sites.get(&site).is_none_or(|fate| fate.kept_rounds <= 1) {
            true => Role::Workspace,
            false if life.backwards() == 0 && !learned.trains() => Role::KvCache,
            false => Role::Activations,
        };
    }
    if !life.is_freed() || life.backwards() > 0 {
        return Role::Activations;
    }
    if life.forwards() == 0 {
        return match life.ended.phase {
            StepPart::Forward => within_forward(learned),
            _ => Role::Activations,
        };
    }
    // Memory that a later forward pass reads and replaces is freed during that pass. The result that a
    // variable holds until the next one replaces it is freed after that pass.
    match life.freed_amid(StepPart::Forward) && !learned.trains() {
        true => Role::KvCache,
        false => Role::Activations,
    }
}

fn backward(life: &Life, site: StackAndSize, learned: &Learned) -> Role {
    // Each backward pass allocates new gradients, unless the program sets them to zero in place.
    let renewed = learned.gradient_life;
    if renewed.is_some_and(|most| life.backwards() >= KEPT.max(2 * most)) && !life.is_freed() {
        return Role::Workspace;
    }
    if !life.within_phase() {
        return Role::Gradients;
    }
    match life.end {
        // The program's thread freed it after the last node; the engine's threads free the rest.
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

fn optimizer(life: &Life, site: StackAndSize, learned: &Learned) -> Role {
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

/// Memory that the program's own lines allocate, between the calls of modules.
fn outside(life: &Life, site: StackAndSize, learned: &Learned) -> Role {
    if life.older || life.is_kept() {
        // A parameter without a module has the size of a gradient.
        let has_gradient = learned.gradients.contains_key(&site.bytes);
        return match (has_gradient, life.class) {
            // Momentum, averages and other copies have the size of a gradient, too.
            (true, StackClass::Outside) if learned.surplus.contains(&site) => Role::Unknown,
            (true, _) | (_, StackClass::Constructor) => Role::Weights,
            // Memory that the program allocates repeatedly is input of the model.
            _ if learned.trains() || life.is_freed() => Role::Input,
            _ => learned.usual(site).unwrap_or(Role::Unknown),
        };
    }
    let after_forward = life.born.last == StepPart::Forward;
    let functional = learned.forwards() == 0;
    if life.backwards() > 0 || life.ended.phase == StepPart::Backward {
        // The loss is allocated after the forward pass; a model without modules allocates all here.
        return if after_forward || functional { Role::Activations } else { Role::Input };
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

#[cfg(test)]
mod tests {
    use vramtrace_format::StackId;

    use super::super::life::TrainingProgress;
    use super::*;

    const SITE: StackAndSize = StackAndSize { stack: StackId(7), bytes: 1 << 20 };

    /// A life that began in `born` and ended so many forward and backward passes later in `phase`.
    fn life(class: StackClass, born: StepPart, passes: (u32, u32), phase: StepPart) -> Life {
        let begin = TrainingProgress {
            forwards: 5,
            backwards: 5,
            optimizers: 5,
            in_backward: 100,
            phase: born,
            last: born,
        };
        let (forwards, backwards) = (5 + passes.0, 5 + passes.1);
        let ended = TrainingProgress { forwards, backwards, phase, last: phase, ..begin };
        let end = End::Freed { same_thread: true, next: Some(phase) };
        Life { class, born: begin, older: false, ended, end }
    }

    fn kept(life: Life) -> Life {
        Life { end: End::NotSeen, ..life }
    }

    fn finish(learned: &mut Learned) {
        let (forwards, backwards) = (9, 9);
        learned.finish(TrainingProgress { forwards, backwards, ..TrainingProgress::default() });
    }

    /// Of a program that trains.
    fn training() -> Learned {
        let mut learned = Learned::default();
        finish(&mut learned);
        learned
    }

    fn inference() -> Learned {
        let mut learned = Learned::default();
        learned.finish(TrainingProgress { forwards: 9, ..TrainingProgress::default() });
        learned
    }

    #[test]
    fn an_optimizer_that_allocates_nothing_ends_no_backward() {
        let freed = life(StackClass::Backward, StepPart::Backward, (0, 0), StepPart::Backward);
        assert_eq!(role(&freed, SITE, &training()), Role::Temporary, "by the engine's thread");
        let end = End::Freed { same_thread: false, next: Some(StepPart::Forward) };
        assert_eq!(role(&Life { end, ..freed }, SITE, &training()), Role::Gradients);
    }

    #[test]
    fn what_a_reduction_leaves_are_gradients() {
        let kept = life(StackClass::Reduce, StepPart::Backward, (1, 0), StepPart::Outside);
        assert_eq!(role(&kept, SITE, &training()), Role::Gradients);
        let within = life(StackClass::Reduce, StepPart::Backward, (0, 0), StepPart::Backward);
        assert_eq!(role(&within, SITE, &training()), Role::Communication);
    }

    #[test]
    fn what_a_run_died_with_in_backward_is_reported_by_its_like_or_by_its_age() {
        let mut learned = training();
        let mut cut =
            kept(life(StackClass::Backward, StepPart::Backward, (0, 0), StepPart::Backward));
        assert_eq!(role(&cut, SITE, &learned), Role::Temporary, "just made");
        cut.ended.in_backward += 2 * NODES;
        assert_eq!(role(&cut, SITE, &learned), Role::Gradients, "outlived many nodes");
        let earlier = life(StackClass::Backward, StepPart::Backward, (0, 0), StepPart::Backward);
        learned.note(&earlier, SITE, Role::Temporary);
        assert_eq!(role(&cut, SITE, &learned), Role::Temporary, "as all of its site were");
    }

    #[test]
    fn what_a_forward_keeps_once_is_scratch_and_again_and_again_is_not() {
        let long = kept(life(StackClass::Forward, StepPart::Forward, (9, 9), StepPart::Outside));
        let mut learned = training();
        learned.note(&long, SITE, Role::Activations);
        assert_eq!(role(&long, SITE, &learned), Role::Workspace);
        let mut later = long;
        later.born.forwards += 1;
        learned.note(&later, SITE, Role::Activations);
        assert_eq!(role(&long, SITE, &learned), Role::Activations, "kept in every step: a leak");
    }

    #[test]
    fn in_inference_what_the_next_forward_replaces_is_a_cache() {
        let within = life(StackClass::Forward, StepPart::Forward, (1, 0), StepPart::Forward);
        assert_eq!(role(&within, SITE, &inference()), Role::KvCache);
        let behind = End::Freed { same_thread: true, next: Some(StepPart::Outside) };
        let result = Life { end: behind, ..within };
        assert_eq!(role(&result, SITE, &inference()), Role::Activations, "a variable held it");
        assert_eq!(role(&within, SITE, &training()), Role::Activations, "a validation loop");
    }

    #[test]
    fn parameters_without_a_module_have_gradients_of_their_size() {
        let long = kept(life(StackClass::Outside, StepPart::Outside, (9, 9), StepPart::Outside));
        let mut learned = training();
        assert_eq!(role(&long, SITE, &learned), Role::Input, "a data set");
        let gradient = life(StackClass::Backward, StepPart::Backward, (1, 0), StepPart::Outside);
        learned.note(&gradient, SITE, Role::Gradients);
        assert_eq!(role(&long, SITE, &learned), Role::Weights);
        assert_eq!(role(&long, SITE, &inference()), Role::Unknown);
    }

    /// A program with two weights of a size that modules load, each with a gradient, and then other memory of the
    /// size, all of one stack of `class`.
    fn with_weights(class: StackClass, loaded: u32, others: u32) -> (Learned, StackAndSize) {
        let mut learned = Learned::default();
        let of = |stack| StackAndSize { stack: StackId(stack), ..SITE };
        let long = |class| kept(life(class, StepPart::Outside, (9, 9), StepPart::Outside));
        for _ in 0..loaded {
            learned.note(&long(StackClass::Load), of(3), Role::Weights);
        }
        for _ in 0..others {
            learned.note(&long(class), of(2), Role::Unknown);
        }
        for pass in 5..8 {
            for _ in 0..2 {
                let mut gradient =
                    life(StackClass::Backward, StepPart::Backward, (1, 0), StepPart::Outside);
                (gradient.born.backwards, gradient.ended.backwards) = (pass, pass);
                learned.note(&gradient, of(9), Role::Gradients);
            }
        }
        finish(&mut learned);
        (learned, of(2))
    }

    #[test]
    fn copies_of_weights_have_no_gradients_of_their_own() {
        let copied = kept(life(StackClass::Copy, StepPart::Outside, (9, 9), StepPart::Outside));
        let (learned, site) = with_weights(StackClass::Copy, 2, 2);
        assert_eq!(role(&copied, site, &learned), Role::Copies, "for an average");
        let (learned, site) = with_weights(StackClass::Copy, 0, 2);
        assert_eq!(role(&copied, site, &learned), Role::Weights, "layers that are cloned");
        let (learned, site) = with_weights(StackClass::Copy, 1, 1);
        assert_eq!(role(&copied, site, &learned), Role::Weights, "a layer that is cloned");
        assert_eq!(role(&copied, site, &inference()), Role::Weights);
    }

    #[test]
    fn in_a_loop_without_modules_what_is_beyond_the_gradients_is_not_known() {
        let long = kept(life(StackClass::Outside, StepPart::Outside, (9, 9), StepPart::Outside));
        let (mut learned, parameters) = with_weights(StackClass::Outside, 0, 2);
        let momentum = StackAndSize { stack: StackId(4), ..SITE };
        learned.note(&long, momentum, Role::Unknown);
        finish(&mut learned);
        assert_eq!(role(&long, parameters, &learned), Role::Weights, "the line that came first");
        assert_eq!(role(&long, momentum, &learned), Role::Unknown);
    }

    #[test]
    fn a_loss_is_an_activation_and_a_batch_is_input() {
        let batch = life(StackClass::Outside, StepPart::Outside, (1, 1), StepPart::Outside);
        assert_eq!(role(&batch, SITE, &training()), Role::Input);
        let mut loss = life(StackClass::Outside, StepPart::Outside, (0, 1), StepPart::Backward);
        loss.born.last = StepPart::Forward;
        assert_eq!(role(&loss, SITE, &training()), Role::Activations);
    }

    #[test]
    fn what_helps_to_load_is_gone_before_the_model_runs() {
        let copy = life(StackClass::Load, StepPart::Outside, (0, 0), StepPart::Outside);
        assert_eq!(role(&copy, SITE, &training()), Role::Temporary);
        assert_eq!(role(&kept(copy), SITE, &training()), Role::Weights);
        let model = life(StackClass::Load, StepPart::Outside, (3, 0), StepPart::Outside);
        assert_eq!(role(&model, SITE, &inference()), Role::Weights, "of a model that was swapped");
    }
}
