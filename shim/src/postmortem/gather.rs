//! The figures of a post-mortem, from the ledger, the cap and the caches: arithmetic on copies. Its
//! memory is bounded by what is live, and it holds one short lock at a time.

use super::burst::Refusal;
use super::holes::{Holes, Piece, holes};
use super::names::{Library, Names};
use super::words::{Findings, Holder, Limit};
use crate::ledger::Entry;
use crate::process::Process;
use std::borrow::Cow;
use std::collections::HashMap;
use vramtrace_format::physical::{Physical, physical};
use vramtrace_format::{
    CacheBytes, Cause, Definition, DeviceId, Header, Kind, PostMortem, RefusedBy, Space, StackId,
    Told,
};

/// Blocks more than these are not looked at one by one.
const BLOCKS_MOST: usize = 4 << 20;
/// Stacks of driver allocations whose library is looked for, largest first.
const LIBRARIES_MOST: usize = 64;
/// Stacks whose lines are named, but for the request's own.
const HOLDERS_MOST: usize = 4;
/// Libraries that are told apart.
const TITLES_MOST: usize = 4;

pub struct Asked {
    pub device: DeviceId,
    pub told: Told,
    pub refusal: Refusal,
    pub absorbed: u64,
    /// The framework's own totals, where it says some.
    pub cache: Option<CacheBytes>,
}

/// What is live on the device.
#[derive(Default)]
struct Live {
    blocks: Vec<(u64, u64)>,
    /// More than were looked at.
    too_many: bool,
    by_stack: HashMap<StackId, (u64, u64)>,
    others: Vec<Other>,
}

/// An allocation of the driver's.
struct Other {
    key: u64,
    space: Space,
    size: u64,
    physical: u64,
    stack: StackId,
    /// A framework's blocks lie in it.
    held: bool,
}

pub fn gather(p: &'static Process, header: &Header, asked: &Asked) -> Findings {
    let live = look(p, asked.device);
    let mut findings = None;
    let mut live = Some(live);
    p.recorder.look_up(|read| {
        if let Some(live) = live.take() {
            findings = Some(find(p, asked, live, Names::new(p, header, read)));
        }
    });
    let mut nothing = |_, _, _| -> Option<Definition> { None };
    let mut found = match (findings, live) {
        (Some(found), _) => found,
        (None, live) => {
            find(p, asked, live.unwrap_or_default(), Names::new(p, header, &mut nothing))
        }
    };
    found.rank = header.rank;
    found.pid = header.pid;
    found
}

fn look(p: &'static Process, device: DeviceId) -> Live {
    let mut live = Live::default();
    p.ledger.visit(device, |entry| match entry.space {
        Space::Block => {
            let (bytes, count) = live.by_stack.entry(entry.stack).or_default();
            (*bytes, *count) = (bytes.saturating_add(entry.size), *count + 1);
            match live.blocks.len() < BLOCKS_MOST {
                true => live.blocks.push((entry.key, entry.size)),
                false => live.too_many = true,
            }
        }
        Space::Host => {}
        _ if entry.kind == Kind::Imported => {}
        _ => live.others.push(other(entry)),
    });
    live
}

fn other(entry: &Entry) -> Other {
    let &Entry { key, space, size, stack, .. } = entry;
    let physical = match physical(entry.kind, size) {
        Physical::Own(bytes) => bytes,
        Physical::Shared(bytes) => bytes,
        Physical::Reserved => size,
        Physical::None => 0,
    };
    Other { key, space, size, physical, stack, held: false }
}

