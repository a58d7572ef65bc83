//! Records to events and definitions. Every function takes whatever bytes there are: what it
//! cannot understand is `None`, never a panic.

use crate::code;
use crate::{
    Alloc, BlockChange, CacheBytes, Cause, ContextId, Counters, Definition, DeviceId, Drift, Event,
    Join, Kind, Mark, NativeName, PoolId, PoolOrigin, PostMortem, PythonFrame, Refused, RefusedBy,
    Sample, SiteId, Space, StackFlags, StackId, StopReason, ThreadId, Told, Took,
};

/// An event from its kind, the small field of word 1 and the words after it. `None`: no event, or
/// one of a newer writer. Words beyond those known here are ignored: newer minors may add some.
#[inline]
pub fn event(kind: u8, small: u64, body: &[u64]) -> Option<Event> {
    match (kind, body) {
        (code::ALLOC, &[size, which, ..]) => Some(Event::Alloc(Alloc {
            key: small << 9,
            space: Space::Device,
            size,
            site: site(which),
            stack: stack(which),
        })),
        (code::FREE, _) => {
            Some(Event::Free { key: small << 9, space: Space::Device, site: SiteId(0) })
        }
        (code::BLOCK_ALLOC, &[size, which, ..]) => {
            Some(Event::Alloc(alloc(Space::Block, small << 9, size, which)))
        }
        (code::BLOCK_FREE, _) => {
            Some(Event::Free { key: small << 9, space: Space::Block, site: SiteId(0) })
        }
        _ => wide(kind, small, body),
    }
}

