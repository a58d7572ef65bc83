//! Builds trace files in memory, event by event, with the recorder's writer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use vramtrace_format::{
    Alloc, Appended, ContextId, Counters, Define, Definition, DeviceId, Event, Header, Join, Kind,
    Listed, PoolId, PoolOrigin, Purpose, PythonFrame, Refused, RefusedBy, SLOT, Sample, SiteId,
    Space, StackFlags, StackId, ThreadId, WindowHeader, WindowKind, WindowWriter,
};

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000_000_000;

/// The cap of a process on a device.
pub fn cap_event(device: u8, bytes: u64) -> Event {
    let (device, bytes) = (DeviceId(device), Some(bytes));
    Event::Cap { device, bytes, group: None, soft: None, only_warns: false }
}

/// An entry of a state: what happened at this time.
pub fn listed(time_ns: u64, event: Event) -> Event {
    Event::StateEvent(Listed::new(1, time_ns, &event))
}

/// Addresses without memory, of no device.
pub fn reserved(address: u64, size: u64, stack: u32) -> Event {
    let (device, site, stack) = (DeviceId::UNKNOWN, SiteId(0), StackId(stack));
    Event::AddressReserve { asleep: false, device, address, size, site, stack }
}

/// Defined from the start: devices 0 and 1 with contexts 1 and 2, pool 1 (default pool of device 0) and
/// pool 2 (imported). Sites are defined when they are used.
pub struct TraceBuilder {
    pub header: Header,
    definitions: Vec<Definition>,
    sites: HashMap<(Kind, u8, u16), SiteId>,
    /// Sequences of events. Between two of them windows are missing.
    stretches: Vec<Vec<(u64, ThreadId, Event)>>,
    /// Windows are missing before the first sequence.
    beginning_lost: bool,
}

impl Default for TraceBuilder {
    fn default() -> Self {
        TraceBuilder::new()
    }
}

impl TraceBuilder {
    pub fn new() -> TraceBuilder {
        let header = Header {
            uuid: *b"0123456789abcdef",
            pid: 4711,
            parent_pid: 4000,
            process_start_ticks: 99,
            start_unix_ns: 1_767_225_600 * SECOND,
            start_mono_ns: 5,
            host: "node7".into(),
            executable: "/usr/bin/python3".into(),
            command: vec!["python3".into(), "train.py".into(), "--big".into()],
            working_directory: "/home/me".into(),
            writer: "0.1.0".into(),
            ..Header::default()
        };
        let device = |id| Definition::Device {
            id: DeviceId(id),
            uuid: [0x10 + id; 16],
            name: "NVIDIA H200".into(),
            total_bytes: 24 << 30,
            mig: false,
        };
        let context = |id, device| Definition::Context {
            id: ContextId(id),
            device: DeviceId(device),
            handle: 0xc0 + u64::from(id),
            primary: true,
        };
        let pool = |id, origin| Definition::Pool {
            id: PoolId(id),
            device: DeviceId(0),
            handle: 0xd0 + u64::from(id),
            origin,
        };
        let mut definitions = vec![
            device(0),
            device(1),
            context(1, 0),
            context(2, 1),
            pool(1, PoolOrigin::Default),
            pool(2, PoolOrigin::Imported),
        ];
        for kind in Kind::ALL {
            definitions.push(Definition::Api { id: kind as u16, name: api(kind).into() });
        }
        TraceBuilder {
            header,
            definitions,
            sites: HashMap::new(),
            stretches: vec![Vec::new()],
            beginning_lost: false,
        }
    }

    pub fn rank(mut self, rank: u32, of: u32) -> TraceBuilder {
        self.header.rank = Some(rank);
        self.header.world_size = Some(of);
        self.header.pid = 4711 + rank;
        self.header.uuid[15] = rank as u8;
        self
    }

    pub fn definitions(&self) -> &[Definition] {
        &self.definitions
    }

    pub fn define(&mut self, definition: Definition) {
        self.definitions.push(definition);
    }

