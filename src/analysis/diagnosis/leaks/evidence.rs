//! The evidence for a leak as text.

use super::verdict::{Leak, LeakReason, Verdict};
use crate::units::{count, seconds, several, size};

/// One line per item.
pub(super) fn evidence(leak: &Leak, from_ns: u64) -> Vec<String> {
    let calls = |allocations: u64, frees: u64| {
        format!("{}, {} freed", several(allocations, "allocation"), count(frees))
    };
    let mut lines = Vec::new();
    if let Some(growth) = &leak.growth {
        let (from, to) = (from_ns + growth.first_ns, from_ns + growth.last_ns);
        let points = if growth.troughs { "low points" } else { "moments" };
        lines.push(format!(
            "what it never gave back rose by {} from {} to {}: at {} of {} {points}, Kendall's \
             tau {:.2}",
            size(growth.risen),
            seconds(from),
            seconds(to),
            growth.rises,
            growth.points,
            growth.tau,
        ));
    }
    match leak.because {
        LeakReason::OthersFreed { freed, held } => lines.push(format!(
            "when the process ended it freed the memory of {freed} of {held} stacks that held some, not this"
        )),
        LeakReason::NoneFreed => {
            lines.push("too few to rule out a small cache, but none was freed".into());
        }
        LeakReason::Sleeps { sleeps, bytes_a_sleep } => lines.push(format!(
            "it held more at each time that memory was unmapped: {} a sleep, over {}",
            size(bytes_a_sleep),
            several(sleeps, "sleep")
        )),
        LeakReason::GraphsKept { same, again } => {
            let (kept, same) = (several(leak.count, "executable graph"), count(same));
            lines.push(format!(
                "{kept} kept, {same} with as many nodes as another; {} launched again after a later one was \
                 instantiated",
                if again == 0 { "none".to_string() } else { count(again) }
            ));
            let (made, gone) = (count(leak.allocations), count(leak.frees));
            lines.push(format!("{made} instantiated at a steady pace, {gone} destroyed"));
            return lines;
        }
        LeakReason::DriverTook { times } => {
            lines.push(format!("the driver took memory {} times, and gave none back", count(times)));
            lines.push("as much in the last quarter of the time as before".into());
            return lines;
        }
        LeakReason::Trend if leak.driver.is_some() => {
            lines.push("growth of NVML's figure that no allocation and no followed call explains".into());
            return lines;
        }
        LeakReason::Trend => {}
    }
    lines.push(match leak.verdict {
        Verdict::FreedAtEnd => {
            format!(
                "{}, the grown part when the process ended",
                calls(leak.allocations, leak.frees)
            )
        }
        _ => calls(leak.allocations, leak.frees),
    });
    lines
}