fn wide(kind: u8, small: u64, body: &[u64]) -> Option<Event> {
    Some(match (kind, body) {
        (code::ALLOC_WIDE, &[key, size, which, ..]) => {
            Event::Alloc(alloc(Space::from_u8(small as u8)?, key, size, which))
        }
        (code::FREE_WIDE, &[key, site, ..]) => {
            Event::Free { key, space: Space::from_u8(small as u8)?, site: SiteId(site as u32) }
        }
        (code::FREE_FAILED, &[key, which, ..]) => Event::FreeFailed {
            key,
            space: Space::from_u8(small as u8)?,
            site: site(which),
            result: which as i32,
        },
        (code::REFUSED, &[which, size, counted, limit, driver_free, ref rest @ ..]) => {
            Event::Refused(Refused {
                site: site(which),
                stack: stack(which),
                size,
                result: small as i32,
                by: refused_by((small >> 32) as u8)?,
                counted,
                limit,
                driver_free,
                cache: cache(rest),
            })
        }
        (code::MAP, &[address, size, offset, object, ..]) => {
            Event::Map { address, size, offset, object }
        }
        (code::UNMAP, &[address, size, ..]) => Event::Unmap { address, size },
        (code::POOL_STATE, &[reserved, used, ..]) => {
            Event::PoolState { pool: PoolId(small as u16), reserved, used }
        }
        (code::GRAPH_STATE, &[reserved, used, ..]) => {
            Event::GraphState { device: DeviceId(small as u8), reserved, used }
        }
        (code::CONTEXT_CREATED, &[which, ..]) => Event::ContextCreated {
            context: ContextId(small as u16),
            device: DeviceId((small >> 16) as u8),
            stack: stack(which),
        },
        (code::CONTEXT_DESTROYED, _) => {
            Event::ContextDestroyed { context: ContextId(small as u16) }
        }
        (code::SAMPLE, &[free, total, process, context_bytes, ..]) => {
            let has = small >> 8;
            Event::Sample(Sample {
                device: DeviceId(small as u8),
                driver_free: (has & 1 != 0).then_some(free),
                driver_total: (has & 2 != 0).then_some(total),
                process_bytes: (has & 4 != 0).then_some(process),
                context_bytes,
            })
        }
        (code::CAP, &[bytes, ..]) => Event::Cap {
            device: DeviceId(small as u8),
            bytes: (small >> 8 & 1 != 0).then_some(bytes),
        },
        (code::CAP_POLICY, &[soft, ..]) => Event::CapPolicy {
            device: DeviceId(small as u8),
            only_warns: small >> 8 & 1 != 0,
            soft: (small >> 9 & 1 != 0).then_some(soft),
        },
        (code::GROUP_CAP, &[bytes, ..]) => Event::GroupCap {
            device: DeviceId(small as u8),
            bytes: (small >> 8 & 1 != 0).then_some(bytes),
        },
        (code::SOFT_LIMIT, &[counted, limit, ..]) => Event::SoftLimit {
            device: DeviceId(small as u8),
            over: small >> 8 & 1 != 0,
            counted,
            limit,
        },
        (code::LIMIT, &[limit, value, grown, ..]) => {
            Event::Limit { context: ContextId(small as u16), limit: limit as u32, value, grown }
        }
        (code::TOOK, &[which, delta, what, ..]) => {
            Event::Took(took(DeviceId(small as u8), which, delta, what))
        }
        (code::MARK, _) => {
            Event::Mark { name: small as u32, mark: Mark::from_u8((small >> 32) as u8) }
        }
        (code::CACHE_STATE, &[allocated, reserved, ..]) => {
            Event::CacheState { device: DeviceId(small as u8), allocated, reserved }
        }
        (code::CACHE_OOM, &[which, size, allocated, reserved, ..]) => Event::CacheOom {
            device: DeviceId(small as u8),
            size,
            allocated,
            reserved,
            stack: stack(which),
        },
        (
            code::POST_MORTEM,
            &[which, size, counted, limit, driver_free, hole, absorbed, ref rest @ ..],
        ) => {
            let by = match (small >> 8) as u8 {
                0 => None,
                by => Some(refused_by(by - 1)?),
            };
            Event::PostMortem(PostMortem {
                device: DeviceId(small as u8),
                by,
                told: told((small >> 16) as u8)?,
                size,
                stack: stack(which),
                counted,
                limit,
                driver_free: (small >> 24 & 1 != 0).then_some(driver_free),
                cache: cache(rest),
                largest_hole: (small >> 25 & 1 != 0).then_some(hole),
                absorbed,
            })
        }
        (code::NEIGHBOUR, &[pid, bytes, ..]) => Event::Neighbour {
            device: DeviceId(small as u8),
            pid: pid as u32,
            bytes: (small >> 8 & 1 != 0).then_some(bytes),
        },
        (code::SHARED, &[address, which, ..]) => {
            Event::Shared { address, site: site(which), stack: stack(which) }
        }
        (code::BLOCK_CHANGE, &[address, bytes, ..]) => {
            let change = match small as u8 {
                1 => BlockChange::Requested(bytes),
                2 => BlockChange::Pending,
                3 => BlockChange::Reusable,
                _ => return None,
            };
            Event::BlockChange { address, change }
        }
        (code::COUNTERS, _) => Event::Counters(counters(small as u8, body)?),
        (code::STOPPED, _) => {
            Event::Stopped { reason: stop_reason((small >> 32) as u8)?, errno: small as i32 }
        }
        (code::ENDED, _) => Event::Ended,
        (code::ANCHOR, &[_, ..]) => Event::Anchor,
        (code::DRIFT, &[key, ..]) => Event::Drift { what: drift(small as u8)?, key },
        (code::PASSED_THROUGH, _) => Event::PassedThrough { api: small as u16 },
        _ => return checkpoint(kind, small, body),
    })
}

fn checkpoint(kind: u8, small: u64, body: &[u64]) -> Option<Event> {
    let id = small as u32;
    let device = DeviceId((small >> 32) as u8);
    Some(match (kind, body) {
        (code::CHECKPOINT_BEGIN, _) => Event::CheckpointBegin { id },
        (code::CHECKPOINT_ALLOC, &[time_ns, key, size, which, ..]) => {
            let space = Space::from_u8((small >> 32) as u8)?;
            Event::CheckpointAlloc { id, time_ns, alloc: alloc(space, key, size, which) }
        }
        (code::CHECKPOINT_MAP, &[address, size, offset, object, ..]) => {
            Event::CheckpointMap { id, address, size, offset, object }
        }
        (code::CHECKPOINT_POOL, &[pool, reserved, used, ..]) => {
            Event::CheckpointPool { id, pool: PoolId(pool as u16), reserved, used }
        }
        (code::CHECKPOINT_GRAPH, &[reserved, used, ..]) => {
            Event::CheckpointGraph { id, device, reserved, used }
        }
        (code::CHECKPOINT_CONTEXT, &[time_ns, which, ..]) => Event::CheckpointContext {
            id,
            context: ContextId((which >> 32) as u16),
            device,
            time_ns,
            stack: stack(which),
        },
        (code::CHECKPOINT_TOTALS, &[which, allocations, frees, bytes, ..]) => {
            Event::CheckpointTotals {
                id,
                site: site(which),
                stack: stack(which),
                allocations,
                frees,
                bytes,
            }
        }
        (code::CHECKPOINT_COUNTERS, _) => {
            Event::CheckpointCounters { id, counters: counters(device.0, body)? }
        }
        (code::CHECKPOINT_TOOK, &[which, delta, what, ..]) => {
            Event::CheckpointTook { id, took: took(device, which, delta, what) }
        }
        (code::CHECKPOINT_END, _) => Event::CheckpointEnd { id },
        _ => return None,
    })
}