    /// Windows are missing before the events that follow.
    pub fn lose(&mut self) {
        // The trace has a limit, which it has reached.
        self.header.max_bytes.get_or_insert(1);
        if self.stretches.last().is_some_and(|stretch| stretch.is_empty()) {
            self.beginning_lost = true;
        } else {
            self.stretches.push(Vec::new());
        }
    }

    pub fn event(&mut self, time_ns: u64, event: Event) {
        self.event_of(ThreadId(1), time_ns, event);
    }

    pub fn event_of(&mut self, thread: ThreadId, time_ns: u64, event: Event) {
        self.stretches.last_mut().expect("a stretch").push((time_ns, thread, event));
    }

    /// The site of this kind on this device, in its context.
    pub fn site(&mut self, kind: Kind, device: u8) -> SiteId {
        self.site_in(kind, device, u16::from(device) + 1)
    }

    pub fn site_in(&mut self, kind: Kind, device: u8, context: u16) -> SiteId {
        let next = SiteId(self.sites.len() as u32 + 1);
        let site = *self.sites.entry((kind, device, context)).or_insert(next);
        if site == next {
            self.definitions.push(Definition::Site {
                id: site,
                api: kind as u16,
                kind: Some(kind),
                device: DeviceId(device),
                context: ContextId(context),
                pool: PoolId(u16::from(kind == Kind::Pool)),
                stream: 0,
            });
        }
        site
    }

    pub fn allocation(&mut self, kind: Kind, device: u8, key: u64, size: u64) -> Alloc {
        let site = self.site(kind, device);
        Alloc { key, space: kind.space(), size, site, stack: StackId(0), requested: None }
    }

    pub fn alloc(&mut self, time_ns: u64, kind: Kind, key: u64, size: u64) {
        self.alloc_on(time_ns, kind, 0, key, size);
    }

    pub fn alloc_on(&mut self, time_ns: u64, kind: Kind, device: u8, key: u64, size: u64) {
        let alloc = self.allocation(kind, device, key, size);
        self.event(time_ns, Event::Alloc(alloc));
    }

    /// An allocation with this stack, on device 0.
    pub fn alloc_by(&mut self, time_ns: u64, kind: Kind, key: u64, size: u64, stack: u32) {
        let alloc = self.allocation(kind, 0, key, size);
        self.event(time_ns, Event::Alloc(Alloc { stack: StackId(stack), ..alloc }));
    }

    /// Defines a library of 1 MiB at this address, whose file does not exist.
    pub fn module(&mut self, path: &str, start: u64) {
        self.library(path, vec![7; 20], start, 1 << 20);
    }

    pub fn library(&mut self, path: &str, build_id: Vec<u8>, start: u64, bytes: u64) {
        let (id, path, end) = ((start | start >> 32) as u32, path.into(), start + bytes);
        self.define(Definition::Module { id, path, build_id, base: start, start, end });
    }

    /// Defines a Python 3.9 function whose instructions are all in line `line`.
    pub fn code(&mut self, id: u32, name: &str, file: &str, line: i32) {
        self.define(Definition::Code {
            id,
            minor: 9,
            name: name.into(),
            file: file.into(),
            first_line: line,
            line_table: Vec::new(),
        });
    }

    /// Defines a stack: native return addresses and ids of code objects, innermost first.
    pub fn stack(&mut self, id: u32, native: &[u64], python: &[u32], joins: &[(u32, u32)]) {
        let frame = |code: &u32| PythonFrame { code: *code, last_instruction: 0 };
        let join = |&(python, native): &(u32, u32)| Join { python, native };
        self.define(Definition::Stack {
            id: StackId(id),
            flags: StackFlags(0),
            native: native.to_vec(),
            python: python.iter().map(frame).collect(),
            joins: joins.iter().map(join).collect(),
        });
    }

    pub fn free(&mut self, time_ns: u64, space: Space, key: u64) {
        self.event(time_ns, Event::Free { key, space, site: SiteId(0) });
    }

    pub fn map(&mut self, time_ns: u64, address: u64, size: u64, object: u64) {
        let (offset, stack) = (0, StackId(0));
        self.event(time_ns, Event::Map { address, size, offset, object, owner: StackId(0), stack });
    }