fn find(p: &'static Process, asked: &Asked, mut live: Live, mut names: Names) -> Findings {
    let libraries = libraries(&live, &mut names);
    let holes = find_holes(p, asked.device, &mut live, &libraries);
    let free_inside = match (holes, asked.cache) {
        (_, Some(cache)) => cache.reserved.saturating_sub(cache.allocated),
        (Some(holes), None) => holes.free,
        (None, None) => 0,
    };
    let parts = parts(p, asked, &live, &libraries);
    let asked_at = names.place(asked.refusal.stack);
    let holders = holders(&live, &mut names);
    let Refusal { by, size, whole, stack, counted, limit, driver_free, .. } = asked.refusal;
    Findings {
        event: PostMortem {
            device: asked.device,
            by,
            told: asked.told,
            size,
            stack,
            counted,
            limit,
            driver_free,
            cache: asked.cache,
            largest_hole: holes.map(|holes| holes.largest),
            absorbed: asked.absorbed,
        },
        whole: whole.max(size),
        rank: None,
        pid: 0,
        asked_at,
        limit: match by {
            Some(RefusedBy::Group) => {
                Limit::Group(p.cap.group_name().unwrap_or_default().to_string())
            }
            _ if p.cap.is_ordered(asked.device) => Limit::Ordered,
            _ => Limit::Cap,
        },
        parts,
        free_inside,
        holders,
        neighbours: Vec::new(),
        expandable: is_expandable(p),
        trace: None,
        quiet_s: None,
    }
}

/// By stack, of the allocations that the driver gave.
fn libraries(live: &Live, names: &mut Names) -> HashMap<StackId, Library> {
    let mut bytes: HashMap<StackId, u64> = HashMap::new();
    for other in &live.others {
        let sum = bytes.entry(other.stack).or_default();
        *sum = sum.saturating_add(other.physical);
    }
    let mut stacks: Vec<(StackId, u64)> = bytes.into_iter().collect();
    stacks.sort_unstable_by_key(|(stack, bytes)| (std::cmp::Reverse(*bytes), stack.0));
    stacks
        .into_iter()
        .take(LIBRARIES_MOST)
        .filter_map(|(stack, _)| Some((stack, names.library(stack)?)))
        .collect()
}

/// Marks what holds blocks. `None`: no blocks are followed.
fn find_holes(
    p: &'static Process,
    device: DeviceId,
    live: &mut Live,
    libraries: &HashMap<StackId, Library>,
) -> Option<Holes> {
    if live.blocks.is_empty() || live.too_many {
        return None;
    }
    let of_cache = |stack| libraries.get(&stack).is_some_and(Library::is_torch_cache);
    let mut pieces = Vec::new();
    let mut objects = HashMap::new();
    for (number, other) in live.others.iter().enumerate() {
        match other.space {
            Space::Device => pieces.push(Piece {
                range: other.key..other.key.saturating_add(other.size),
                mapped: false,
                empty: of_cache(other.stack),
                number,
            }),
            Space::Vmm => drop(objects.insert(other.key, number)),
            _ => {}
        }
    }
    if !objects.is_empty() {
        let vmm = p.vmm.lock();
        let mapped = vmm.mappings().filter_map(|mapping| {
            let number = *objects.get(&mapping.object)?;
            let range = mapping.address..mapping.address.saturating_add(mapping.size);
            let empty = of_cache(live.others[number].stack);
            Some(Piece { range, mapped: true, empty, number })
        });
        pieces.extend(mapped);
    }
    debug_assert!(pieces.iter().all(|piece| piece.number < live.others.len()), "{device:?}");
    let others = &mut live.others;
    let blocks = std::mem::take(&mut live.blocks);
    Some(holes(pieces, blocks, |number| others[number].held = true))
}

