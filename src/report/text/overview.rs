//! The overview of a run of several processes: one line per process and device, outliers marked; the
//! sums per card; the largest holders.

use super::layout::{BAD, BOLD, DIM, PLAIN, Table, WARN, paint, room};
use super::{failed, merged};
use crate::analysis::ranks::{
    self, Card, DeviceFigures, Imbalance, ProcessEnd, ProcessFigures, cards, imbalance,
};
use crate::analysis::{Process, outliers};
use crate::report::{names, wording};
use crate::units::{count, gib, several, shorten};
use vramtrace_format::{DeviceId, SummaryMoment};

/// If there are more processes than this, only outliers and the lowest and highest peaks are listed.
const LISTED: usize = 64;
/// How many of the lowest and how many of the highest peaks are listed then.
const ENDS: usize = 3;
/// The most reasons that are shown.
const REASONS: usize = 12;
/// The most cards that are listed.
const CARDS: usize = 8;

/// In a narrower terminal the marks of the outliers have no words, so that the other columns are whole.
const WIDE: usize = 96;

/// The whole overview: what failed, then all processes. `first`: the process that failed first, with its
/// post-mortems. `given`: the trace arguments as the user gave them, each after a space. `top`: the most
/// holders that are listed.
pub fn overview(
    processes: &[ProcessFigures],
    first: Option<&Process>,
    given: &str,
    top: usize,
) -> String {
    let odd = outliers(processes);
    let longest = processes.iter().map(|process| process.last_ns).max().unwrap_or(0);
    let mut out = paint(BOLD, &format!("{} processes", count(processes.len() as u64)));
    let ends = match failed::endings(processes) {
        ends if ends.is_empty() => ends,
        ends => format!(": {ends}"),
    };
    out.push_str(&format!(", the longest {:.1} s{ends}\n", longest as f64 / 1e9));
    out.push_str(&failed::head(processes, &ranks::failed(processes), first, given));
    out.push('\n');
    out.push_str(&table(processes, &odd));
    let spread = imbalance(processes);
    if let Some(spread) = &spread {
        out.push_str(&format!("\n  {}\n", spread_words(spread, processes)));
    }
    out.push_str(&reasons(processes, &odd));
    out.push_str(&card_table(&cards(processes), processes));
    for (moment, title) in
        [(SummaryMoment::Peak, "held at the peaks"), (SummaryMoment::End, "held at the end")]
    {
        out.push_str(&merged::of_ranks(processes, moment, title, top));
    }
    out
}

/// The table of processes. `odd`: per process why it is an outlier, or `None`.
fn table(processes: &[ProcessFigures], odd: &[Option<String>]) -> String {
    let ranked = processes.iter().any(|process| process.header.rank.is_some());
    let hosts = processes.iter().any(|p| p.header.host != processes[0].header.host);
    let pids = processes.iter().any(|process| process.header.pid != 0);
    let mut table = Table::new(2, "rrllrrrll");
    table.head(&[
        if ranked { "rank" } else { "" },
        if pids { "pid" } else { "" },
        if hosts { "host" } else { "" },
        "device",
        "peak",
        "live",
        "refused",
        "ended",
        "",
    ]);
    let shown = listed(processes, odd);
    let mark = match odd.iter().flatten().count() {
        // The reasons stand below.
        _ if room(0) < WIDE => "<--",
        0 | 1 => "<-- the odd one out",
        _ => "<-- stands out",
    };
    for index in &shown {
        let mark = if odd[*index].is_some() { mark } else { "" };
        add_process(&mut table, &processes[*index], mark, hosts);
    }
    let mut out = table.render();
    if shown.len() < processes.len() {
        let rest = processes.len() - shown.len();
        let what = if rest == 1 { "process" } else { "processes" };
        let rest = format!("{} {what}", count(rest as u64));
        let text = format!("  and {rest} more between them; `--rank N` shows one, `--all` all\n");
        out.push_str(&paint(DIM, &text));
    }
    out
}

/// The indices of the processes to list: all if there are [`LISTED`] at most; otherwise the outliers
/// and the lowest and highest peaks.
fn listed(processes: &[ProcessFigures], odd: &[Option<String>]) -> Vec<usize> {
    if processes.len() <= LISTED {
        return (0..processes.len()).collect();
    }
    let mut by_peak: Vec<usize> = (0..processes.len()).collect();
    by_peak.sort_by_key(|index| processes[*index].peak_bytes());
    let ends = by_peak.iter().take(ENDS).chain(by_peak.iter().rev().take(ENDS)).copied();
    let marked = (0..processes.len()).filter(|index| odd[*index].is_some());
    let mut shown: Vec<usize> = ends.chain(marked.take(LISTED)).collect();
    shown.sort_unstable();
    shown.dedup();
    shown
}

/// Why processes are outliers: each reason once, with the names of its processes.
fn reasons(processes: &[ProcessFigures], odd: &[Option<String>]) -> String {
    let mut all: Vec<(&str, Vec<&ProcessFigures>)> = Vec::new();
    for (process, reason) in processes.iter().zip(odd) {
        let Some(reason) = reason.as_deref() else { continue };
        match all.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, who)) => who.push(process),
            None => all.push((reason, vec![process])),
        }
    }
    let mut out = String::new();
    for (reason, who) in all.iter().take(REASONS) {
        let name = names::several(who.iter().map(|rank| (&rank.header, rank.trace.as_path())));
        out.push_str(&format!("\n  {}: {reason}\n", paint(BAD, &name)));
    }
    if all.len() > REASONS {
        let text = format!("and {} more", count((all.len() - REASONS) as u64));
        out.push_str(&format!("\n  {}\n", paint(DIM, &text)));
    }
    out
}

