//! Sites: entry point, kind, device, context, pool and stream of a call, each with a small id.
//!
//! A table of fixed size. Looking up takes no lock; adding takes one. An id is used only after its definition is in the file (or among
//! those that are written when the file opens).
//!
//! Device and kind are never lost: a reader has the totals from them. Once the table is full further sites share one for each
//! device and kind.

use crate::runtime::hash_table;
use crate::runtime::lock::Lock;
use crate::runtime::log;
use crate::runtime::zero_pages::{ZeroPages, Zeroed};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use vramtrace_format::{ContextId, Definition, DeviceId, Kind, PoolId, SiteId};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SiteKey {
    /// Number of the entry point in the shim's table.
    pub api: u16,
    pub kind: Option<Kind>,
    pub device: DeviceId,
    pub context: ContextId,
    pub pool: PoolId,
    /// The raw handle.
    pub stream: u64,
}

impl SiteKey {
    /// All but the stream in one word, never 0.
    fn place(&self) -> u64 {
        // Entry points count from 1 here.
        u64::from(self.api + 1)
            | u64::from(self.context.0) << 16
            | u64::from(self.pool.0) << 32
            | self.kind.map_or(0, |kind| kind as u64) << 48
            | u64::from(self.device.0) << 56
    }

    fn definition(&self, id: SiteId) -> Definition {
        let SiteKey { api, kind, device, context, pool, stream } = *self;
        Definition::Site { id, api, kind, device, context, pool, stream }
    }
}

/// Slots of the table.
const SLOTS: usize = 1 << 14;
/// Sites beyond this many share one for each device and kind.
const FULL: u32 = (SLOTS / 4 * 3) as u32;

/// The bit of the ids that are shared; device and kind are below.
const SHARED: u32 = 1 << 30;
/// The function of shared sites in the trace, which has no number.
const SEVERAL: u16 = 0x7fff;

/// Whether an id tells nothing but device and kind: an allocation's context must be told otherwise.
#[inline]
pub fn is_shared(site: SiteId) -> bool {
    site.0 & SHARED != 0
}

const FREE: u32 = 0;

struct Slot {
    place: AtomicU64,
    stream: AtomicU64,
    /// The id, stored last; or [`FREE`].
    id: AtomicU32,
}

// SAFETY: numbers; zeros are a free slot.
unsafe impl Zeroed for Slot {}

impl Slot {
    #[inline(always)]
    fn is(&self, place: u64, stream: u64) -> bool {
        self.place.load(Ordering::Relaxed) == place && self.stream.load(Ordering::Relaxed) == stream
    }
}

pub struct Sites {
    slots: ZeroPages<[Slot; SLOTS]>,
    /// Of the sites; 1 above [`FULL`] once one had no place. Its lock is held while a site is added and defined.
    count: Lock<u32>,
    /// By device, a bit for each kind whose shared site is defined.
    shared: [AtomicU16; 256],
}

impl Default for Sites {
    fn default() -> Sites {
        Sites {
            slots: ZeroPages::new(),
            count: Lock::new(0),
            shared: [const { AtomicU16::new(0) }; 256],
        }
    }
}

impl Sites {
    /// The id of a site. `define` writes its definition; it returns false once nothing is recorded any
    /// more: then the id is 0.
    #[inline]
    pub fn get(&self, key: &SiteKey, define: impl Fn(&Definition) -> bool) -> SiteId {
        let Some(slots) = self.slots.get() else { return self.shared(key, define) };
        let place = key.place();
        let mut index = home(place, key.stream);
        loop {
            let slot = &slots[index % SLOTS];
            let id = slot.id.load(Ordering::Acquire);
            if id == FREE {
                return self.add(key, slots, index, define);
            }
            if slot.is(place, key.stream) {
                return SiteId(id);
            }
            index += 1;
        }
    }

    #[cold]
    fn add(
        &self,
        key: &SiteKey,
        slots: &[Slot; SLOTS],
        from: usize,
        define: impl Fn(&Definition) -> bool,
    ) -> SiteId {
        // Nobody waits for a thread that was taken out of the recorder while it added a site.
        let Some(mut count) = self.count.lock_unless_left() else {
            return self.shared(key, define);
        };
        if *count >= FULL {
            let is_first = *count == FULL;
            *count = FULL + 1;
            drop(count);
            if is_first {
                let text = format!(
                    "more than {FULL} call sites (function, context, stream, pool): the trace has device and \
                     kind of further ones"
                );
                log::line(format_args!("{text}"));
                define(&Definition::Note { text });
            }
            return self.shared(key, define);
        }
        let place = key.place();
        for index in from.. {
            let slot = &slots[index % SLOTS];
            let id = slot.id.load(Ordering::Relaxed);
            if id == FREE {
                *count += 1;
                let id = SiteId(*count);
                slot.place.store(place, Ordering::Relaxed);
                slot.stream.store(key.stream, Ordering::Relaxed);
                let is_defined = define(&key.definition(id));
                slot.id.store(id.0, Ordering::Release);
                return if is_defined { id } else { SiteId(0) };
            }
            // Another thread may have added it meanwhile.
            if slot.is(place, key.stream) {
                return SiteId(id);
            }
        }
        SiteId(0)
    }