/// The sum that makes up the use.
fn parts(
    p: &'static Process,
    asked: &Asked,
    live: &Live,
    libraries: &HashMap<StackId, Library>,
) -> Vec<(Cow<'static, str>, u64)> {
    let device = asked.device;
    let mut left = p.ledger.live(device);
    let mut parts: Vec<(Cow<'static, str>, u64)> = Vec::new();
    if let Some(CacheBytes { allocated, reserved }) = asked.cache {
        parts.push(("tensors".into(), allocated));
        parts.push(("torch cache".into(), reserved.saturating_sub(allocated)));
        left = left.saturating_sub(reserved);
    }
    parts.extend(drivers_own(p, device));
    let mut titles: HashMap<&str, u64> = HashMap::new();
    for other in live.others.iter().filter(|other| !other.held) {
        if let Some(library) = libraries.get(&other.stack).filter(|library| !library.own) {
            let sum = titles.entry(&library.title).or_default();
            *sum = sum.saturating_add(other.physical);
        }
    }
    // What a cache keeps empty is its own already.
    if asked.cache.is_some() {
        titles.remove("PyTorch");
    }
    let mut titles: Vec<(&str, u64)> = titles.into_iter().collect();
    titles.sort_unstable_by_key(|(title, bytes)| (std::cmp::Reverse(*bytes), *title));
    for (title, bytes) in titles.into_iter().take(TITLES_MOST) {
        let bytes = bytes.min(left);
        left -= bytes;
        parts.push((title.to_string().into(), bytes));
    }
    let rest = if asked.cache.is_some() { "other allocations" } else { "allocations" };
    parts.push((rest.into(), left));
    parts.retain(|(_, bytes)| *bytes > 0);
    parts
}

/// What the driver took on its own: its contexts, and what NVML showed after which calls.
fn drivers_own(p: &'static Process, device: DeviceId) -> Vec<(Cow<'static, str>, u64)> {
    let mut took = p.observe.took(device);
    // Where NVML does not know us, the limits' growth is known all the same.
    let local = &mut took[Cause::LocalMemory as usize];
    *local = p.contexts.growth_on(device).max(*local);
    let context = p.contexts.bytes_on(device).saturating_add(took[Cause::Context as usize]);
    let mut parts = vec![("context".into(), context)];
    for (cause, name) in [
        (Cause::Modules, "modules"),
        (Cause::LocalMemory, "local memory"),
        (Cause::Heap, "kernels' heap"),
        (Cause::Streams, "streams"),
        (Cause::Graphs, "graphs"),
        (Cause::Sharing, "sharing"),
    ] {
        parts.push((name.into(), took[cause as usize]));
    }
    let known = parts.iter().fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    parts.push(("driver's other".into(), p.cap.outside(device).saturating_sub(known)));
    parts
}

/// The stacks that hold most: blocks in place of the segments that they lie in.
fn holders(live: &Live, names: &mut Names) -> Vec<Holder> {
    let mut all: HashMap<(StackId, bool), (u64, u64)> =
        live.by_stack.iter().map(|(stack, sums)| ((*stack, true), *sums)).collect();
    for other in live.others.iter().filter(|other| !other.held) {
        let (bytes, count) = all.entry((other.stack, false)).or_default();
        (*bytes, *count) = (bytes.saturating_add(other.physical), *count + 1);
    }
    let mut all: Vec<((StackId, bool), (u64, u64))> = all.into_iter().collect();
    all.sort_unstable_by_key(|((stack, _), (bytes, _))| (std::cmp::Reverse(*bytes), stack.0));
    let named =
        all.into_iter().take(HOLDERS_MOST).map(|((stack, of_framework), (bytes, count))| Holder {
            bytes,
            count,
            of_framework,
            place: names.place(stack),
        });
    let mut holders: Vec<Holder> = Vec::new();
    for holder in named {
        // Of one line there may be several stacks.
        match holders.iter_mut().find(|known| known.place == holder.place) {
            Some(known) => {
                known.bytes = known.bytes.saturating_add(holder.bytes);
                known.count += holder.count;
            }
            None => holders.push(holder),
        }
    }
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
    holders
}

fn is_expandable(p: &Process) -> bool {
    ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"]
        .into_iter()
        .filter_map(|name| p.config.setting(name))
        .any(|value| value.replace(' ', "").contains("expandable_segments:True"))
}