fn site(which: u64) -> SiteId {
    SiteId((which >> 32) as u32)
}

fn stack(which: u64) -> StackId {
    StackId(which as u32)
}

fn alloc(space: Space, key: u64, size: u64, which: u64) -> Alloc {
    Alloc { key, space, size, site: site(which), stack: stack(which) }
}

fn counters(device: u8, body: &[u64]) -> Option<Counters> {
    let &[
        live,
        peak,
        peak_time_ns,
        live_requested,
        live_allocations,
        allocations,
        frees,
        refused_by_cap,
        refused_by_driver,
        counted,
        ref rest @ ..,
    ] = body
    else {
        return None;
    };
    Some(Counters {
        device,
        live,
        peak,
        peak_time_ns,
        live_requested,
        live_allocations,
        allocations,
        frees,
        refused_by_cap,
        refused_by_driver,
        counted,
        warned: rest.first().copied().unwrap_or(0),
    })
}

fn took(device: DeviceId, which: u64, delta: u64, what: u64) -> Took {
    Took {
        device,
        cause: Cause::from_u8((what >> 32) as u8),
        delta: delta as i64,
        site: site(which),
        stack: stack(which),
        name: what as u32,
    }
}

fn refused_by(value: u8) -> Option<RefusedBy> {
    use RefusedBy::*;
    [Driver, Cap, BadCap, Group, Warned].into_iter().find(|by| *by as u8 == value)
}

fn told(value: u8) -> Option<Told> {
    use Told::*;
    [Framework, Exit, Again].into_iter().find(|told| *told as u8 == value)
}

/// A framework's totals at the end of a record, where there are some.
fn cache(rest: &[u64]) -> Option<CacheBytes> {
    let &[allocated, reserved, ..] = rest else { return None };
    Some(CacheBytes { allocated, reserved })
}

fn stop_reason(value: u8) -> Option<StopReason> {
    use StopReason::*;
    [DiskFull, FileSizeLimit, DescriptorLost, MapFailed, WriteFailed, Panic, CannotPunch]
        .into_iter()
        .find(|reason| *reason as u8 == value)
}

fn drift(value: u8) -> Option<Drift> {
    use Drift::*;
    [StillLive, Underflow, UnknownFree].into_iter().find(|drift| *drift as u8 == value)
}

