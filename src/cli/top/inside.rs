//! What the memory of a process is for, and how full its segments are.

use std::collections::BTreeMap;

use ratatui::style::{Color, Style};
use ratatui::text::{Line as Text, Span};
use rustc_hash::FxHashSet;
use vramtrace_reader::analysis::roles::{LiveRoles, Role, RoleLearner};
use vramtrace_reader::analysis::{Level, each_piece};
use vramtrace_reader::replay::{BlockAt, Key, SegmentAt, State};
use vramtrace_reader::units::size;

const DIM: Style = Style::new().fg(Color::DarkGray);

/// Roles and segments of a process at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inside {
    /// Largest first.
    pub roles: Vec<(Role, u64)>,
    /// Of PyTorch's cache, those that keep most free memory first.
    pub segments: Vec<Segment>,
    pub more_segments: usize,
    /// Where there are no segments: all allocations, end to end in the order of their addresses.
    pub allocations: Vec<Block>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    pub address: u64,
    pub bytes: u64,
    /// Bytes that are unmapped now and may be mapped again.
    pub asleep: u64,
    pub blocks: Vec<Block>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Block {
    /// Offset in the segment; without segments, the sum of the allocations before it. Bytes.
    pub at: u64,
    pub bytes: u64,
    pub role: Role,
}

impl Segment {
    fn used(&self) -> u64 {
        self.blocks.iter().map(|block| block.bytes).fold(0, u64::saturating_add)
    }

    fn free(&self) -> u64 {
        self.bytes.saturating_sub(self.used())
    }
}

/// How many segments are kept.
const MOST: usize = 40;
/// Rows of a map of allocations, at most.
const ROWS: usize = 8;

impl Inside {
    /// Rows of the map.
    pub fn rows(&self) -> usize {
        match self.allocations.is_empty() {
            true => self.segments.len(),
            false => ROWS,
        }
    }
}

/// Roles and segments in a state. `learner` has followed the replay to it.
pub fn of(state: &State, learner: &RoleLearner) -> Inside {
    let now = LiveRoles::now(learner);
    let mut sums = [0u64; Role::ALL.len()];
    // In the order of keys and times.
    let mut named: BTreeMap<(Key, u64), (u64, Role)> = BTreeMap::new();
    each_piece(state, Level::of(state), &mut |piece| {
        let (role, bytes) = (now.of_piece(&piece), piece.held.bytes);
        sums[role.index()] = sums[role.index()].saturating_add(bytes);
        if let Some((key, live)) = piece.allocation.filter(|_| bytes > 0) {
            let of = named.entry((key, live.time_ns)).or_insert((0, role));
            of.0 = of.0.saturating_add(bytes);
        }
    });
    let mut roles: Vec<(Role, u64)> = Role::ALL.into_iter().zip(sums).collect();
    roles.retain(|(_, bytes)| *bytes > 0);
    roles.sort_by_key(|(role, bytes)| (std::cmp::Reverse(*bytes), *role));
    let segment = |segment: SegmentAt| {
        let block = |one: &BlockAt| Block {
            at: one.address - segment.start,
            bytes: one.bytes,
            role: now.of(Key::block(one.address), one.live),
        };
        let blocks = segment.blocks.iter().map(block).collect();
        let (address, bytes, asleep) = (segment.start, segment.bytes, segment.paused);
        Segment { address, bytes, asleep, blocks }
    };
    let mut segments: Vec<Segment> = state.segments().into_iter().map(segment).collect();
    segments.sort_by_key(|segment| (std::cmp::Reverse(segment.free()), segment.address));
    let more_segments = segments.len().saturating_sub(MOST);
    let mut allocations = Vec::new();
    if segments.is_empty() {
        let mut at = 0u64;
        for (bytes, role) in named.into_values() {
            allocations.push(Block { at, bytes, role });
            at = at.saturating_add(bytes);
        }
    }
    segments.truncate(MOST);
    Inside { roles, segments, more_segments, allocations }
}

pub fn colour(role: Role) -> Color {
    match role {
        Role::Weights | Role::PagedWeights => Color::Blue,
        Role::Gradients => Color::Red,
        Role::OptimizerState => Color::Green,
        Role::Copies => Color::LightGreen,
        Role::Activations => Color::Yellow,
        Role::KvCache => Color::Magenta,
        Role::Input => Color::LightMagenta,
        Role::Temporary => Color::LightYellow,
        Role::Workspace => Color::Cyan,
        Role::Communication => Color::LightBlue,
        Role::GraphMemory => Color::LightCyan,
        Role::Context | Role::FreeCache | Role::Unknown => Color::DarkGray,
    }
}

/// Each role with its bytes, in its colour; as many lines as they need.
pub fn roles(inside: &Inside, width: usize) -> Vec<Text<'static>> {
    let mut lines: Vec<Vec<Span>> = Vec::new();
    let mut room = 0;
    for (role, bytes) in &inside.roles {
        let words = format!("{role} {}   ", size(*bytes));
        let long = words.len() + 2;
        if long > room {
            lines.push(Vec::new());
            // Trailing spaces need no room.
            room = width + 3;
        }
        room = room.saturating_sub(long);
        if let Some(line) = lines.last_mut() {
            line.extend([Span::styled("█ ", Style::new().fg(colour(*role))), Span::raw(words)]);
        }
    }
    lines.into_iter().map(Text::from).collect()
}

