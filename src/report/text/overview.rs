//! The overview of a run of several processes: one line per process and device, outliers marked; the
//! sums per card; the largest holders.

use super::failed;
use super::holders::{ListingOptions, merged_table};
use super::layout::{
    BAD, BOLD, DIM, PLAIN, Table, WARN, WIDTH, line, paint, paint_if, section, wrapped,
};
use crate::analysis::ranks::{
    self, Card, Imbalance, ProcessEnd, ProcessFigures, cards, holders_of, imbalance, merge,
};
use crate::analysis::{GroupBy, Process, outliers};
use crate::report::{names, wording};
use crate::units::{count, seconds, several, shorten, size};
use vramtrace_format::{DeviceId, SummaryMoment};

/// If there are more processes than this, only outliers and the lowest and highest peaks are listed.
const LISTED: usize = 64;
/// How many of the lowest and how many of the highest peaks are listed then.
const ENDS: usize = 3;
/// Maximum number of cards that are listed.
const CARDS: usize = 8;

/// The whole overview: what is wrong, then all processes. `worst`, `given`: as in [`failed::head`]. `top`: the most holders
/// that are listed.
pub fn overview(
    processes: &[ProcessFigures],
    worst: Option<&Process>,
    given: &str,
    top: usize,
) -> String {
    let odd = outliers(processes);
    let longest = processes.iter().map(|process| process.last_ns).max().unwrap_or(0);
    let mut out = paint(BOLD, &format!("{} processes", count(processes.len() as u64)));
    let ends = failed::endings(processes);
    let ends = if ends.is_empty() { ends } else { format!(": {ends}") };
    out.push_str(&format!(", the longest {:.1} s{ends}\n", longest as f64 / 1e9));
    out.push_str(&failed::head(processes, &ranks::failed(processes), worst, given));
    out.push('\n');
    out.push_str(&table(processes, &odd));
    for (process, reason) in
        processes.iter().zip(&odd).filter(|(_, why)| why.is_some()).take(LISTED)
    {
        let why = format!("{}: {}", process.name(), reason.as_deref().unwrap_or_default());
        wrapped(&why, WIDTH - 2).iter().for_each(|text| out.push_str(&line(2, BAD, text)));
    }
    if let Some(spread) = imbalance(processes) {
        out.push_str(&format!("\n  {}\n", spread_words(&spread, processes)));
    }
    out.push_str(&card_table(&cards(processes), processes));
    out.extend(guests(processes).map(|text| format!("\n  {text}\n")));
    let named: Vec<_> = processes.iter().map(|rank| (&rank.header, rank.trace.as_path())).collect();
    let how = ListingOptions { top, ..ListingOptions::default() };
    for (moment, title) in
        [(SummaryMoment::Peak, "held at the peaks"), (SummaryMoment::End, "held at the end")]
    {
        let all = merge(&holders_of(processes, moment), GroupBy::Line);
        out.push_str(&section(merged_table(&all, &named, title, how)));
    }
    out
}

/// `ranks 1-3 have contexts of 1.52 GiB on GPU 0, the card of rank 0`. `None`: there are none.
pub fn guests(processes: &[ProcessFigures]) -> Option<String> {
    let of = ranks::guests(processes)?;
    let named = of.guests.iter().map(|index| &processes[*index]);
    let guests = names::several(named.map(|process| (&process.header, process.trace.as_path())));
    let (bytes, (host, id)) = (size(of.bytes), of.host);
    let (gpu, host) = (wording::gpu_name(id), processes[host].name());
    let has = if of.guests.len() == 1 { "has" } else { "have" };
    Some(format!("{guests} {has} contexts of {bytes} on {gpu}, the card of {host}"))
}

