//! How fast a trace is read: ns an event, and as a ratio to decoding it in the same run, which the load of the machine
//! changes less. `cargo bench --bench report [EVENTS]`, default 1,000,000, in traces of driver memory, of 10,000 stacks, of
//! PyTorch's blocks and of a training that ends out of memory; `fits` of two trainings.

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use testkit::trace_builder::TraceBuilder;
use vramtrace_format::physical::{GIB, MIB};
use vramtrace_format::{
    Alloc, Definition, DeviceId, Event, Kind, RefusedBy, Space, StackId, TraceReader,
};
use vramtrace_reader::allocator::{BlockId, Cache, Conf};
use vramtrace_reader::trace::open;

/// Live at once: what a framework's cache or a text generation keeps.
const LIVE: u64 = 20_000;

fn main() {
    let events: u64 = std::env::args().filter_map(|a| a.parse().ok()).next().unwrap_or(1_000_000);
    let directory = tempfile::tempdir().expect("a directory");
    let write = |name: &str, builder: TraceBuilder| {
        let path = directory.path().join(name).with_extension("vtrace");
        builder.write(&path);
        path
    };
    let driver = write("driver", driver_memory(events));
    let size = std::fs::metadata(&driver).expect("written").len();
    println!("{events} events, {:.1} bytes each, {LIVE} live", size as f64 / events as f64);
    let bytes = std::fs::read(&driver).expect("readable");
    let clock = &mut Clock { events, decode: None };
    clock.timed("decode", || {
        assert!(TraceReader::new(&bytes).expect("a trace").events().count() as u64 >= events);
    });
    clock.timed("replay", || {
        let trace = open(&driver).expect("a trace");
        assert!(trace.replay(&trace.definitions().0, &mut ()).state.events >= events);
    });
    clock.command("report", &[&driver], "peak");
    clock.command("report --html --force -o page.html", &[&driver], "");
    clock.command("holders", &[&write("stacks", with_stacks(events))], "layer_");
    let blocks = write("blocks", with_blocks(events));
    clock.command("export --format torch-snapshot --force -o s.pickle", &[&blocks], "");
    for command in ["report --html --force -o page.html", "report", "holders"] {
        let part = if command.contains("html") { "" } else { "model.py" };
        clock.command(command, &[&blocks], part);
    }
    let mut tensors = with_tensors(events);
    let end = events * 2_000;
    tensors.refused(end, Kind::Device, GIB, RefusedBy::Driver, 0);
    let (device, stack) = (DeviceId(0), StackId(0));
    let gave_up = Event::CacheOom { device, size: GIB, allocated: 0, reserved: 0, stack };
    tensors.event(end, gave_up);
    let tensors = write("tensors", tensors);
    for (command, part) in [
        ("frag", "fragmentation"),
        ("whatif", "expandable_segments:True"),
        ("report", "OUT OF MEMORY"),
        ("oom", "OUT OF MEMORY"),
    ] {
        clock.command(command, &[&tensors], part);
    }
    const BLOCKS: u64 = 100_000;
    let [four, six] = [4, 6].map(|batch| write(&format!("b{batch}"), training(BLOCKS, batch)));
    clock.events = 2 * BLOCKS;
    clock.command("fits --recorded batch=4,6 --card 24GiB", &[&four, &six], "fits");
}

/// Small allocations that come and go, and blocks of a pool that stay.
fn driver_memory(events: u64) -> TraceBuilder {
    let mut builder = TraceBuilder::new();
    let key = |n: u64| (1 << 40) + n % (2 * LIVE) * 1024;
    for n in 0..events / 2 {
        builder.alloc(n * 2_000, Kind::Device, key(n), 513 + n % 500);
        match n >= LIVE {
            true => builder.free(n * 2_000 + 1_000, Space::Device, key(n - LIVE)),
            false => builder.alloc(n * 2_000 + 1_000, Kind::Pool, (2 << 40) + n * MIB, MIB),
        }
    }
    builder.event(events * 1_000, Event::Ended);
    builder
}

/// A trace of blocks whose places PyTorch's allocator, replayed, chooses.
struct Cached {
    builder: TraceBuilder,
    cache: Cache,
    time_ns: u64,
}

/// A block of [`Cached`].
struct Taken {
    block: BlockId,
    address: u64,
    time_ns: u64,
}

