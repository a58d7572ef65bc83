//! The trace writer driven directly, and read back with the format's own reader.

mod bounded;
mod failures;
mod kill;
mod pages;
mod rolling;

use super::*;
use crate::config::Config;
use crate::model::history::Phases;
use crate::model::ledger::{Entry, Ledger};
use crate::model::sites::{SiteKey, Sites};
use crate::trace_writer::maintenance::{Cost, ProcessView};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use testkit::{in_child, redirect};
use vramtrace_format::{
    Alloc, ContextId, Counters, DeviceId, Kind, LiveDevice, PoolId, SiteId, Space, StackId,
    StateHolder, TailPlace, TraceReader,
};

/// A directory that goes with the test.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        Scratch::below(&std::env::temp_dir(), name)
    }

    pub fn below(parent: &Path, name: &str) -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("vramtrace-{name}-{}-{count}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The names in it, sorted.
    pub fn names(&self) -> Vec<String> {
        names(&self.0)
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let entries = std::fs::read_dir(&self.0).into_iter().flatten().flatten();
        let tails = entries.filter_map(|entry| tail_of(&entry.path()));
        tails.for_each(|tail| drop(std::fs::remove_file(tail)));
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A trace writer as the process keeps it, writing `trace.vtrace` in the directory.
fn recorder(
    directory: &Path,
    max: &str,
    adjust: impl FnOnce(&mut TraceWriter),
) -> &'static TraceWriter {
    let out = directory.join("trace.vtrace").into_os_string();
    let variables = [("VRAMTRACE_OUT".into(), out), ("VRAMTRACE_MAX".into(), max.into())];
    let mut recorder = TraceWriter::new(&Config::from(variables.into_iter()));
    adjust(&mut recorder);
    Box::leak(Box::new(recorder))
}

/// The places of a tail, or none.
const PLACES: [Option<TailPlace>; 3] = [Some(TailPlace::Beside), Some(TailPlace::Memory), None];

/// As on a file system on which the tail has this place.
fn tail_only(place: Option<TailPlace>) -> impl FnOnce(&mut TraceWriter) {
    move |recorder| {
        recorder.means.map = place == Some(TailPlace::Beside);
        recorder.means.memory = place == Some(TailPlace::Memory);
    }
}

/// A trace as a reader sees it: the windows of its tail at their places, where it has one.
fn bytes_of(trace: &Path) -> Vec<u8> {
    use vramtrace_format::Header;
    let mut bytes = std::fs::read(trace).unwrap();
    let Some(tail) = tail_of(trace) else { return bytes };
    let tag = TraceReader::new(&bytes).map_or(0, |reader| Header::file_tag(reader.header()));
    let tail = std::fs::read(tail).unwrap();
    testkit::put_tail(&mut bytes, &tail, tag);
    bytes
}

/// The path of its tail, beside it or in memory.
fn tail_of(trace: &Path) -> Option<PathBuf> {
    use vramtrace_format::{Header, memory, tail};
    let bytes = std::fs::read(trace).ok()?;
    let tag = Header::file_tag(TraceReader::new(&bytes).ok()?.header());
    let is_tail = |path: &PathBuf| path.to_string_lossy().ends_with(&tail::name_end(tag));
    let memory = PathBuf::from(memory::directory(testkit::user()));
    let directories = [trace.parent().unwrap(), &memory].map(std::fs::read_dir);
    directories.into_iter().flatten().flatten().map(|entry| entry.unwrap().path()).find(is_tail)
}

fn alloc(key: u64, site: SiteId) -> Event {
    Event::Alloc(Alloc {
        key,
        space: Space::Device,
        size: 4096,
        site,
        stack: StackId(0),
        requested: None,
    })
}

fn free(key: u64) -> Event {
    Event::Free { key, space: Space::Device, site: SiteId(0) }
}

/// The sites of each trace writer, by its address: none is freed.
static SITES: Mutex<BTreeMap<usize, &'static Sites>> = Mutex::new(BTreeMap::new());

fn site(recorder: &TraceWriter, stream: u64) -> SiteId {
    let address = std::ptr::from_ref(recorder) as usize;
    let sites = *SITES.lock().unwrap().entry(address).or_insert_with(|| Box::leak(Box::default()));
    let key = SiteKey {
        api: 3,
        kind: Some(Kind::Device),
        device: DeviceId(0),
        context: ContextId(1),
        pool: PoolId(0),
        stream,
    };
    sites.get(&key, |definition| recorder.try_define(definition))
}

/// What a child wrote on stderr, and how it ended.
fn stderr_of(run: impl FnOnce() -> bool) -> (Result<bool, i32>, String) {
    use std::io::Read;
    let (mut out, into) = std::io::pipe().unwrap();
    let result = in_child(|| {
        redirect(2, &into);
        run()
    });
    drop(into);
    let mut text = String::new();
    out.read_to_string(&mut text).unwrap();
    (result, text)
}

/// The ledger alone, without a driver.
#[derive(Default)]
struct Fake {
    ledger: Ledger,
    phases: Phases,
}

impl Fake {
    fn allocate(&self, recorder: &TraceWriter, key: u64, size: u64, site: SiteId) {
        let mut entry = Entry::new(Kind::Device, key, size, DeviceId(0));
        (entry.site, entry.time_ns) = (site, recorder.clock().now_ns());
        self.ledger.insert(recorder, &entry);
        recorder.record_entry(&entry);
        self.after_call(recorder);
    }

    fn free(&self, recorder: &TraceWriter, key: u64) {
        assert!(self.ledger.remove(recorder, Space::Device, key).is_some());
        recorder.record_driver_free(recorder.clock().now_ns(), key, Space::Device, SiteId(0));
        self.after_call(recorder);
    }

    /// As the hooks do, which have the process.
    fn after_call(&self, recorder: &TraceWriter) {
        if recorder.is_due() {
            recorder.maintain(self, false);
        }
    }
}

impl ProcessView for Fake {
    fn devices(&self) -> Vec<DeviceId> {
        self.ledger.devices().collect()
    }

    fn counters(&self, device: DeviceId) -> Counters {
        self.ledger.counters(device)
    }

    fn live_device(&self, counters: &Counters) -> LiveDevice {
        LiveDevice { live: counters.live, peak: counters.peak, ..LiveDevice::default() }
    }

    fn cost(&self) -> Cost {
        Cost { calls: 3, ns: 1000, one_of: 64, stacks: 0 }
    }

    fn can_sum_up(&self) -> bool {
        true
    }

    fn driver_holders(&self) -> Option<Vec<StateHolder>> {
        Some(Vec::new())
    }

    fn cache_ooms(&self) -> u32 {
        0
    }

    fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    fn phases(&self) -> &Phases {
        &self.phases
    }

    fn limits(&self, _: DeviceId, _: &mut dyn FnMut(&Event)) {}

    fn others(&self, _: bool, _: &mut dyn FnMut(&Event)) {}

    fn checkpoint_frame(&self, _: &mut dyn FnMut(u64, &Event)) {}
}
