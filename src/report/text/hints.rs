//! What to run next.

use super::layout::{DIM, paint};
use crate::analysis::{Process, outliers};

/// `overview`: only one line each was shown. `full`: all was. `given`: the traces as they were named, each after
/// a space.
pub fn hints(processes: &[Process], overview: bool, full: bool, given: &str) -> String {
    let mut lines = Vec::new();
    if overview {
        let odd = outliers(processes);
        let odd = processes.iter().zip(&odd).find(|(_, odd)| odd.is_some());
        if let Some(process) = odd.map(|(process, _)| process).or(processes.first()) {
            let header = &process.header;
            let same = |p: &&Process| p.header.rank == header.rank;
            let which = match header.rank {
                Some(rank) if processes.iter().filter(same).count() == 1 => {
                    format!("--rank {rank}")
                }
                _ => format!("--pid {}", header.pid),
            };
            lines.push((format!("vramtrace report{given} {which}"), "one process in full"));
        }
    }
    if !overview && !full {
        let rest = "kinds, refusals, libraries, the sum to nvidia-smi's figure";
        lines.push((format!("vramtrace report{given} --full"), rest));
    }
    if !overview && processes.iter().any(|process| process.peak_bytes() > 0) {
        lines.push((format!("vramtrace report{given} --at peak"), "what was live at the peak"));
    }
    if processes.iter().any(|process| process.who.is_some()) {
        let holders = format!("vramtrace holders{given} --full");
        lines.push((holders, "who held it at the peak, with every frame"));
    }
    if !processes.is_empty() {
        let export = format!("vramtrace export{given} --format perfetto -o timeline.pftrace");
        lines.push((export, "the timeline"));
    }
    let widest = lines.iter().map(|(command, _)| command.chars().count()).max().unwrap_or(0);
    lines
        .into_iter()
        .map(|(command, what)| {
            let room = " ".repeat(widest - command.chars().count());
            format!("{}\n", paint(DIM, &format!("{command}{room}   # {what}")))
        })
        .collect()
}
