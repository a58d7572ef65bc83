//! The recorder driven directly, and read back with the format's own reader.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory that goes with the test.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("vramtrace-{name}-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

use super::*;
use crate::config::Config;
use std::collections::HashMap;
use vramtrace_format::{Alloc, ContextId, DeviceId, Kind, PoolId, Space, StackId, TraceReader};

/// A recorder as the process keeps it, writing below the scratch directory.
pub fn recorder(
    scratch: &Scratch,
    max: &str,
    adjust: impl FnOnce(&mut Recorder),
) -> &'static Recorder {
    let out = scratch.path().join("%p.vtrace").into_os_string();
    let variables = [("VRAMTRACE_OUT".into(), out), ("VRAMTRACE_MAX".into(), max.into())];
    let mut recorder = Recorder::new(&Config::from(variables.into_iter()));
    adjust(&mut recorder);
    Box::leak(Box::new(recorder))
}

pub fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

fn alloc(key: u64, site: SiteId) -> Event {
    Event::Alloc(Alloc { key, space: Space::Device, size: 4096, site, stack: StackId(0) })
}

fn free(key: u64) -> Event {
    Event::Free { key, space: Space::Device, site: SiteId(0) }
}

fn site(recorder: &Recorder, stream: u64) -> SiteId {
    recorder.site(SiteKey {
        api: 3,
        kind: Some(Kind::Pool),
        device: DeviceId(0),
        context: ContextId(1),
        pool: PoolId(1),
        stream,
    })
}

/// 8 threads, each its own addresses, over many windows: everything is there, once, in order.
fn rolling(scratch: &str, adjust: impl FnOnce(&mut Recorder), pairs: u64) {
    let scratch = Scratch::new(scratch);
    let recorder = recorder(&scratch, "unlimited", adjust);
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            scope.spawn(move || {
                for i in 0..pairs {
                    let key = (thread << 32 | i) << 9;
                    recorder.record(&alloc(key, site(recorder, thread % 3 + 7)));
                    recorder.record(&free(key));
                }
            });
        }
    });
    let path = recorder.path().unwrap();
    let bytes = read(&path);
    let reader = TraceReader::new(&bytes).unwrap();
    let definitions = reader.definitions();
    let mut next: HashMap<u64, u64> = HashMap::new();
    let mut live = std::collections::HashSet::new();
    let mut events = reader.events();
    for stamped in events.by_ref() {
        match stamped.event {
            Event::Alloc(alloc) => {
                let (thread, i) = (alloc.key >> 41, alloc.key >> 9 & 0xFFFF_FFFF);
                let expected = next.entry(thread).or_default();
                assert_eq!(i, *expected, "thread {thread}");
                *expected += 1;
                assert!(live.insert(alloc.key));
                assert!(alloc.site.0 >= 1 && alloc.site.0 <= 3);
            }
            Event::Free { key, .. } => assert!(live.remove(&key)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(events.damage(), &[]);
    assert_eq!(next.len(), 8);
    assert!(next.values().all(|count| *count == pairs));
    assert!(live.is_empty());
    let (mut sites, mut threads) = (0, 0);
    for definition in definitions {
        match definition {
            Definition::Site { .. } => sites += 1,
            Definition::Thread { .. } => threads += 1,
            _ => {}
        }
    }
    assert_eq!((sites, threads), (3, 8));
}

#[test]
fn eight_threads_roll_through_mapped_windows() {
    rolling("mapped", |_| (), 60_000);
}

#[test]
fn eight_threads_roll_through_written_windows() {
    rolling("written", |recorder| recorder.write_only = true, 4_000);
}
