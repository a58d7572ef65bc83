//! Writes the fuzzer's seeds: `cargo run -p vramtrace-format --example corpus -- fuzz/corpus`.
//!
//! `reader/` holds small traces, whole and damaged; `records/` holds the insides of windows. They
//! are cut behind the last record, so that the fuzzer does not chew on empty windows. `commands/` holds
//! the number of a command line, the words of definitions, and the insides of both kinds of windows;
//! `directory/` the steps that make a directory; `pages/` a live page, the page of a group, and the name of a page.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use vramtrace_format::group::{GROUP_WORDS, GroupPage};
use vramtrace_format::live::LIVE_WORDS;
use vramtrace_format::member::Member;
use vramtrace_format::proc::Life;
use vramtrace_format::*;

/// A window of one slot with what `fill` puts in it, cut behind that.
fn window(slot: u32, kind: WindowKind, file: u64, fill: impl Fn(&WindowWriter)) -> Vec<u8> {
    let header = WindowHeader { kind, slots: 1, sequence: 0, slot, base_time_ns: 0, file };
    let words: Vec<_> = (0..SLOT / 8).map(|_| AtomicU64::new(0)).collect();
    let writer = WindowWriter::begin(&words, header);
    fill(&writer);
    let bytes = words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
    bytes.take(writer.published()).collect()
}

