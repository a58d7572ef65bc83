//! The figures of a post-mortem, from the ledger, the cap and the caches: arithmetic on copies. Its
//! memory is bounded by the number of live allocations, and it holds one lock at a time, briefly.
#![allow(clippy::disallowed_methods)] // texts of one message, given back with it

use super::burst::Refusal;
use super::held::{Held, Row, STACKS_MOST};
use super::kept::Kept;
use super::names::{Library, Names};
use super::words::{Findings, Holder, Limit};
use crate::oom::held;
use crate::oom::sources::Sources;
use crate::runtime::fallible_map::Map;
use vramtrace_format::oom::OtherLimit;
use vramtrace_format::torch_conf::{Bypass, CONF_VARIABLES};
use vramtrace_format::{Definition, DeviceId, Header, OomEvidence, PostMortem, RefusedBy, StackId};

/// Lines that are named, besides the request's own.
const HOLDERS_MOST: usize = 4;
/// Libraries that are listed separately.
const TITLES_MOST: usize = 4;

pub struct Request {
    pub device: DeviceId,
    pub evidence: OomEvidence,
    pub refusal: Refusal,
    pub absorbed: u64,
    /// Who holds the memory.
    pub holding: Holding,
}

pub enum Holding {
    /// The holders now.
    Now,
    /// The holders at the refusal.
    Then(Kept),
    /// The holders some time before the refusal.
    Before(Kept),
    Unknown,
}

pub type Libraries = Map<StackId, Library>;

pub fn gather(p: Sources, header: &Header, request: &Request) -> Findings {
    let mut findings = None;
    p.trace_writer.look_up(|read| {
        findings = Some(find(p, request, Names::new(p, header, read)));
    });
    let mut nothing = |_, _, _| -> Option<Definition> { None };
    let mut found =
        findings.unwrap_or_else(|| find(p, request, Names::new(p, header, &mut nothing)));
    found.rank = header.rank;
    found.pid = header.pid;
    found
}

fn find(p: Sources, request: &Request, mut names: Names) -> Findings {
    let Refusal { by, size, whole, stack, counted, limit, driver_free, sums, .. } = request.refusal;
    let (held, libraries) = held(p, request, &mut names);
    let Held { rows, holes, paused, fixed_segments } = held;
    // The holders of another moment would not add up to this sum.
    let named = match request.holding {
        Holding::Before(_) => Vec::new(),
        _ => largest_libraries(&rows, &libraries, sums.cache.is_some()),
    };
    let requested_at = names.place(stack);
    let holders = holders(&rows, &mut names);
    Findings {
        event: PostMortem {
            device: request.device,
            by,
            evidence: request.evidence,
            size,
            stack,
            counted,
            limit,
            driver_free,
            cache: sums.cache,
            largest_hole: holes.map(|holes| holes.largest),
            absorbed: request.absorbed,
        },
        whole: whole.max(size),
        rank: None,
        pid: 0,
        requested_at,
        limit: match by {
            Some(RefusedBy::Group) => {
                Limit::Group(p.cap.group_name().unwrap_or_default().to_string())
            }
            _ if p.cap.is_ordered(request.device) => Limit::Ordered,
            _ => Limit::Cap,
        },
        parts: sums.parts(named, paused),
        free_inside: sums.free_inside().or(holes.map(|holes| holes.free)).unwrap_or(0),
        holders,
        held_before_ns: match &request.holding {
            Holding::Before(kept) => Some(request.refusal.time_ns.saturating_sub(kept.time_ns)),
            _ => None,
        },
        neighbours: Vec::new(),
        could_expand: !fixed_segments && could_expand(p),
        other: OtherLimit::of(|name| p.config.setting(name)),
        trace: None,
        quiet_s: None,
    }
}

fn held(p: Sources, request: &Request, names: &mut Names) -> (Held, Libraries) {
    match &request.holding {
        Holding::Now => held_now(p, request.device, names, held::OF_BLOCKS_MOST),
        Holding::Then(kept) | Holding::Before(kept) => {
            let mut held = kept.held.clone();
            let of_driver = held.rows.iter().filter(|row| !row.of_framework);
            let libraries = libraries(of_driver.map(|row| row.stack).collect(), names);
            if request.refusal.sums.cache.is_some() {
                // Empty segments were not recognised when the rows were summed.
                held.rows.retain(|row| row.of_framework || !of_cache(&libraries, row.stack));
                held.holes = None;
            }
            (held, libraries)
        }
        Holding::Unknown => Default::default(),
    }
}

fn of_cache(libraries: &Libraries, stack: StackId) -> bool {
    libraries.get(&stack).is_some_and(Library::is_torch_cache)
}

/// The current holders, and the libraries that made the driver allocations. `most`: stacks of
/// frameworks' blocks that are kept.
pub fn held_now(p: Sources, device: DeviceId, names: &mut Names, most: usize) -> (Held, Libraries) {
    let live = held::look(p, device);
    let libraries = libraries(live.stacks(), names);
    (live.add_up(p, |stack| of_cache(&libraries, stack), most), libraries)
}

/// The library of each stack of driver allocations.
fn libraries(stacks: Vec<StackId>, names: &mut Names) -> Libraries {
    let named = |stack| Some((stack, names.library(stack, false)?));
    let mut libraries = Libraries::default();
    for (stack, library) in stacks.into_iter().take(STACKS_MOST).filter_map(named) {
        let _ = libraries.insert(stack, library);
    }
    libraries
}

/// The libraries that hold most memory, with their bytes, largest first.
fn largest_libraries(rows: &[Row], libraries: &Libraries, of_torch: bool) -> Vec<(String, u64)> {
    let mut titles: Map<&str, u64> = Map::default();
    for row in rows.iter().filter(|row| !row.of_framework) {
        if let Some(library) = libraries.get(&row.stack).filter(|library| !library.own)
            && let Ok(sum) = titles.get_or_insert(&library.title, 0)
        {
            *sum = sum.saturating_add(row.bytes);
        }
    }
    // Free memory of PyTorch's cache is listed as the cache's, not as a library's.
    if of_torch {
        titles.remove("PyTorch");
    }
    let mut titles: Vec<(String, u64)> =
        titles.iter().map(|(title, bytes)| (title.to_string(), *bytes)).collect();
    titles.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    titles.truncate(TITLES_MOST);
    titles
}

/// The lines that hold most.
fn holders(rows: &[Row], names: &mut Names) -> Vec<Holder> {
    let named = rows.iter().map(|row| Holder {
        bytes: row.bytes,
        count: row.count,
        of_framework: row.of_framework,
        place: names.place(row.stack),
    });
    let mut holders: Vec<Holder> = Vec::new();
    for holder in named {
        // Several stacks may end at one line: they are added up.
        match holders.iter_mut().find(|known| known.place == holder.place) {
            Some(known) => {
                known.bytes = known.bytes.saturating_add(holder.bytes);
                known.count += holder.count;
            }
            None => holders.push(holder),
        }
    }
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
    holders.truncate(HOLDERS_MOST);
    holders
}

/// Expandable segments are not set, and the allocator that they are for is in use.
fn could_expand(p: Sources) -> bool {
    let mut texts = CONF_VARIABLES.into_iter().filter_map(|name| p.config.setting(name));
    let is_expandable =
        texts.any(|value| value.replace(' ', "").contains("expandable_segments:True"));
    !is_expandable && Bypass::of(|name| p.config.setting(name)).is_none()
}