    /// The site of a device and kind that stands for all that have no id of their own.
    #[cold]
    fn shared(&self, key: &SiteKey, define: impl Fn(&Definition) -> bool) -> SiteId {
        let SiteKey { device, kind, .. } = *key;
        let number = kind.map_or(0, |kind| kind as u32);
        let id = SiteId(SHARED | u32::from(device.0) << 8 | number);
        let (defined, bit) = (&self.shared[usize::from(device.0)], 1 << number);
        if defined.load(Ordering::Acquire) & bit == 0 {
            // Threads that come here at once define it each.
            let (context, pool) = (ContextId(0), PoolId(0));
            let site =
                Definition::Site { id, api: SEVERAL, kind, device, context, pool, stream: 0 };
            let api = Definition::Api { id: SEVERAL, name: "several functions".into() };
            if !define(&api) || !define(&site) {
                return SiteId(0);
            }
            defined.fetch_or(bit, Ordering::Release);
        }
        id
    }
}

fn home(place: u64, stream: u64) -> usize {
    (hash_table::spread(place ^ stream.rotate_left(32)) >> 40) as usize % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::Mutex;

    fn key(api: u16, stream: u64) -> SiteKey {
        SiteKey {
            api,
            kind: Some(Kind::Pool),
            device: DeviceId(0),
            context: ContextId(1),
            pool: PoolId(2),
            stream,
        }
    }

    #[test]
    fn every_thread_gets_the_same_number_after_its_definition() {
        let sites = Sites::default();
        let defined = Mutex::new(HashSet::new());
        let numbers: Vec<Vec<u32>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        (0..1000)
                            .map(|stream| {
                                let id = sites.get(&key(7, stream), |new| {
                                    let Definition::Site { id, .. } = new else { panic!() };
                                    assert!(defined.lock().unwrap().insert(id.0));
                                    true
                                });
                                assert!(defined.lock().unwrap().contains(&id.0));
                                id.0
                            })
                            .collect()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(numbers.iter().all(|row| row == &numbers[0]));
        assert_eq!(numbers[0].iter().collect::<HashSet<_>>().len(), 1000);
    }

    /// Asks for a site, and gives its definition if it is new.
    fn ask(
        sites: &Sites,
        key: &SiteKey,
        notes: &Mutex<Vec<String>>,
    ) -> (SiteId, Option<Definition>) {
        let defined = Mutex::new(None);
        let id = sites.get(key, |new| {
            match new {
                Definition::Note { text } => notes.lock().unwrap().push(text.clone()),
                Definition::Site { .. } => *defined.lock().unwrap() = Some(new.clone()),
                _ => {}
            }
            true
        });
        (id, defined.into_inner().unwrap())
    }

    #[test]
    fn device_and_kind_are_never_lost() {
        let (sites, notes) = (Sites::default(), Mutex::default());
        let mut shared = HashSet::new();
        for number in 0..20_000u32 {
            let key = SiteKey {
                kind: Some(Kind::ALL[number as usize % Kind::ALL.len()]),
                device: DeviceId(if number % 5 == 4 { 255 } else { (number % 5) as u8 }),
                context: ContextId(number as u16),
                ..key(7, 0)
            };
            let (id, defined) = ask(&sites, &key, &notes);
            assert_ne!(id.0, 0);
            if is_shared(id) && shared.insert(id.0) {
                let Some(Definition::Site { kind, device, context, .. }) = defined else {
                    panic!()
                };
                assert_eq!((kind, device, context), (key.kind, key.device, ContextId(0)));
            }
        }
        assert_eq!(shared.len(), 5 * Kind::ALL.len());
        assert_eq!(notes.into_inner().unwrap().len(), 1);
        assert_eq!(sites.get(&SiteKey { kind: None, ..key(9, 9) }, |_| false).0, 0);
    }

    #[test]
    fn nobody_waits_for_a_thread_that_was_taken_out() {
        let sites = Sites::default();
        let known = sites.get(&key(7, 0), |_| true);
        // As `setcontext` out of a handler: nothing is dropped on the way.
        std::mem::forget(sites.count.lock());
        assert!(is_shared(sites.get(&key(8, 0), |_| true)));
        assert_eq!(sites.get(&key(7, 0), |_| panic!()), known);
    }

    #[test]
    fn without_pages_for_the_table_sites_are_shared() {
        let sites = Sites { slots: ZeroPages::NONE, ..Sites::default() };
        assert!(is_shared(sites.get(&key(7, 0), |_| true)));
    }
}
