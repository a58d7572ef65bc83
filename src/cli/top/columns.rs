//! The columns of the list of processes, by the words of `vramtrace ps`, and which of them a width has room for.

use vramtrace_reader::report::wording::age;
use vramtrace_reader::units::{count, gib};

use super::rates::Rate;
use super::row::{Row, Tracing};
use super::state::Sort;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    Pid,
    User,
    Rank,
    Device,
    Util,
    Counted,
    Live,
    Peak,
    Cap,
    Refused,
    Rate,
    Full,
    History,
    Command,
}

impl Column {
    /// In the order of a line.
    pub const ALL: [Column; 14] = [
        Column::Pid,
        Column::User,
        Column::Rank,
        Column::Device,
        Column::Util,
        Column::Live,
        Column::Peak,
        Column::Counted,
        Column::Cap,
        Column::Refused,
        Column::Rate,
        Column::Full,
        Column::History,
        Column::Command,
    ];

    /// As room is found for them.
    const BY_RANK: [Column; 11] = [
        Column::Cap,
        Column::Rate,
        Column::Full,
        Column::Peak,
        Column::Refused,
        Column::Rank,
        Column::User,
        Column::Util,
        Column::History,
        Column::Live,
        Column::Device,
    ];

    pub fn heading(self) -> &'static str {
        match self {
            Column::Pid => "pid",
            Column::User => "user",
            Column::Rank => "rank",
            Column::Device => "device",
            Column::Util => "util",
            Column::Counted => "counted",
            Column::Live => "live",
            Column::Peak => "peak",
            Column::Cap => "cap",
            Column::Refused => "refused",
            Column::Rate => "MiB/min",
            Column::Full => "full in",
            Column::History => "use over time",
            Column::Command => "command",
        }
    }

    pub fn sorts(self) -> Option<Sort> {
        Some(match self {
            Column::Pid => Sort::Pid,
            Column::Counted => Sort::Counted,
            Column::Live => Sort::Live,
            Column::Refused => Sort::Refused,
            Column::Rate => Sort::Rate,
            Column::Command => Sort::Command,
            _ => return None,
        })
    }

    /// Whether its cells stand at the right.
    pub fn is_number(self) -> bool {
        !matches!(self, Column::User | Column::Device | Column::History | Column::Command)
    }

    pub fn width(self, rows: &[&Row]) -> u16 {
        let longest = |least: u16, most: u16| {
            let cells = rows.iter().map(|row| self.cell(row).chars().count() as u16);
            cells.max().unwrap_or(0).clamp(least, most)
        };
        match self {
            Column::Pid => 7,
            Column::User => longest(4, 10),
            Column::Rank => 4,
            Column::Device => longest(6, 24),
            Column::Util => 5,
            Column::Live | Column::Peak | Column::Counted => 10,
            Column::Cap => longest(9, 16),
            Column::Refused => 7,
            Column::Rate => 8,
            Column::Full => 9,
            Column::History => 14,
            Column::Command => 13,
        }
    }

    /// The text of a cell; a history is drawn by the list.
    pub fn cell(self, row: &Row) -> String {
        let page = |text: String| if row.has_page() { text } else { "-".into() };
        match self {
            Column::Pid => row.pid.to_string(),
            Column::User => row.user.clone(),
            Column::Rank => row.rank.map_or(String::new(), |rank| rank.to_string()),
            Column::Device => row.device_names(),
            Column::Util => row.utilization.map_or("-".into(), |percent| format!("{percent} %")),
            Column::Counted => row.counted.map_or("?".into(), gib),
            Column::Live => page(gib(row.live)),
            Column::Peak => page(gib(row.peak)),
            Column::Cap => cap(row),
            Column::Refused => page(count(row.refused)),
            Column::Rate => rate(row),
            Column::Full => full(row),
            Column::History => String::new(),
            Column::Command => row.full_name(),
        }
    }
}

fn cap(row: &Row) -> String {
    match (row.cap, row.only_warns) {
        // A narrow list cuts the words behind the command.
        (None, _) if !row.has_page() => "untraced".into(),
        (None, _) => "-".into(),
        (Some(cap), false) => gib(cap),
        (Some(cap), true) => format!("{} warns", gib(cap)),
    }
}

/// MiB a minute; `-`: no line has the verdict GROWING; `?`: not judged yet.
pub fn rate(row: &Row) -> String {
    match row.rate {
        None if row.tracing == Tracing::Recorded => "?".into(),
        None | Some(Rate::None) => "-".into(),
        Some(Rate::Growing { bytes_per_s, .. }) => match bytes_per_s * 60.0 / f64::from(1 << 20) {
            small if small < 99.95 => format!("{small:.1}"),
            large => count(large as u64),
        },
    }
}

pub fn full(row: &Row) -> String {
    match row.rate {
        None if row.tracing == Tracing::Recorded => "?".into(),
        Some(Rate::Growing { full_in_s: Some(seconds), .. }) => {
            age((seconds.clamp(0.0, 1e10) * 1e9) as u64)
        }
        Some(Rate::Growing { full_in_s: None, .. }) => "?".into(),
        None | Some(Rate::None) => "-".into(),
    }
}

/// The columns that fit beside each other, with their widths; the last one has the rest.
pub fn that_fit(width: u16, rows: &[&Row]) -> Vec<(Column, u16)> {
    let mut chosen = vec![Column::Pid, Column::Counted, Column::Command];
    let taken = |chosen: &[Column]| -> u16 {
        chosen.iter().map(|column| column.width(rows) + 1).sum::<u16>() + 1
    };
    for column in Column::BY_RANK {
        let useless = column == Column::Rank && rows.iter().all(|row| row.rank.is_none());
        chosen.push(column);
        if useless || taken(&chosen) > width {
            chosen.pop();
        }
    }
    let rest = width.saturating_sub(taken(&chosen));
    let all = Column::ALL.into_iter().filter(|column| chosen.contains(column));
    // Of what is left the curve gets a third.
    let curve = if chosen.contains(&Column::History) { rest / 3 } else { 0 };
    let wide = |column: Column| match column {
        Column::History => column.width(rows) + curve,
        Column::Command => column.width(rows) + rest - curve,
        _ => column.width(rows),
    };
    all.map(|column| (column, wide(column))).collect()
}