fn events() -> Vec<Event> {
    let alloc = Alloc {
        key: 0x7F00_0000_0000,
        space: Space::Device,
        size: 4096,
        site: SiteId(1),
        stack: StackId(0),
        requested: None,
    };
    let counters = Counters { live: 1, peak: 2, allocations: 3, ..Counters::default() };
    let (id, device, context, pool) = (1, DeviceId(0), ContextId(1), PoolId(1));
    let (site, stack) = (SiteId(1), StackId(0));
    let refused = Refused {
        site,
        stack,
        size: 1 << 40,
        result: 2,
        by: RefusedBy::Cap,
        counted: 10,
        limit: 20,
        driver_free: 0,
        cache: None,
    };
    let cache = Some(CacheBytes { allocated: 1024, reserved: 2 << 20 });
    let post_mortem = PostMortem {
        device,
        by: Some(RefusedBy::Group),
        evidence: OomEvidence::FrameworkGaveUp,
        size: 1 << 30,
        stack,
        counted: 10,
        limit: 20,
        driver_free: Some(1 << 36),
        cache,
        largest_hole: Some(1 << 20),
        absorbed: 3,
    };
    let sample = Sample {
        device,
        driver_free: Some(1),
        driver_total: Some(2),
        process_bytes: None,
        context_bytes: 3,
    };
    let took = Took { device, cause: Cause::Modules, delta: 2 << 20, site, stack, name: 1 };
    let holder = SummaryHolder {
        device,
        moment: SummaryMoment::Peak,
        of_framework: false,
        stack,
        bytes: 2,
        count: 1,
    };
    let phase = HistoryPhase {
        device,
        depth: 2,
        first: 1,
        second: 2,
        third: 0,
        fourth: 0,
        peak: 2 << 20,
        at_ns: 640,
        open_ns: 6_400,
    };
    let driver = SummaryDriver {
        device,
        moment: SummaryMoment::End,
        cause: Cause::Graphs,
        stack,
        bytes: 2,
        count: 1,
    };
    vec![
        Event::ContextCreated { context, device, stack },
        Event::Cap { device, bytes: Some(1 << 33) },
        Event::Alloc(alloc),
        Event::Free { key: alloc.key, space: Space::Device, site: SiteId(0) },
        Event::FreeFailed { key: alloc.key, space: Space::Device, site, result: 1 },
        Event::Alloc(Alloc { key: 77, space: Space::Vmm, ..alloc }),
        Event::Free { key: 77, space: Space::Vmm, site },
        Event::Map { address: 1 << 40, size: 2 << 20, offset: 0, object: 77, stack },
        Event::Unmap { address: 1 << 40, size: 2 << 20, stack },
        Event::AddressReserve { address: 1 << 40, size: 2 << 20, site, stack, restored: false },
        Event::AddressFree { address: 1 << 40, size: 2 << 20 },
        Event::Refused(refused),
        Event::Refused(Refused { cache, ..refused }),
        Event::PostMortem(post_mortem),
        Event::PostMortem(PostMortem { by: None, largest_hole: None, cache: None, ..post_mortem }),
        Event::Neighbour { device, pid: 4711, bytes: Some(1 << 30) },
        Event::Neighbour { device, pid: 4712, bytes: None },
        Event::PoolState { pool, reserved: 32 << 20, used: 1 },
        Event::GraphState { device, reserved: 32 << 20, used: 1 },
        Event::Sample(sample),
        Event::Limit { context, limit: 0, value: 16384, grown: 5 },
        Event::Took(took),
        Event::GraphMade { exec: 1 << 40, nodes: 2000, site, stack },
        Event::GraphUsed { exec: 1 << 40, again: true },
        Event::GraphEnded { exec: 1 << 40 },
        Event::Recording { on: false, by: SwitchedBy::Order },
        Event::Took(Took { delta: -5, cause: Cause::LocalMemory, ..took }),
        Event::Mark { name: 1, mark: Mark::Push },
        Event::Counters(counters),
        Event::Alloc(Alloc { space: Space::Block, ..alloc }),
        Event::Alloc(Alloc { space: Space::Block, requested: Some(1000), ..alloc }),
        Event::BlockChange { address: alloc.key, change: BlockChange::Requested(1000) },
        Event::CacheState { device, allocated: 1024, reserved: 2 << 20 },
        Event::CacheOom { device, size: 1 << 40, allocated: 1024, reserved: 2 << 20, stack },
        Event::Shared { address: alloc.key, site, stack },
        Event::Free { key: alloc.key, space: Space::Block, site: SiteId(0) },
        Event::BlockChange { address: alloc.key, change: BlockChange::Pending },
        Event::BlockChange { address: alloc.key, change: BlockChange::Reusable },
        Event::CheckpointBegin { id },
        Event::CheckpointAlloc { id, time_ns: 64, alloc },
        Event::CheckpointMap {
            id,
            address: 1 << 40,
            size: 2 << 20,
            offset: 0,
            object: 77,
            owner: stack,
            stack,
        },
        Event::CheckpointReserve {
            id,
            asleep: true,
            device,
            address: 1 << 40,
            size: 2 << 20,
            site,
            stack,
        },
        Event::CheckpointPool { id, pool, reserved: 1, used: 1 },
        Event::CheckpointGraph { id, device, reserved: 1, used: 1 },
        Event::CheckpointContext { id, context, device, time_ns: 128, stack },
        Event::CheckpointTotals { id, site, stack, allocations: 4, frees: 3, bytes: 9 },
        Event::CheckpointCounters { id, counters },
        Event::CheckpointTook { id, took },
        Event::CheckpointEnd { id },
        Event::Anchor,
        Event::Drift { what: Drift::StillLive, key: 1 },
        Event::PassedThrough { api: 7 },
        Event::ContextDestroyed { context },
        Event::Stopped { reason: StopReason::DiskFull, errno: 28 },
        Event::SampledAlloc { rate: 512 << 10, alloc },
        Event::CheckpointSampled { id, time_ns: 64, rate: 512 << 10, alloc },
        Event::ErrorAfterRefusal { api: 1, result: -1 },
        Event::ExitStatus { status: 1 },
        Event::HistoryBegin { id, every_ns: 1_000_000_000 },
        Event::HistoryBin(HistoryBin { tier: 1, samples: 60, from_ns: 0, until_ns: 6_400 }),
        Event::HistoryDevice(HistoryDevice {
            device,
            peak: 2 << 20,
            refused_by_cap: 0,
            refused_by_driver: 0,
        }),
        Event::HistoryPhase(phase),
        Event::HistoryEnd { id, cut: false, records: 2, phases: 1 },
        Event::SummaryBegin { cache_ooms: 0, has_driver_memory: true },
        Event::SummaryDevice { counters, held: Some(HeldBytes { byte_s: 7, error_byte_s: 1 }) },
        Event::SummaryKind { device, kind: Kind::Device as u8, at_peak: 2, live: 1 },
        Event::SummaryHolder(holder),
        Event::SummaryDriver(driver),
        Event::SummaryEnd { records: 4 },
        Event::Ended,
    ]
}

