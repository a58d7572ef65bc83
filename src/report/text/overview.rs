//! A run of several processes: one line each, the odd one out marked.

use super::layout::{BAD, BOLD, PLAIN, Table, WARN, paint};
use crate::analysis::{Process, outliers};
use crate::report::wording;
use crate::units::{count, gib, shorten};

pub fn overview(processes: &[Process]) -> String {
    let odd = outliers(processes);
    let ranks = processes.iter().any(|process| process.header.rank.is_some());
    let hosts = processes.iter().any(|p| p.header.host != processes[0].header.host);
    let longest = processes.iter().map(|process| process.state.time_ns).max().unwrap_or(0);
    let mut out = paint(BOLD, &format!("{} processes", count(processes.len() as u64)));
    out.push_str(&format!(", the longest {:.1} s\n\n", longest as f64 / 1e9));

    let mut table = Table::new(2, "rrllrrrll");
    table.head(&[
        if ranks { "rank" } else { "" },
        "pid",
        if hosts { "host" } else { "" },
        "device",
        "peak",
        "live",
        "refused",
        "ended",
        "",
    ]);
    for (process, odd) in processes.iter().zip(&odd) {
        lines(&mut table, process, odd.is_some(), hosts);
    }
    out.push_str(&table.render());
    for (process, reason) in processes.iter().zip(&odd) {
        if let Some(reason) = reason {
            out.push_str(&format!("\n  {}: {reason}\n", paint(BAD, &process.name())));
        }
    }
    out
}

/// One line for each device that the process used; one for a process that used none.
fn lines(table: &mut Table, process: &Process, odd: bool, hosts: bool) {
    let header = &process.header;
    let rank = header.rank.map_or(String::new(), |rank| rank.to_string());
    let host = if hosts { header.host.clone() } else { String::new() };
    let in_oom = !process.ended_out_of_memory().is_empty();
    let (ended, ended_style) = match (process.ended_in_order(), process.running) {
        _ if in_oom => ("out of memory", BAD),
        (true, _) => ("in order", PLAIN),
        (false, true) => ("running", PLAIN),
        (false, false) => ("cut off", WARN),
    };
    let mark = if odd { "<-- the odd one out" } else { "" }.to_string();
    let mut names = Some((rank, header.pid.to_string(), host, ended.to_string(), mark));
    for (id, device) in process.devices() {
        let (rank, pid, host, ended, mark) = names.take().unwrap_or_default();
        let refused = device.refused();
        let name = shorten(&wording::device_name(id, &process.definitions), 24);
        let name = match id == vramtrace_format::DeviceId::UNKNOWN {
            true => name,
            false => format!("{} {name}", id.0),
        };
        table.styled([
            (rank, BOLD),
            (pid, PLAIN),
            (host, PLAIN),
            (name, PLAIN),
            (gib(device.peak.bytes), PLAIN),
            (gib(device.live_bytes), PLAIN),
            (count(refused), if refused > 0 { BAD } else { PLAIN }),
            (ended, ended_style),
            (mark, BAD),
        ]);
    }
    if let Some((rank, pid, host, ended, mark)) = names {
        let nothing = "no GPU memory used".to_string();
        let empty = String::new;
        table.styled([
            (rank, BOLD),
            (pid, PLAIN),
            (host, PLAIN),
            (nothing, PLAIN),
            (empty(), PLAIN),
            (empty(), PLAIN),
            (empty(), PLAIN),
            (ended, ended_style),
            (mark, BAD),
        ]);
    }
}