/// The table of processes. `odd`: per process why it is an outlier, or `None`.
fn table(processes: &[ProcessFigures], odd: &[Option<String>]) -> String {
    let ranked = processes.iter().any(|process| process.header.rank.is_some());
    let hosts = processes.iter().any(|p| p.header.host != processes[0].header.host);
    let pids = processes.iter().any(|process| process.header.pid != 0);
    let titles = [
        if ranked { "rank" } else { "" },
        if pids { "pid" } else { "" },
        if hosts { "host" } else { "" },
        "device",
        "peak",
        "live",
        "refused",
        "ended",
    ];
    let mut table = Table::titled(2, "Rrllrrrl", &titles);
    let shown = listed(processes, odd);
    for index in &shown {
        add_process(&mut table, &processes[*index], hosts);
    }
    let rest = match processes.len() - shown.len() {
        0 => return table.render(),
        1 => "1 process".to_string(),
        rest => format!("{} processes", count(rest as u64)),
    };
    let rest = format!("and {rest} more between them; `--rank N` shows one, `--all` all");
    table.render() + &line(2, DIM, &rest)
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

/// The lowest, highest and median peak, as a sentence.
fn spread_words(spread: &Imbalance, processes: &[ProcessFigures]) -> String {
    let one = |index: usize, bytes| {
        format!("{} ({})", paint(BOLD, &size(bytes)), processes[index].name())
    };
    format!(
        "peaks from {} to {}, median {};\n  the highest is {:.2} times the mean",
        one(spread.lowest, spread.lowest_peak_bytes),
        one(spread.highest, spread.highest_peak_bytes),
        size(spread.median_peak_bytes),
        spread.highest_over_mean
    )
}

/// One row per card: the sums over its processes.
fn card_table(cards: &[Card], processes: &[ProcessFigures]) -> String {
    let first = processes.iter().map(|process| process.header.start_unix_ns).min().unwrap_or(0);
    let titles = ["card", "", "procs", "together", "at", "peak sum", "live"];
    let mut table = Table::titled(2, "llrRrrr", &titles);
    for card in cards.iter().take(CARDS) {
        let (gpu, name) = match &card.name {
            Some(name) => (card_name(card, cards, processes), shorten(name, 24)),
            None => (String::new(), wording::described(None, card.users[0].1)),
        };
        let (users, at) = (count(card.users.len() as u64), card.peak_unix_ns.saturating_sub(first));
        let [peak, peaks, live] =
            [card.most_bytes, card.sum_of_peaks_bytes, card.live_bytes].map(size);
        table.row([gpu, name, users, peak, seconds(at), peaks, live]);
    }
    let mut out = section(table.render());
    if let [.., lowest] = &cards[cards.len().min(CARDS)..] {
        let more = several((cards.len() - CARDS) as u64, "card");
        let text = format!("and {more} more, the lowest with {}", size(lowest.most_bytes));
        out.push_str(&line(2, DIM, &text));
    }
    out
}

/// `GPU 0`, where no other card has this number in any process; `GPU 0 of rank 3`; of one that several share, its UUID.
fn card_name(card: &Card, cards: &[Card], processes: &[ProcessFigures]) -> String {
    let (first, id) = card.users[0];
    let same = cards.iter().flat_map(|card| &card.users).filter(|(_, number)| *number == id);
    match &card.uuid {
        _ if same.eq(&card.users) => wording::gpu_name(id),
        Some(uuid) if card.users.len() > 1 => uuid.get(..12).unwrap_or(uuid).to_string(),
        _ => format!("{} of {}", wording::gpu_name(id), processes[first].name()),
    }
}

/// Adds a row per device that the process used, or one row if it used none.
fn add_process(table: &mut Table, process: &ProcessFigures, hosts: bool) {
    let header = &process.header;
    let end = process.end();
    let style = match end {
        ProcessEnd::OutOfMemory => BAD,
        ProcessEnd::CutOff => WARN,
        ProcessEnd::Running | ProcessEnd::InOrder | ProcessEnd::Unknown => PLAIN,
    };
    // An imported trace without a pid shows its name.
    let pid = match header.pid {
        0 => shorten(&process.name(), 32),
        pid => pid.to_string(),
    };
    let mut names = Some([
        header.rank.map_or(String::new(), |rank| rank.to_string()),
        pid,
        if hosts { header.host.clone() } else { String::new() },
        paint(style, end.words()),
    ]);
    if process.devices.is_empty() {
        let [rank, pid, host, ended] = names.take().unwrap_or_default();
        let [peak, live, refused] = <[String; 3]>::default();
        table.row([rank, pid, host, "no GPU memory used".into(), peak, live, refused, ended]);
    }
    for (id, device) in &process.devices {
        let [rank, pid, host, ended] = names.take().unwrap_or_default();
        let name = shorten(&wording::described(device.info.as_ref(), *id), 24);
        let name = if *id == DeviceId::UNKNOWN { name } else { format!("{} {name}", id.0) };
        let refused = paint_if(device.refused(), BAD, count(device.refused()));
        let (peak, live) = (size(device.peak_bytes), size(device.live_bytes));
        table.row([rank, pid, host, name, peak, live, refused, ended]);
    }
}