fn definitions() -> Vec<Definition> {
    let (device, context, pool) = (DeviceId(0), ContextId(1), PoolId(1));
    vec![
        Definition::Api { id: 1, name: "cuMemAlloc_v2".into() },
        Definition::Thread { id: ThreadId(1), tid: 7, name: "python3".into() },
        Definition::Device {
            id: device,
            uuid: *b"GPU-GPU-GPU-GPU-",
            name: "A GPU".into(),
            total_bytes: 24 << 30,
            mig: false,
        },
        Definition::Context { id: context, device, handle: 1, primary: true },
        Definition::Pool { id: pool, device, handle: 2, origin: PoolOrigin::Default },
        Definition::Site {
            id: SiteId(1),
            api: 1,
            kind: Some(Kind::Device),
            device,
            context,
            pool,
            stream: 0,
        },
        Definition::Text { id: 1, text: "long ".repeat(500) },
        Definition::Note { text: "a note".into() },
        Definition::Module {
            id: 1,
            path: "/usr/lib/libfew.so".into(),
            build_id: vec![7; 20],
            base: 0x7f00_0000_0000,
            start: 0x7f00_0000_1000,
            end: 0x7f00_0000_9000,
        },
        Definition::Code {
            id: 1,
            minor: 12,
            name: "Model.forward".into(),
            file: "model.py".into(),
            first_line: 7,
            line_table: vec![0x80, 0x00, 0xD8],
        },
        Definition::Stack {
            id: StackId(1),
            flags: StackFlags::NATIVE_CUT,
            native: vec![0x7f00_0000_2000, 0x7f00_0000_3000],
            python: vec![PythonFrame { code: 1, last_instruction: 12 }],
            joins: vec![Join { python: 0, native: 1 }],
        },
        Definition::Names {
            module: 1,
            address: 0x1000,
            names: vec![NativeName { function: 1, file: 0, line: 7 }],
        },
        Definition::Forward { stack: StackId(2), forward: StackId(1) },
    ]
}

fn fill_events(writer: &WindowWriter) {
    for (n, event) in events().iter().enumerate() {
        let _ = writer.append(ThreadId(1), 640 * n as u64, event);
    }
}

fn fill_definitions(writer: &WindowWriter) {
    for definition in definitions() {
        let _ = writer.define(ThreadId(1), 0, &mut Define::new(&definition));
    }
}