impl Cached {
    fn new() -> Cached {
        let cache = Cache::new(Conf::default(), None);
        Cached { builder: TraceBuilder::new(), cache, time_ns: 0 }
    }

    fn take(&mut self, size: u64, stack: u32) -> Taken {
        let before = self.cache.totals().reserved;
        let block = self.cache.alloc(size, 0, 0).expect("no limit");
        let (address, size) = self.cache.span(block);
        let address = address % (1 << 49) + (1 << 40);
        self.time_ns += 1_000;
        let grown = self.cache.totals().reserved - before;
        if grown > 0 {
            self.builder.alloc(self.time_ns, Kind::Device, address, grown);
        }
        self.builder.alloc_by(self.time_ns, Kind::Block, address, size, stack);
        Taken { block, address, time_ns: self.time_ns }
    }

    fn give(&mut self, taken: Taken) {
        self.cache.free(taken.block);
        self.builder.free(taken.time_ns, Space::Block, taken.address);
    }
}

/// A training of 4 steps with this many blocks, at a batch, of 1,000 stacks.
fn training(blocks: u64, batch: u64) -> TraceBuilder {
    const STACKS: u32 = 1_000;
    const STEPS: u64 = 4;
    let mut cached = Cached::new();
    let builder = &mut cached.builder;
    builder.module("/opt/libc10_cuda.so", 0x2000_0000);
    let torch = |file: &str| format!("/v/site-packages/torch/{file}");
    builder.code(1, "main", "/home/me/train.py", 9);
    builder.code(2, "Module._call_impl", &torch("nn/modules/module.py"), 5);
    builder.code(3, "backward", &torch("_tensor.py"), 3);
    builder.code(4, "SGD.step", &torch("optim/sgd.py"), 7);
    for n in 0..STACKS {
        let line = n as i32 + 10;
        builder.code(10 + n, &format!("layer_{n}"), "/home/me/model.py", line);
        builder.stack(n + 1, &[], &[10 + n, 2, 1], &[]);
        builder.stack(STACKS + n + 1, &[], &[10 + n, 3, 1], &[]);
    }
    builder.stack(2 * STACKS + 1, &[], &[4, 1], &[]);
    let half = blocks / STEPS / 2;
    for step in 0..STEPS {
        let size = |n: u64| 1_000 * batch * (n % 37 + 1);
        let stack = |n: u64| (n % u64::from(STACKS)) as u32 + 1;
        let mut held: Vec<Taken> = (0..half).map(|n| cached.take(size(n), stack(n))).collect();
        for n in 0..half {
            // Some blocks that the other batch has not.
            let more = batch.is_multiple_of(4) && n.is_multiple_of(50);
            for _ in 0..1 + u64::from(more) {
                let taken = cached.take(size(n) / 2, STACKS + stack(n));
                cached.give(taken);
            }
            held.pop().into_iter().for_each(|taken| cached.give(taken));
        }
        let taken = cached.take(4_096 * (step + 1), 2 * STACKS + 1);
        cached.give(taken);
    }
    cached.builder
}

/// Blocks of a framework's cache, of 1,000 stacks, in segments of 20 MiB.
fn with_blocks(events: u64) -> TraceBuilder {
    const STACKS: u32 = 1_000;
    const ALIVE: u64 = LIVE;
    let mut builder = TraceBuilder::new();
    builder.module("/opt/libc10_cuda.so", 0x2000_0000);
    for n in 0..STACKS {
        builder.code(n, &format!("layer_{n}"), "/home/me/model.py", 10 + n as i32);
        builder.stack(n + 1, &[], &[n, (n + 1) % STACKS, (n + 2) % STACKS], &[]);
    }
    let at = |n: u64| (1 << 40) + n % (2 * ALIVE) * MIB;
    for segment in 0..ALIVE / 10 + 1 {
        builder.alloc_by(segment, Kind::Device, (1 << 40) + segment * 20 * MIB, 20 * MIB, 1);
    }
    let site = builder.site(Kind::Block, 0);
    for n in 0..events / 2 {
        let stack = StackId((n % u64::from(STACKS)) as u32 + 1);
        let alloc =
            Alloc { key: at(n), space: Space::Block, size: MIB / 2, site, stack, requested: None };
        builder.event(n * 2_000, Event::Alloc(alloc));
        if n >= ALIVE {
            builder.free(n * 2_000 + 1_000, Space::Block, at(n - ALIVE));
        }
    }
    builder
}

