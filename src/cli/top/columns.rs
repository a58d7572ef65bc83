//! The columns of the list of processes, by the words of `vramtrace ps`, and which of them a width has room for.

use std::cmp::Ordering;

use vramtrace_reader::report::wording::age;
use vramtrace_reader::units::{count, gib};

use super::row::{Row, Tracing};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Column {
    Pid,
    User,
    Rank,
    Device,
    Util,
    Live,
    Peak,
    #[default]
    Counted,
    Cap,
    Refused,
    Rate,
    Full,
    History,
    Command,
}

use Column::*;

impl Column {
    /// In the order of a line, with their headings.
    pub const ALL: [(Column, &str); 14] = [
        (Pid, "pid"),
        (User, "user"),
        (Rank, "rank"),
        (Device, "device"),
        (Util, "util"),
        (Live, "live"),
        (Peak, "peak"),
        (Counted, "counted"),
        (Cap, "cap"),
        (Refused, "refused"),
        (Rate, "MiB/min"),
        (Full, "full in"),
        (History, "use over time"),
        (Command, "command"),
    ];

    /// By which the list can be sorted, in the order of the key `s`.
    const SORTED: [Column; 6] = [Counted, Live, Rate, Refused, Pid, Command];

    /// As room is found for them.
    const BY_RANK: [Column; 11] =
        [Cap, Rate, Full, Peak, Refused, Rank, User, Util, History, Live, Device];

    pub fn heading(self) -> &'static str {
        Column::ALL[self as usize].1
    }

    /// The next one of those by which the list can be sorted.
    pub fn next(self) -> Column {
        let at = Column::SORTED.iter().position(|column| *column == self).unwrap_or(0);
        Column::SORTED[(at + 1) % Column::SORTED.len()]
    }

    /// The order of two rows if this one sorts: figures from the largest on.
    pub fn compare(self, a: &Row, b: &Row) -> Ordering {
        let speed = |row: &Row| row.verdict.flatten().map_or(0.0, |growth| growth.bytes_per_s);
        let order = match self {
            Live => b.sum(|device| device.live).cmp(&a.sum(|device| device.live)),
            Rate => speed(b).total_cmp(&speed(a)),
            Refused => b.refused().cmp(&a.refused()),
            Pid => Ordering::Equal,
            Command => a.command.cmp(&b.command),
            _ => b.counted.cmp(&a.counted),
        };
        order.then(a.pid.cmp(&b.pid))
    }

    /// Whether its cells stand at the right.
    pub fn is_number(self) -> bool {
        !matches!(self, User | Device | History | Command)
    }

    pub fn width(self, rows: &[&Row]) -> u16 {
        let longest = |least: u16, most: u16| {
            let cells = rows.iter().map(|row| self.cell(row).chars().count() as u16);
            cells.max().unwrap_or(0).clamp(least, most)
        };
        match self {
            Rank => 4,
            Util => 5,
            Pid | Refused => 7,
            Rate => 8,
            Full => 9,
            Live | Peak | Counted => 10,
            Command => 13,
            History => 14,
            User => longest(4, 10),
            Device => longest(6, 24),
            Cap => longest(9, 16),
        }
    }

    /// The text of a cell; a history is drawn by the list.
    pub fn cell(self, row: &Row) -> String {
        let of_page = |bytes: Option<u64>| bytes.map_or("-".into(), gib);
        let verdict = row.verdict.flatten();
        match self {
            Rate | Full if row.verdict.is_none() && row.tracing == Tracing::Recorded => "?".into(),
            Pid => row.pid.to_string(),
            User => row.user.clone(),
            Rank => row.rank().map_or(String::new(), |rank| rank.to_string()),
            Device => row.devices.clone(),
            Util => row.utilization.map_or("-".into(), |percent| format!("{percent} %")),
            Counted => row.counted.map_or("?".into(), gib),
            Live => of_page(row.sum(|device| device.live)),
            Peak => of_page(row.sum(|device| device.peak)),
            Cap => cap(row),
            Refused if row.page.is_some() => count(row.refused()),
            Refused => "-".into(),
            Rate => verdict.map_or("-".into(), |growth| per_minute(growth.bytes_per_s)),
            Full => match verdict.map(|growth| growth.full_in_s) {
                None => "-".into(),
                Some(None) => "?".into(),
                Some(Some(seconds)) => age((seconds.clamp(0.0, 1e10) * 1e9) as u64),
            },
            History => String::new(),
            Command => row.full_name(),
        }
    }
}

fn cap(row: &Row) -> String {
    match (row.cap(), row.only_warns()) {
        // A narrow list cuts the words behind the command.
        (None, _) if row.page.is_none() => "untraced".into(),
        (None, _) => "-".into(),
        (Some(cap), false) => gib(cap),
        (Some(cap), true) => format!("{} warns", gib(cap)),
    }
}

/// MiB a minute.
fn per_minute(bytes_per_s: f64) -> String {
    match bytes_per_s * 60.0 / f64::from(1 << 20) {
        small if small < 99.95 => format!("{small:.1}"),
        large => count(large as u64),
    }
}

/// The columns that fit beside each other, with their widths; the last one has the rest.
pub fn that_fit(width: u16, rows: &[&Row]) -> Vec<(Column, u16)> {
    let mut chosen = vec![Pid, Counted, Command];
    let taken = |chosen: &[Column]| -> u16 {
        chosen.iter().map(|column| column.width(rows) + 1).sum::<u16>() + 1
    };
    for column in Column::BY_RANK {
        let useless = column == Rank && rows.iter().all(|row| row.rank().is_none());
        chosen.push(column);
        if useless || taken(&chosen) > width {
            chosen.pop();
        }
    }
    let rest = width.saturating_sub(taken(&chosen));
    let all = Column::ALL.into_iter().filter(|(column, _)| chosen.contains(column));
    // Of what is left the curve gets a third.
    let curve = if chosen.contains(&History) { rest / 3 } else { 0 };
    let wide = |column: Column| match column {
        History => column.width(rows) + curve,
        Command => column.width(rows) + rest - curve,
        _ => column.width(rows),
    };
    all.map(|(column, _)| (column, wide(column))).collect()
}
