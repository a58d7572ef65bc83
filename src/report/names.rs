//! A short name for a set of processes.

use std::path::Path;

use vramtrace_format::Header;

use crate::trace::process_name;
use crate::units::count;

/// Maximum number of names or ranges that are listed. A longer list is replaced by its count.
const LISTED: usize = 6;

/// `rank 3`, `ranks 0-3, 7`, `pids 12, 14`, `40 processes`. Ranks are sorted; other names are in
/// the order given.
pub fn several<'p>(processes: impl IntoIterator<Item = (&'p Header, &'p Path)>) -> String {
    let all: Vec<(&Header, &Path)> = processes.into_iter().collect();
    if let [(header, path)] = all[..] {
        return process_name(header, path);
    }
    let ranks: Option<Vec<u32>> = all.iter().map(|(header, _)| header.rank).collect();
    if let Some(ranges) = ranks.map(ranges).filter(|ranges| ranges.len() <= LISTED) {
        return format!("ranks {}", ranges.join(", "));
    }
    if all.len() > LISTED {
        return format!("{} processes", count(all.len() as u64));
    }
    if all.iter().all(|(header, _)| header.rank.is_none() && header.pid != 0) {
        let pids: Vec<String> = all.iter().map(|(header, _)| header.pid.to_string()).collect();
        return format!("pids {}", pids.join(", "));
    }
    let names: Vec<String> = all.iter().map(|(header, path)| process_name(header, path)).collect();
    names.join(", ")
}

/// Sorted ranks as text: `0-3` for three or more consecutive ranks, `4, 5` for two, `7` for one.
fn ranges(mut ranks: Vec<u32>) -> Vec<String> {
    ranks.sort_unstable();
    ranks.dedup();
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => ranges.push((rank, rank)),
        }
    }
    let range = |(first, last): (u32, u32)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}-{last}"),
    };
    ranges.into_iter().map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(processes: &[(Option<u32>, u32)]) -> String {
        let header = |(rank, pid): &(Option<u32>, u32)| Header {
            rank: *rank,
            pid: *pid,
            ..Header::default()
        };
        let headers: Vec<Header> = processes.iter().map(header).collect();
        several(headers.iter().map(|header| (header, Path::new("a/x.csv"))))
    }

    #[test]
    fn ranks_in_ranges_and_others_by_name() {
        let rank = |n| (Some(n), 100 + n);
        assert_eq!(named(&[rank(3)]), "rank 3");
        assert_eq!(named(&[0, 1, 2, 3, 7].map(rank)), "ranks 0-3, 7");
        assert_eq!(named(&[5, 4].map(rank)), "ranks 4, 5");
        assert_eq!(named(&(0..40).map(|n| rank(n * 2)).collect::<Vec<_>>()), "40 processes");
        assert_eq!(named(&[(None, 12), (None, 14)]), "pids 12, 14");
        assert_eq!(named(&[(None, 12), (None, 0)]), "pid 12, x.csv");
    }
}
