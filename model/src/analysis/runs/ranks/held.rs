//! The holders of a process as [`Holdings`]: blocks in place of their segments.

use vramtrace_format::summary::largest_first;
use vramtrace_format::{StateHolder, SummaryMoment};

use super::ProcessFigures;
use crate::analysis::holdings::{Holding, Holdings, HoldingsAtPeaks, Owner, segment_stacks};
use crate::analysis::{Level, Moment, Process, StackClassifier};
use crate::symbols::FREE_CACHE;
use crate::trace::Trace;

/// The holdings at a moment, of the largest holders that the process's summary names.
pub fn holdings(
    figures: &ProcessFigures,
    classifier: &StackClassifier,
    moment: SummaryMoment,
) -> Holdings {
    let mut all = Holdings::default();
    for (id, device) in &figures.devices {
        let at_ns = match moment {
            SummaryMoment::Peak => device.peak_ns,
            SummaryMoment::End => figures.last_ns,
        };
        all.at_ns.insert(*id, at_ns);
        let here = device.holders.iter().filter(|holder| holder.moment == moment);
        let holders = here.clone().filter(|holder| holder.cause.is_none());
        if holders.clone().any(|holder| holder.of_framework) {
            all.level = Level::Tensor;
        }
        let is_segment =
            |stack| figures.segments.contains(&(*id, stack)) || classifier.is_torch_cache(stack);
        all.add_recorded(*id, holders, is_segment);
        for of in here {
            let held = Holding { bytes: of.bytes, count: of.count, ..Holding::default() };
            let taken = of.cause.map(|cause| Owner::of_driver(*id, of.stack, cause));
            taken.into_iter().for_each(|owner| all.add(owner, held));
        }
    }
    all
}

/// Adds the holders of each device, and what the driver took for itself, as the summary of a process lists them. Memory that
/// was unmapped and mapped again belongs to the stack that first allocated it. Reads the trace again, up to the peaks.
pub(super) fn add_holders(figures: &mut ProcessFigures, process: &Process, trace: &Trace) {
    let levels = [Level::Driver, Level::Tensor];
    let mut peaks = levels.map(|level| HoldingsAtPeaks::new(&process.state, Moment::Peak, level));
    let [driver, tensor] = &mut peaks;
    process.visit(trace, &mut [driver, tensor]);
    // Stacks of other tools lack the library by which a recorded segment is known.
    if process.definitions.imported_from().is_some() {
        figures.segments = segment_stacks(&process.state);
    }
    let ends = levels.map(|level| Holdings::of_state(&process.state, level));
    let moments =
        [(SummaryMoment::Peak, peaks.map(|peaks| peaks.found)), (SummaryMoment::End, ends)];
    for (id, device) in &mut figures.devices {
        for (taken, (moment, [driver, tensor])) in
            [false, true].iter().flat_map(|taken| moments.iter().map(move |of| (*taken, of)))
        {
            for (of_framework, found) in [(false, driver), (true, tensor)] {
                let here = found.held.iter().filter(|(of, _)| {
                    let is_listed = of.cause.is_some() == taken && of.of_cache == of_framework;
                    of.device == *id && is_listed && of.stack != FREE_CACHE
                });
                let mut holders: Vec<StateHolder> = here
                    .map(|(of, held)| StateHolder {
                        device: *id,
                        moment: *moment,
                        of_framework,
                        cause: of.cause,
                        stack: of.stack,
                        bytes: held.bytes,
                        count: held.count,
                    })
                    .collect();
                largest_first(&mut holders);
                device.holders.append(&mut holders);
            }
        }
    }
}