    /// Memory that is made and mapped.
    pub fn mapped(&mut self, time_ns: u64, address: u64, size: u64, object: u64) {
        self.alloc(time_ns, Kind::Vmm, object, size);
        self.map(time_ns, address, size, object);
    }

    pub fn unmap(&mut self, time_ns: u64, address: u64, size: u64) {
        self.event(time_ns, Event::Unmap { address, size, stack: StackId(0) });
    }

    /// PyTorch raises an out-of-memory error for a request of this size.
    pub fn out_of_memory(&mut self, time_ns: u64, size: u64) {
        let (device, stack) = (DeviceId(0), StackId(0));
        self.event(time_ns, Event::CacheOom { device, size, allocated: 0, reserved: 0, stack });
    }

    /// Defines a setting of the process.
    pub fn setting(&mut self, name: &str, value: &str) {
        self.define(Definition::Setting { name: name.into(), value: value.into() });
    }

    pub fn context(&mut self, time_ns: u64, device: u8) {
        let context = ContextId(u16::from(device) + 1);
        let device = DeviceId(device);
        self.event(time_ns, Event::ContextCreated { context, device, stack: StackId(0) });
    }

    pub fn refused(&mut self, time_ns: u64, kind: Kind, size: u64, by: RefusedBy, limit: u64) {
        let site = self.site(kind, 0);
        self.event(
            time_ns,
            Event::Refused(Refused {
                site,
                stack: StackId(0),
                size,
                result: 2,
                by,
                counted: limit / 2,
                limit,
                driver_free: 1 << 30,
                cache: None,
            }),
        );
    }

    pub fn sample(&mut self, time_ns: u64, process_bytes: Option<u64>, context_bytes: u64) {
        self.event(
            time_ns,
            Event::Sample(Sample {
                device: DeviceId(0),
                driver_free: None,
                driver_total: Some(24 << 30),
                process_bytes,
                context_bytes,
            }),
        );
    }

    /// A checkpoint, or the summary at the end, of these entries.
    pub fn state(&mut self, time_ns: u64, what: Purpose, entries: &[Event]) {
        self.event(time_ns, Event::StateBegin { id: 1, what, cache_ooms: 0 });
        entries.iter().for_each(|entry| self.event(time_ns, *entry));
        self.event(time_ns, Event::StateEnd { id: 1, cut: false });
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.header.to_page().to_vec();
        let (mut slot, mut number) = (0, 0);
        let mut window = Window::new(WindowKind::Definitions, slot, number, 0, &self.header);
        for definition in &self.definitions {
            let mut define = Define::new(definition);
            while window.writer.define(ThreadId(1), 0, &mut define) == Appended::Full {
                window.end(&mut out);
                (slot, number) = (slot + 1, number + 1);
                window = Window::new(WindowKind::Definitions, slot, number, 0, &self.header);
            }
        }
        window.end(&mut out);
        slot += 1;
        let mut sequence = u64::from(self.beginning_lost);
        for stretch in &self.stretches {
            let base = stretch.first().map_or(0, |(time_ns, ..)| *time_ns);
            let mut window = Window::new(WindowKind::Events, slot, sequence, base, &self.header);
            for (time_ns, thread, event) in stretch {
                let append = |window: &Window| window.writer.append(*thread, *time_ns, event);
                if append(&window) == Appended::Full {
                    window.end(&mut out);
                    slot += 1;
                    sequence += 1;
                    let kind = WindowKind::Events;
                    window = Window::new(kind, slot, sequence, *time_ns, &self.header);
                    assert!(append(&window) != Appended::Full);
                }
            }
            window.end(&mut out);
            slot += 1;
            // One is missing in between.
            sequence += 2;
        }
        out
    }

    pub fn write(&self, path: &std::path::Path) {
        std::fs::write(path, self.bytes()).expect("write a trace");
    }
}

pub const TORCH: &str = "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py";
pub const GPT2: &str = "/opt/venv/lib/python3.11/site-packages/transformers/modeling_gpt2.py";

