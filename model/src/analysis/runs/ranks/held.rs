//! The holders of a process as [`Holdings`]: blocks in place of their segments.

use vramtrace_format::summary::{largest_driver_first, largest_first};
use vramtrace_format::{SummaryDriver, SummaryHolder, SummaryMoment};

use super::ProcessFigures;
use crate::analysis::holdings::{Holding, Holdings, HoldingsAtPeaks, Owner};
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
        let holders = device.holders.iter().filter(|holder| holder.moment == moment);
        if holders.clone().any(|holder| holder.of_framework) {
            all.level = Level::Tensor;
        }
        all.add_recorded(*id, holders, |stack| classifier.is_torch_cache(stack));
        for of in device.driver.iter().filter(|of| of.moment == moment) {
            let held = Holding { bytes: of.bytes, count: of.count, ..Holding::default() };
            all.add(Owner::of_driver(*id, of.stack, of.cause), held);
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
            for (of_framework, found) in [(false, &driver), (true, &tensor)] {
                let here = found.held.iter().filter(|(of, _)| {
                    of.device == *id && of.of_cache == of_framework && of.cause.is_none()
                });
                let holders = here.filter(|(of, _)| of.stack != FREE_CACHE).map(|(of, held)| {
                    let (stack, bytes, count) = (of.stack, held.bytes, held.count);
                    SummaryHolder { device: *id, moment, of_framework, stack, bytes, count }
                });
                let mut holders: Vec<SummaryHolder> = holders.collect();
                largest_first(&mut holders);
                device.holders.append(&mut holders);
            }
            let here = driver.held.iter().filter(|(of, _)| of.device == *id);
            let taken = here.filter_map(|(of, held)| {
                let (stack, cause, bytes, count) = (of.stack, of.cause?, held.bytes, held.count);
                Some(SummaryDriver { device: *id, moment, cause, stack, bytes, count })
            });
            let mut taken: Vec<SummaryDriver> = taken.collect();
            largest_driver_first(&mut taken);
            device.driver.append(&mut taken);
        }
    }
}