/// A definition from its kind, the small field and the words after it. `None`: unknown.
pub fn definition(kind: u8, small: u64, body: &[u64]) -> Option<Definition> {
    let device = DeviceId((small >> 16) as u8);
    Some(match (kind, body) {
        (code::DEFINE_API, text) => Definition::Api { id: small as u16, name: string(text)? },
        (code::DEFINE_THREAD, &[tid, ref text @ ..]) => {
            Definition::Thread { id: ThreadId(small as u16), tid: tid as u32, name: string(text)? }
        }
        (code::DEFINE_DEVICE, &[low, high, total_bytes, ref text @ ..]) => Definition::Device {
            id: DeviceId(small as u8),
            uuid: (u128::from(high) << 64 | u128::from(low)).to_le_bytes(),
            name: string(text)?,
            total_bytes,
            mig: small >> 8 & 1 != 0,
        },
        (code::DEFINE_CONTEXT, &[handle, ..]) => Definition::Context {
            id: ContextId(small as u16),
            device,
            handle,
            primary: small >> 24 & 1 != 0,
        },
        (code::DEFINE_POOL, &[handle, ..]) => Definition::Pool {
            id: PoolId(small as u16),
            device,
            handle,
            origin: pool_origin((small >> 24) as u8)?,
        },
        (code::DEFINE_SITE, &[place, stream, ..]) => Definition::Site {
            id: SiteId(small as u32),
            api: place as u16,
            kind: Kind::from_u8((place >> 48) as u8),
            device: DeviceId((small >> 32) as u8),
            context: ContextId((place >> 16) as u16),
            pool: PoolId((place >> 32) as u16),
            stream,
        },
        (code::DEFINE_TEXT, text) => Definition::Text { id: small as u32, text: string(text)? },
        (code::DEFINE_NOTE, text) => Definition::Note { text: string(text)? },
        (code::DEFINE_SETTING, all) => {
            let mut rest = Pieces(all);
            Definition::Setting { name: rest.string()?, value: rest.string()? }
        }
        (code::DEFINE_MODULE, &[base, start, end, ref rest @ ..]) => {
            let mut rest = Pieces(rest);
            let (path, build_id) = (rest.string()?, rest.bytes()?);
            Definition::Module { id: small as u32, path, build_id, base, start, end }
        }
        (code::DEFINE_CODE, &[first_line, ref rest @ ..]) => {
            let mut rest = Pieces(rest);
            Definition::Code {
                id: small as u32,
                minor: (small >> 32) as u8,
                name: rest.string()?,
                file: rest.string()?,
                first_line: first_line as i32,
                line_table: rest.bytes()?,
            }
        }
        (code::DEFINE_STACK, rest) => {
            let mut rest = Pieces(rest);
            let halves = |word: u64| ((word >> 32) as u32, word as u32);
            Definition::Stack {
                id: StackId(small as u32),
                flags: StackFlags((small >> 32) as u8),
                native: rest.words()?.to_vec(),
                python: rest.list(|word| {
                    let (code, last) = halves(word);
                    PythonFrame { code, last_instruction: last as i32 }
                })?,
                joins: rest.list(|word| {
                    let (python, native) = halves(word);
                    Join { python, native }
                })?,
            }
        }
        (code::DEFINE_NAMES, &[address, ref rest @ ..]) => {
            let (names, []) = Pieces(rest).words()?.as_chunks() else { return None };
            let names = names.iter().map(name).collect();
            Definition::Names { module: small as u32, address, names }
        }
        _ => return None,
    })
}

fn name(words: &[u64; 2]) -> NativeName {
    let [texts, line] = *words;
    NativeName { function: (texts >> 32) as u32, file: texts as u32, line: line as u32 }
}

fn pool_origin(value: u8) -> Option<PoolOrigin> {
    use PoolOrigin::*;
    [Default, Created, Imported].into_iter().find(|origin| *origin as u8 == value)
}

/// A text: its length in bytes, then its bytes.
fn string(words: &[u64]) -> Option<String> {
    Pieces(words).string()
}

/// Pieces of a definition one behind the other, each with its length in the first word.
struct Pieces<'a>(&'a [u64]);

impl<'a> Pieces<'a> {
    /// The words of a piece whose length counts `unit`ths of a word.
    fn take(&mut self, unit: usize) -> Option<(usize, &'a [u64])> {
        let (&len, rest) = self.0.split_first()?;
        let len = usize::try_from(len).ok()?;
        let (piece, rest) = rest.split_at_checked(len.div_ceil(unit))?;
        self.0 = rest;
        Some((len, piece))
    }

    fn words(&mut self) -> Option<&'a [u64]> {
        Some(self.take(1)?.1)
    }

    fn list<T>(&mut self, of: impl Fn(u64) -> T) -> Option<Vec<T>> {
        Some(self.words()?.iter().map(|word| of(*word)).collect())
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        let (len, words) = self.take(8)?;
        let mut bytes = Vec::with_capacity(len.next_multiple_of(8));
        words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.truncate(len);
        Some(bytes)
    }

    /// Bytes that are no UTF-8 become U+FFFD.
    fn string(&mut self) -> Option<String> {
        Some(match String::from_utf8(self.bytes()?) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        })
    }
}