pub fn training_stacks() -> TraceBuilder {
    let mut t = TraceBuilder::new();
    t.module("/usr/lib/libcuda.so.1", 0x1000_0000);
    t.module("/opt/libc10_cuda.so", 0x2000_0000);
    t.module("/opt/libcublas.so.12", 0x3000_0000);
    t.module("/opt/libnccl.so.2", 0x4000_0000);
    t.module("/opt/libpython3.9.so.1.0", 0x5000_0000);
    t.code(1, "Module._call_impl", TORCH, 1501);
    t.code(2, "GPT2Attention._attn", GPT2, 212);
    t.code(3, "train", "/home/me/train.py", 41);
    t.code(4, "<module>", "/home/me/train.py", 77);
    t.code(5, "Linear.forward", TORCH, 114);
    let (cuda, torch, cublas, nccl, python) =
        (0x1000_0010, 0x2000_0010, 0x3000_0010, 0x4000_0010, 0x5000_0010);
    t.stack(1, &[cuda, torch, python], &[1, 2, 3, 4], &[(0, 2)]);
    t.stack(2, &[cuda, torch, torch + 16, python], &[5, 2, 3, 4], &[(0, 3)]);
    t.stack(3, &[cuda, cublas, torch, python], &[1, 2, 3, 4], &[(0, 3)]);
    t.stack(4, &[cuda, nccl, python], &[3, 4], &[(0, 2)]);
    t.stack(5, &[cuda, torch], &[], &[]);
    t
}

/// A training run with five stacks: 1 and 2 from one line of a package, through PyTorch; 3 from cuBLAS, 4
/// from NCCL, 5 from a thread without Python.
pub fn training() -> TraceBuilder {
    let mut t = training_stacks();
    t.context(SECOND, 0);
    t.alloc_by(SECOND, Kind::Device, 1 << 40, 100 << 20, 1);
    t.alloc_by(2 * SECOND, Kind::Device, 2 << 40, 60 << 20, 2);
    t.alloc_by(3 * SECOND, Kind::Device, 3 << 40, 32 << 20, 3);
    t.alloc_by(4 * SECOND, Kind::Vmm, 4, 64 << 20, 4);
    t.alloc_by(4 * SECOND, Kind::Device, 5 << 40, 4 << 20, 5);
    t.alloc_by(4 * SECOND, Kind::Imported, 6 << 40, 999 << 20, 5);
    t.alloc_by(4 * SECOND, Kind::HostPinned, 7, 999 << 20, 5);
    t.free(5 * SECOND, Space::Device, 1 << 40);
    t.alloc_by(6 * SECOND, Kind::Device, 8 << 40, 2 << 20, 5);
    t.event(7 * SECOND, Event::Ended);
    t
}