/// The lowest, highest and median peak, as a sentence.
fn spread_words(spread: &Imbalance, processes: &[ProcessFigures]) -> String {
    let one =
        |index: usize, bytes| format!("{} ({})", paint(BOLD, &gib(bytes)), processes[index].name());
    format!(
        "recorded peaks from {} to {}, median {};\n  the highest is {:.2} times the mean",
        one(spread.lowest, spread.lowest_peak_bytes),
        one(spread.highest, spread.highest_peak_bytes),
        gib(spread.median_peak_bytes),
        spread.highest_over_mean
    )
}

/// One row per card: the sums over its processes.
fn card_table(cards: &[Card], processes: &[ProcessFigures]) -> String {
    if cards.is_empty() {
        return String::new();
    }
    let first = processes.iter().map(|process| process.header.start_unix_ns).min().unwrap_or(0);
    let mut table = Table::new(2, "llrrrrr");
    table.head(&["card", "", "processes", "together", "at", "peak sum", "live"]);
    for card in cards.iter().take(CARDS) {
        let (uuid, name) = match (&card.uuid, &card.name) {
            (Some(uuid), Some(name)) => (short_uuid(uuid, cards).into(), shorten(name, 24)),
            _ => (String::new(), wording::described(None, card.users[0].1)),
        };
        let at = card.peak_unix_ns.saturating_sub(first);
        table.styled([
            (uuid, PLAIN),
            (name, PLAIN),
            (count(card.users.len() as u64), PLAIN),
            (gib(card.peak_bytes), BOLD),
            (format!("{:.3} s", at as f64 / 1e9), PLAIN),
            (gib(card.sum_of_peaks_bytes), PLAIN),
            (gib(card.live_bytes), PLAIN),
        ]);
    }
    let mut out = format!("\n{}", table.render());
    if let [.., lowest] = &cards[cards.len().min(CARDS)..] {
        let more = several((cards.len() - CARDS) as u64, "card");
        let text = format!("  and {more} more, the lowest with {}\n", gib(lowest.peak_bytes));
        out.push_str(&paint(DIM, &text));
    }
    out
}

/// The first characters of the UUID, which CUDA_VISIBLE_DEVICES accepts too. The whole UUID if another
/// card begins with the same characters.
fn short_uuid<'u>(uuid: &'u str, cards: &[Card]) -> &'u str {
    const SHORT: usize = 12;
    let Some(short) = uuid.get(..SHORT) else { return uuid };
    let others = cards.iter().filter_map(|card| card.uuid.as_deref());
    match others.filter(|other| other.starts_with(short)).count() {
        0 | 1 => short,
        _ => uuid,
    }
}

/// Adds a row per device that the process used, or one row if it used none.
fn add_process(table: &mut Table, process: &ProcessFigures, mark: &str, hosts: bool) {
    let header = &process.header;
    let rank = header.rank.map_or(String::new(), |rank| rank.to_string());
    let host = if hosts { header.host.clone() } else { String::new() };
    let end = process.end();
    let ended_style = match end {
        ProcessEnd::OutOfMemory => BAD,
        ProcessEnd::CutOff => WARN,
        ProcessEnd::Running | ProcessEnd::InOrder | ProcessEnd::Unknown => PLAIN,
    };
    // An imported trace without a pid shows its name.
    let pid = match header.pid {
        0 => shorten(&process.name(), 32),
        pid => pid.to_string(),
    };
    let mut names = Some((rank, pid, host, end.words().to_string(), mark.to_string()));
    let nothing = [(DeviceId::UNKNOWN, None)];
    let devices = process.devices.iter().map(|(id, device)| (*id, Some(device)));
    let devices: Vec<(DeviceId, Option<&DeviceFigures>)> = match process.devices.is_empty() {
        true => nothing.into(),
        false => devices.collect(),
    };
    for (id, device) in devices {
        let (rank, pid, host, ended, mark) = names.take().unwrap_or_default();
        let name = match device {
            None => "no GPU memory used".to_string(),
            Some(device) => {
                let name = shorten(&wording::described(device.info.as_ref(), id), 24);
                if id == DeviceId::UNKNOWN { name } else { format!("{} {name}", id.0) }
            }
        };
        let figure =
            |figure: fn(&DeviceFigures) -> u64| device.map_or(String::new(), |d| gib(figure(d)));
        let refused = device.map_or(0, DeviceFigures::refused);
        let refused_style = if refused > 0 { BAD } else { PLAIN };
        table.styled([
            (rank, BOLD),
            (pid, PLAIN),
            (host, PLAIN),
            (name, PLAIN),
            (figure(|device| device.peak_bytes), PLAIN),
            (figure(|device| device.live_bytes), PLAIN),
            (device.map_or(String::new(), |_| count(refused)), refused_style),
            (ended, ended_style),
            (mark, BAD),
        ]);
    }
}
