//! What memory did in each iteration, from its passes.

use std::collections::BTreeMap;

use vramtrace_format::DeviceId;

use super::cycles::Cycle;
use super::groups::Group;
use super::pass::{Pass, PassKind};
use super::step::{Apart, InStep, NoSteps, Place, Step, StepState, Steps};

pub(super) fn steps(
    passes: &[Pass],
    groups: &[Group],
    cycles: Result<Vec<Cycle>, NoSteps>,
) -> Steps {
    let found = cycles.map(|cycles| {
        let step = |(index, cycle): (usize, &Cycle)| step(index + 1, passes, groups, cycle);
        cycles.iter().enumerate().map(step).collect::<Vec<Step>>()
    });
    let mut steps = Steps { apart: apart(passes, found.as_deref().unwrap_or_default()), found };
    durations(&mut steps);
    steps
}

fn durations(steps: &mut Steps) {
    let apart: Vec<usize> = steps.apart.iter().map(|apart| apart.after).collect();
    let Ok(steps) = &mut steps.found else { return };
    for index in 0..steps.len() {
        let next = steps.get(index + 1).filter(|_| !apart.contains(&(index + 1)));
        let until = next.map_or(steps[index].end, |next| next.begin).time_ns;
        steps[index].duration_ns = until.saturating_sub(steps[index].begin.time_ns);
    }
}

fn step(number: usize, passes: &[Pass], groups: &[Group], cycle: &Cycle) -> Step {
    let groups_of = &groups[cycle.groups.clone()];
    let (first, last) = (groups_of[0].first, groups_of[groups_of.len() - 1].last);
    let of = &passes[first..=last];
    let ends_run = last + 1 == passes.len() && cycle.state != StepState::Unfinished;
    let end = &passes[last];
    Step {
        number,
        begin: passes[first].begin,
        end: end.settled.filter(|_| ends_run).unwrap_or(end.end),
        duration_ns: 0,
        backward_passes: groups_of.iter().map(|group| group.backward_passes).sum(),
        updates: groups_of.iter().filter(|group| !group.callers.is_empty()).count(),
        state: cycle.state,
        peak: peak(of),
        devices: in_passes(of, ends_run),
    }
}

fn peak(passes: &[Pass]) -> Place {
    // Of equal ones the first.
    let most = passes.iter().rev().max_by_key(|pass| pass.peak.0);
    most.map_or(Place::default(), |pass| pass.peak.1)
}

/// `ends_run`: what is freed at the end of the run counts as left.
fn in_passes(passes: &[Pass], ends_run: bool) -> BTreeMap<DeviceId, InStep> {
    let mut devices: BTreeMap<DeviceId, InStep> = BTreeMap::new();
    for pass in passes {
        for (device, figures) in &pass.devices {
            let sums = devices.entry(*device).or_default();
            let largest = match figures.largest_block {
                0 => figures.largest_of_driver,
                largest => largest,
            };
            sums.peak_bytes = sums.peak_bytes.max(figures.peak);
            sums.left_bytes = figures.settled.filter(|_| ends_run).unwrap_or(figures.left);
            sums.largest_request = sums.largest_request.max(largest);
        }
    }
    devices
}

/// Forward passes between the iterations.
fn apart(passes: &[Pass], steps: &[Step]) -> Vec<Apart> {
    let mut found: Vec<(usize, Vec<Pass>)> = Vec::new();
    for pass in passes.iter().filter(|pass| pass.kind == PassKind::Forward) {
        let after = steps.partition_point(|step| step.begin.offset <= pass.begin.offset);
        let within = after > 0 && pass.begin.offset <= steps[after - 1].end.offset;
        match found.last_mut() {
            _ if within => {}
            Some((of, passes)) if *of == after => passes.push(pass.clone()),
            _ => found.push((after, vec![pass.clone()])),
        }
    }
    let apart = |(after, passes): (usize, Vec<Pass>)| Apart {
        after,
        passes: passes.len(),
        begin: passes[0].begin,
        end: passes[passes.len() - 1].end,
        devices: in_passes(&passes, false),
    };
    found.into_iter().map(apart).collect()
}