/// A PyTorch run that ends out of memory under a cap of 256 MiB. It has blocks of two Python lines and of a
/// backward step without Python, and allocations of cuBLAS and NCCL; a refusal that PyTorch survived by
/// emptying its cache, and a last request of 40 MiB, with 44 MiB free in holes of at most 20 MiB.
pub fn cached() -> TraceBuilder {
    const MIB: u64 = 1 << 20;
    const CAP: u64 = 256 * MIB;
    let mut t = training_stacks();
    t.module("/opt/libtorch_cpu.so", 0x6000_0000);
    t.code(6, "Block.mlp", GPT2, 301);
    t.stack(6, &[], &[2, 3, 4], &[]);
    t.stack(7, &[], &[6, 3, 4], &[]);
    t.stack(8, &[0x2000_0010, 0x6000_0010], &[], &[]);
    let segment = |n: u64| (1 << 40) + n * (1 << 32);
    let cache_state = |allocated: u64, reserved: u64| Event::CacheState {
        device: DeviceId(0),
        allocated: allocated * MIB,
        reserved: reserved * MIB,
    };
    t.setting("PYTORCH_CUDA_ALLOC_CONF", "");
    t.event(SECOND / 2, cap_event(0, CAP));
    t.context(SECOND / 2, 0);
    t.sample(SECOND / 2, Some(40 * MIB), 40 * MIB);
    for n in 0..4 {
        t.alloc_by((1 + n) * SECOND, Kind::Device, segment(n), 40 * MIB, 1);
        t.alloc_by((1 + n) * SECOND, Kind::Block, segment(n), 40 * MIB, 7);
        t.free((1 + n) * SECOND, Space::Block, segment(n));
        t.alloc_by((1 + n) * SECOND, Kind::Block, segment(n), 20 * MIB, 6);
        t.alloc_by((1 + n) * SECOND, Kind::Block, segment(n) + 20 * MIB, 2 * MIB, 7);
        t.alloc_by((1 + n) * SECOND, Kind::Block, segment(n) + 22 * MIB, 8 * MIB, 8);
    }
    t.alloc_by(5 * SECOND, Kind::Device, segment(4), 16 * MIB, 3);
    t.alloc_by(5 * SECOND, Kind::Device, segment(5), 8 * MIB, 4);
    t.sample(6 * SECOND, Some((40 + 160 + 24) * MIB), 40 * MIB);
    // Survived: the cache frees an unused segment, and its request is then granted.
    for at in [0, 20, 22] {
        t.free(7 * SECOND, Space::Block, segment(3) + at * MIB);
    }
    t.refused(8 * SECOND, Kind::Device, 44 * MIB, RefusedBy::Cap, CAP);
    t.free(8 * SECOND, Space::Device, segment(3));
    t.alloc_by(8 * SECOND, Kind::Device, segment(6), 44 * MIB, 1);
    t.alloc_by(8 * SECOND, Kind::Block, segment(6), 44 * MIB, 7);
    t.event(8 * SECOND, cache_state(134, 164));
    // Holes of 20, 8 + 10 and 10 + 10 MiB: not one of 40.
    t.free(9 * SECOND, Space::Block, segment(0));
    t.free(9 * SECOND, Space::Block, segment(1) + 22 * MIB);
    t.event(9 * SECOND, cache_state(106, 164));
    for _ in 0..2 {
        t.refused(10 * SECOND, Kind::Device, 40 * MIB, RefusedBy::Cap, CAP);
    }
    let (device, allocated, reserved) = (DeviceId(0), 106 * MIB, 164 * MIB);
    let (size, stack) = (40 * MIB, StackId(6));
    t.event(10 * SECOND, Event::CacheOom { device, size, allocated, reserved, stack });
    t.event(11 * SECOND, Event::Ended);
    t
}

/// The usual entry point of each kind.
pub fn api(kind: Kind) -> &'static str {
    match kind {
        Kind::Device => "cuMemAlloc_v2",
        Kind::Pitched => "cuMemAllocPitch_v2",
        Kind::Managed => "cuMemAllocManaged",
        Kind::Pool => "cuMemAllocAsync",
        Kind::Vmm => "cuMemCreate",
        Kind::Array => "cuArrayCreate_v2",
        Kind::Mipmapped => "cuMipmappedArrayCreate",
        Kind::Graph => "cuGraphAddMemAllocNode",
        Kind::Imported => "cuIpcOpenMemHandle_v2",
        Kind::HostPinned => "cuMemHostAlloc",
        Kind::HostRegistered => "cuMemHostRegister_v2",
        Kind::Block => "c10::reportMemoryUsageToProfiler",
    }
}

pub fn counters(device: u8) -> Counters {
    Counters { device, ..Counters::default() }
}

/// A window being written: its memory, which [`Window::end`] frees, and its writer.
struct Window {
    words: &'static [AtomicU64],
    writer: WindowWriter<'static>,
}

impl Window {
    fn new(kind: WindowKind, slot: u32, sequence: u64, base: u64, file: &Header) -> Window {
        let words: Vec<AtomicU64> = (0..SLOT / 8).map(|_| AtomicU64::new(0)).collect();
        let words: &'static [AtomicU64] = Box::leak(words.into_boxed_slice());
        let header = WindowHeader {
            kind,
            slots: 1,
            sequence,
            slot,
            base_time_ns: base,
            file: file.file_tag(),
        };
        Window { words, writer: WindowWriter::begin(words, header) }
    }

    fn end(self, out: &mut Vec<u8>) {
        let Window { words, writer } = self;
        writer.close();
        out.extend(words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()));
        // SAFETY: `new` leaked this box, and its only borrower, the writer, is used no more. Atomics may be
        // changed through a shared reference.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(words).cast_mut()) });
    }
}
