//! The holders of a process as [`Holdings`]: blocks in place of their segments.

use vramtrace_format::summary::largest_first;
use vramtrace_format::{StateHolder, SummaryMoment};

use super::{FiguresSource, ProcessFigures};
use crate::analysis::holdings::{Holding, Holdings, HoldingsAtPeaks, Owner};
use crate::analysis::{Level, Moment, Process, StackClassifier};
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
        // A replay knows which memory is the blocks' segments.
        let is_recorded = figures.source != FiguresSource::Events;
        all.add_recorded(*id, holders, |stack| is_recorded && classifier.is_torch_cache(stack));
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
    let ends = levels.map(|level| Holdings::of_state(&process.state, level));
    for (moment, [driver, tensor]) in
        [(SummaryMoment::Peak, peaks.map(|peaks| peaks.found)), (SummaryMoment::End, ends)]
    {
        for (id, device) in &mut figures.devices {
            let has_blocks = tensor.held.keys().any(|of| of.device == *id && of.of_cache);
            let memory = if has_blocks { &tensor } else { &driver };
            for (taken, found) in [(false, memory), (true, &driver)] {
                let here = found.held.iter().filter(|(of, _)| of.device == *id);
                let listed = here.filter(|(of, _)| of.cause.is_some() == taken);
                let mut holders: Vec<StateHolder> = listed
                    .map(|(of, held)| StateHolder {
                        device: *id,
                        moment,
                        of_framework: of.of_cache,
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