/// The map with its heading, in as many rows: how full each part is, in the colour of what fills most of it.
pub fn map(inside: &Inside, rows: usize, width: usize) -> Vec<Text<'static>> {
    let rows = rows.saturating_sub(1);
    let (heading, segments) = match inside.allocations.last() {
        Some(last) => {
            let bytes = last.at.saturating_add(last.bytes);
            let row = bytes.div_ceil(rows.max(1) as u64).max(1);
            let words = format!("allocations by address; a row is {}", size(row));
            (words, rows_of(&inside.allocations, row))
        }
        None => {
            let more = inside.segments.len().saturating_sub(rows) + inside.more_segments;
            let words = match more {
                0 => "segments".to_string(),
                more => format!("segments with the most free bytes; {more} more"),
            };
            (words, inside.segments[..rows.min(inside.segments.len())].to_vec())
        }
    };
    let mut all = vec![Text::styled(heading, DIM)];
    let of_segments = inside.allocations.is_empty();
    all.extend(segments.iter().map(|segment| row(segment, width, of_segments)));
    all
}

/// Allocations, end to end, cut into rows of that many bytes.
fn rows_of(allocations: &[Block], row: u64) -> Vec<Segment> {
    let mut rows: Vec<Segment> = Vec::new();
    for block in allocations {
        let (mut at, end) = (block.at, block.at.saturating_add(block.bytes));
        while at < end {
            let which = at / row;
            let until = end.min((which + 1).saturating_mul(row));
            if rows.len() as u64 <= which {
                let address = which.saturating_mul(row);
                rows.push(Segment { address, bytes: row, asleep: 0, blocks: Vec::new() });
            }
            let piece = Block { at: at % row, bytes: until - at, role: block.role };
            rows.last_mut().into_iter().for_each(|of| of.blocks.push(piece));
            at = until;
        }
    }
    rows
}

/// Address and bytes of a segment, or where a row of allocations begins; what each cell holds; how much of
/// a segment is used.
fn row(segment: &Segment, width: usize, of_segments: bool) -> Text<'static> {
    let (label, taken) = match of_segments {
        true => {
            let address = format!("{:#x}", segment.address);
            (format!("{address:>14}  {:>10} ", size(segment.bytes)), 27 + 7)
        }
        false => (format!("{:>11} ", size(segment.address)), 12),
    };
    let cells = width.saturating_sub(taken).max(8);
    // Adjacent allocations need a visible boundary.
    let cell_of = |at: u64| u128::from(at) * cells as u128 / u128::from(segment.bytes.max(1));
    let ends = segment.blocks.iter().map(|block| cell_of(block.at.saturating_add(block.bytes)));
    let ends: FxHashSet<u128> = ends.filter(|_| !of_segments).collect();
    let mut parts = vec![Span::styled(label, DIM)];
    for ((used, role), cell) in in_cells(segment, cells).into_iter().zip(1u128..) {
        let sign = match used {
            0 => "·",
            1..250 => "░",
            250..750 => "▒",
            750..1000 => "▓",
            _ if ends.contains(&cell) && cell < cells as u128 => "▉",
            _ => "█",
        };
        let style = if used == 0 { DIM } else { Style::new().fg(colour(role)) };
        parts.push(Span::styled(sign, style));
    }
    if of_segments {
        let part = u128::from(segment.used()) * 100 / u128::from(segment.bytes.max(1));
        let words = if segment.asleep > 0 { " asleep".into() } else { format!(" {part:>3} %") };
        parts.push(Span::styled(words, DIM));
    }
    Text::from(parts)
}

/// Of each cell the bytes in blocks of 1,000, and what most of them are for.
fn in_cells(segment: &Segment, cells: usize) -> Vec<(u64, Role)> {
    let count = cells as u128;
    let bytes = u128::from(segment.bytes.max(1));
    let mut used = vec![0u128; cells];
    let mut largest = vec![(0u128, Role::Unknown); cells];
    for block in &segment.blocks {
        // In parts of 1 / (cells x bytes), so that nothing is rounded.
        let start = u128::from(block.at) * count;
        let end = start + u128::from(block.bytes) * count;
        for cell in start / bytes..=(end.saturating_sub(1) / bytes).min(count - 1) {
            let part = end.min((cell + 1) * bytes).saturating_sub(start.max(cell * bytes));
            let cell = cell as usize;
            used[cell] += part;
            if part > largest[cell].0 {
                largest[cell] = (part, block.role);
            }
        }
    }
    // A used part of any size is visible, and a free part too.
    let share = |part: u128| match (part * 1000 / bytes) as u64 {
        0 if part > 0 => 1,
        share => share,
    };
    used.into_iter().zip(largest).map(|(used, (_, role))| (share(used), role)).collect()
}
