//! What the memory of a process is for, and how full its segments are.

use ratatui::style::{Color, Style};
use ratatui::text::{Line as Text, Span};
use rustc_hash::FxHashMap;
use vramtrace_format::Space;
use vramtrace_reader::analysis::roles::{Role, RoleFinder};
use vramtrace_reader::analysis::{Level, What, each_piece};
use vramtrace_reader::replay::{Key, State, Until};
use vramtrace_reader::symbols::Symbols;
use vramtrace_reader::trace::{Definitions, Trace};
use vramtrace_reader::units::size;

/// At the end of what is written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inside {
    /// Largest first.
    pub roles: Vec<(Role, u64)>,
    /// Of PyTorch's cache, those that keep most free memory first.
    pub segments: Vec<Segment>,
    pub more_segments: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    pub address: u64,
    pub bytes: u64,
    /// Bytes without memory: unmapped, and may come back.
    pub asleep: u64,
    pub blocks: Vec<Block>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Block {
    /// From the segment's begin on.
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

/// Segments that are kept.
const MOST: usize = 40;

/// An allocation: its key, and when it was made.
type Name = (Key, u64);

/// What is live, with the names of allocations in place of their roles.
#[derive(Default)]
struct Seen {
    pieces: Vec<(Option<Name>, What, u64)>,
    segments: Vec<(Segment, Vec<Name>)>,
}

impl Seen {
    fn of(state: &State) -> Seen {
        let mut seen = Seen::default();
        each_piece(state, Level::of(state), &mut |piece| {
            let name = piece.allocation.map(|(key, live)| (key, live.time_ns));
            seen.pieces.push((name, piece.what, piece.held.bytes));
        });
        for segment in state.segments() {
            let names = segment.blocks.iter().map(|block| (key(block.address), block.live.time_ns));
            let names = names.collect();
            let block = |at, bytes| Block { at, bytes, role: Role::Unknown };
            let blocks = segment.blocks.iter();
            let blocks = blocks.map(|one| block(one.address - segment.start, one.bytes)).collect();
            let (address, bytes, asleep) = (segment.start, segment.bytes, segment.paused);
            seen.segments.push((Segment { address, bytes, asleep, blocks }, names));
        }
        seen
    }
}

fn key(block: u64) -> Key {
    Key { space: Space::Block, number: block }
}

pub fn read(trace: &Trace, definitions: &Definitions) -> Inside {
    let symbols = Symbols::of_all(definitions, trace.header());
    let finder = RoleFinder::new(trace, definitions, &symbols);
    let mut seen = Seen::default();
    let mut live: FxHashMap<Name, Role> = FxHashMap::default();
    let mut show = |_: usize, state: &State| seen = Seen::of(state);
    finder.visit(trace, definitions, &[Until::End], &mut show, &mut |of| {
        if of.freed.is_none() {
            live.insert((of.key, of.live.time_ns), of.role);
        }
    });
    let role = |name: &Name| live.get(name).copied().unwrap_or(Role::Unknown);
    let mut sums = [0u64; Role::ALL.len()];
    for (name, what, bytes) in &seen.pieces {
        let role = match what {
            What::Free => Role::FreeCache,
            _ => name.as_ref().map_or(Role::Unknown, role),
        };
        sums[role.index()] = sums[role.index()].saturating_add(*bytes);
    }
    let mut roles: Vec<(Role, u64)> = Role::ALL.into_iter().zip(sums).collect();
    roles.retain(|(_, bytes)| *bytes > 0);
    roles.sort_by_key(|(role, bytes)| (std::cmp::Reverse(*bytes), *role));
    let mut segments: Vec<Segment> = Vec::new();
    for (mut segment, names) in seen.segments {
        for (block, name) in segment.blocks.iter_mut().zip(&names) {
            block.role = role(name);
        }
        segments.push(segment);
    }
    segments.sort_by_key(|segment| (std::cmp::Reverse(segment.free()), segment.address));
    let more_segments = segments.len().saturating_sub(MOST);
    segments.truncate(MOST);
    Inside { roles, segments, more_segments }
}

pub fn colour(role: Role) -> Color {
    match role {
        Role::Weights => Color::Blue,
        Role::Gradients => Color::Red,
        Role::OptimizerState => Color::Green,
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
            // The spaces at the end need no room.
            room = width + 3;
        }
        room = room.saturating_sub(long);
        if let Some(line) = lines.last_mut() {
            line.extend([Span::styled("█ ", Style::new().fg(colour(*role))), Span::raw(words)]);
        }
    }
    lines.into_iter().map(Text::from).collect()
}

/// Segments as rows of cells: how full each part is, in the colour of what fills most of it.
pub fn map(inside: &Inside, rows: usize, width: usize) -> Vec<Text<'static>> {
    let dim = Style::new().fg(Color::DarkGray);
    let shown = &inside.segments[..rows.min(inside.segments.len())];
    // Address, bytes and the share in blocks beside it.
    let cells = width.saturating_sub(27 + 7).clamp(8, 160);
    let row = |segment: &Segment| {
        let label =
            format!("{:>14}  {:>10} ", format!("{:#x}", segment.address), size(segment.bytes));
        let mut parts = vec![Span::styled(label, dim)];
        for (used, role) in in_cells(segment, cells) {
            let sign = match used {
                0 => "·",
                1..250 => "░",
                250..750 => "▒",
                750..1000 => "▓",
                _ => "█",
            };
            let style = if used == 0 { dim } else { Style::new().fg(colour(role)) };
            parts.push(Span::styled(sign, style));
        }
        let part = u128::from(segment.used()) * 100 / u128::from(segment.bytes.max(1));
        let words = if segment.asleep > 0 { " asleep".into() } else { format!(" {part:>3} %") };
        parts.push(Span::styled(words, dim));
        Text::from(parts)
    };
    shown.iter().map(row).collect()
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
    // A sliver is shown, and a hole is never hidden.
    let share = |part: u128| match (part * 1000 / bytes) as u64 {
        0 if part > 0 => 1,
        share => share,
    };
    used.into_iter().zip(largest).map(|(used, (_, role))| (share(used), role)).collect()
}