fn bytes_of(words: &[AtomicU64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect()
}

/// A page of a process that uses one device and belongs to a group.
fn live_page() -> Vec<u8> {
    let words: [AtomicU64; LIVE_WORDS] = std::array::from_fn(|_| AtomicU64::new(0));
    let page = LivePage::begin(&words, &LiveProcess { pid: 7, ..LiveProcess::default() });
    page.set_trace("/tmp/a.vtrace");
    page.set_group("group");
    page.update(1, &[LiveDevice::default()]);
    bytes_of(&words)
}

/// A page of one member that holds 5 bytes of one device under a limit.
fn group_page() -> Vec<u8> {
    let words: [AtomicU64; GROUP_WORDS] = std::array::from_fn(|_| AtomicU64::new(0));
    let page = GroupPage::open(&words, 7).expect("a fresh page");
    let me = Member { pid: 1, segment: 2, made: 3 };
    let slot = page.join(me, |_| Life::Alive).expect("the first member");
    let device = page.device(&[1; 16], 0, 1 << 30).expect("the first device");
    page.set_member_limit(slot, device, Some(100));
    page.count(slot, device).fetch_add(5, Ordering::SeqCst);
    bytes_of(&words)
}

fn main() -> io::Result<()> {
    let root = std::env::args().nth(1).unwrap_or_else(|| "fuzz/corpus".into());
    let write = |name: &str, bytes: &[u8]| {
        let path = Path::new(&root).join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
        std::fs::write(path, bytes)
    };
    let header = Header { host: "node7".into(), pid: 7, ..Header::default() };
    let tag = header.file_tag();
    let page = header.to_page().to_vec();
    let trace = |window: &[u8]| [&page[..], window].concat();

    let events = window(0, WindowKind::Events, tag, fill_events);
    let definitions = window(0, WindowKind::Definitions, tag, fill_definitions);
    write("records/events", &events[64..])?;
    write("records/definitions", &definitions[64..])?;

    // The fuzz target takes the length of the definitions from one byte.
    let few: Vec<Definition> = self::definitions()
        .into_iter()
        .filter(|definition| !matches!(definition, Definition::Text { .. }))
        .collect();
    let few = window(0, WindowKind::Definitions, 0, |writer| {
        for definition in &few {
            let _ = writer.define(ThreadId(1), 0, &mut Define::new(definition));
        }
    });
    let words = u8::try_from(few[64..].len() / 8).expect("at most 255 words");
    for command in (0..19).step_by(3) {
        let seed = [&[command, words], &few[64..], &events[64..]].concat();
        write(&format!("commands/{command}"), &seed)?;
    }
    // Steps of four bytes: what is made, its name, its size.
    let tails: [[u8; 4]; 6] = [
        [0, 0, 0, 0],
        [0x81, 0, 1, 0],
        [0, 1, 0, 0],
        [0x85, 1, 39, 0],
        [2, 2, 100, 0],
        [0x84, 2, 0, 0],
    ];
    let links: [[u8; 4]; 6] =
        [[3, 0, 0, 0], [0x81, 0, 1, 0], [7, 1, 0, 0], [0x81, 1, 31, 0], [3, 4, 1, 0], [3, 5, 2, 0]];
    write("directory/tails", tails.as_flattened())?;
    write("directory/links", links.as_flattened())?;
    write("pages/live", &live_page())?;
    write("pages/group", &group_page())?;
    write("pages/name", b"7.77.10.20.65540")?;

    let whole = trace(&events);
    write("reader/header", &page)?;
    write("reader/events", &whole)?;
    write("reader/definitions", &trace(&definitions))?;
    write("reader/cut", &whole[..whole.len() - 21])?;
    write("reader/twice", &[&whole[..], &whole[..]].concat())?;
    let damaged = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        write(name, &bytes)
    };
    damaged("reader/bad_magic", &|b| b[0] ^= 1)?;
    damaged("reader/bad_header", &|b| b[40] ^= 1)?;
    damaged("reader/bad_window", &|b| b[4096 + 20] ^= 1)?;
    damaged("reader/bad_record", &|b| b[4096 + 64 + 30] ^= 1)?;
    damaged("reader/bad_length", &|b| b[4096 + 64 + 4] = 0)?;
    damaged("reader/unfinished", &|b| {
        // Kind and check.
        b[4096 + 64 + 5] = 0;
        b[4096 + 64..4096 + 66].fill(0);
    })?;
    damaged("reader/hole", &|b| b[4096 + 64..4096 + 200].fill(0))?;
    damaged("reader/stray_window", &|b| b.splice(4096..4096, [0; 8]).for_each(drop))?;
    Ok(())
}