/// Steps of random size, as training makes them: what a step takes it gives back in reverse order.
/// PyTorch's allocator, replayed, says where blocks lie.
fn with_tensors(events: u64) -> TraceBuilder {
    const BLOCKS: u64 = 600;
    let mut cached = Cached::new();
    let mut seed = 1u64;
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for _ in 0..BLOCKS {
        cached.take(512 + random(4 * MIB), 0);
    }
    for _ in 0..events / (2 * BLOCKS) {
        let scale = 1 + random(8);
        let held: Vec<Taken> =
            (0..BLOCKS).map(|_| cached.take(scale * (512 << random(14)), 0)).collect();
        held.into_iter().rev().for_each(|taken| cached.give(taken));
    }
    cached.builder
}

/// 10,000 different stacks of 20 native frames, of this program, and 20 Python frames.
fn with_stacks(events: u64) -> TraceBuilder {
    const STACKS: u64 = 10_000;
    let mut builder = TraceBuilder::new();
    let own = std::env::current_exe().expect("a path").to_string_lossy().into_owned();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let of_own: Vec<(u64, u64, &str)> = maps
        .lines()
        .filter(|line| line.ends_with(&own))
        .filter_map(|line| {
            let (range, rest) = line.split_once(' ')?;
            let (start, end) = range.split_once('-')?;
            let number = |text| u64::from_str_radix(text, 16).ok();
            Some((number(start)?, number(end)?, rest))
        })
        .collect();
    let base = of_own.first().expect("this program").0;
    let (start, end, _) = *of_own.iter().find(|(_, _, rest)| rest.contains("x")).expect("code");
    let last = of_own.last().map_or(end, |(_, end, _)| *end);
    let path = own.clone();
    let build_id = Vec::new();
    builder.define(Definition::Module { id: 1, path, build_id, base, start: base, end: last });
    for code in 0..2_000 {
        let file = format!("/home/me/layer_{}.py", code % 50);
        builder.code(code, &format!("Layer{code}.forward"), &file, code as i32 + 1);
    }
    for stack in 0..STACKS {
        let mix = |n: u64| (stack * 20 + n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        let native: Vec<u64> =
            (0..20).map(|n| start + mix(n) % 5_000 * 97 % (end - start)).collect();
        let python: Vec<u32> = (0..20).map(|n| (mix(n + 20) % 2_000) as u32).collect();
        builder.stack(stack as u32 + 1, &native, &python, &[(0, 19)]);
    }
    for n in 0..events / 2 {
        let key = |n: u64| (1 << 40) + n % (2 * LIVE) * 1024;
        builder.alloc_by(n * 2_000, Kind::Device, key(n), 600, (n % STACKS) as u32 + 1);
        match n >= LIVE {
            true => builder.free(n * 2_000 + 1_000, Space::Device, key(n - LIVE)),
            false => builder.alloc_by(n * 2_000 + 1_000, Kind::Pool, (2 << 40) + n * MIB, MIB, 7),
        }
    }
    builder.event(events * 1_000, Event::Ended);
    builder
}

/// Measures cases, the first one as the unit of the others.
struct Clock {
    events: u64,
    /// ns an event of the first case.
    decode: Option<f64>,
}

impl Clock {
    /// The best of five.
    fn timed(&mut self, what: &str, work: impl Fn()) {
        let took = || {
            let start = Instant::now();
            work();
            start.elapsed().as_secs_f64()
        };
        let best = (0..5).map(|_| took()).fold(f64::MAX, f64::min);
        let each = best * 1e9 / self.events as f64;
        let ratio = each / *self.decode.get_or_insert(each);
        let ms = best * 1e3;
        println!("{what:<58} {ms:>8.1} ms  {each:>7.1} ns an event  {ratio:>6.1} x decode");
    }

    /// A command with its options, on these traces, in the directory of the first. Its output contains `part`.
    fn command(&mut self, command: &str, traces: &[&PathBuf], part: &str) {
        let name = traces[0].file_stem().unwrap_or_default().to_string_lossy();
        self.timed(&format!("{name}: vramtrace {command}"), || {
            let mut run = Command::new(env!("CARGO_BIN_EXE_vramtrace"));
            run.current_dir(traces[0].parent().expect("a directory"));
            let output = run.args(command.split(' ')).args(traces).output().expect("runs");
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains(part), "{text}");
        });
    }
}
