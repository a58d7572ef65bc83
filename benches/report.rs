//! How fast a trace is read: ns an event, and as a ratio to decoding it in the same run, which the load of the machine
//! changes less. `cargo bench --bench report [EVENTS]`, default 1,000,000: of driver memory, `report` and its page. And the same with 10,000 stacks: how
//! fast `vramtrace holders` says who holds it. Of PyTorch's blocks: the snapshot, `report` and
//! `holders`. And of a training run's tensors: `frag`, and `whatif` with its default settings; where
//! it ends out of memory, `report` and `oom`. And `fits` of two trainings.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use testkit::trace_builder::TraceBuilder;
use vramtrace_format::physical::{GIB, MIB};
use vramtrace_format::{
    Alloc, Definition, DeviceId, Event, Kind, RefusedBy, Space, StackId, TraceReader,
};
use vramtrace_reader::allocator::{Cache, Conf};
use vramtrace_reader::trace::open;

/// Live at once: what a framework's cache or a text generation keeps.
const LIVE: u64 = 20_000;

fn main() {
    let events: u64 = std::env::args().filter_map(|a| a.parse().ok()).next().unwrap_or(1_000_000);
    let mut builder = TraceBuilder::new();
    for n in 0..events / 2 {
        let key = |n: u64| (1 << 40) + n % (2 * LIVE) * 1024;
        builder.alloc(n * 2_000, Kind::Device, key(n), 513 + n % 500);
        if n >= LIVE {
            builder.free(n * 2_000 + 1_000, Space::Device, key(n - LIVE));
        } else {
            builder.alloc(n * 2_000 + 1_000, Kind::Pool, (2 << 40) + n * MIB, MIB);
        }
    }
    builder.event(events * 1_000, Event::Ended);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("bench.vtrace");
    builder.write(&path);
    let size = std::fs::metadata(&path).expect("written").len();
    println!("{events} events, {:.1} bytes each, {LIVE} live", size as f64 / events as f64);

    let bytes = std::fs::read(&path).expect("readable");
    let clock = &mut Clock::default();
    clock.timed("decode", events, || {
        TraceReader::new(&bytes).expect("a trace").events().count() as u64
    });
    clock.timed("replay", events, || {
        let trace = open(&path).expect("a trace");
        trace.replay(&trace.definitions().0, &mut ()).state.events
    });
    clock.timed("vramtrace report", events, || {
        let mut report = Command::new(env!("CARGO_BIN_EXE_vramtrace"));
        let output = report.arg("report").arg(&path).output().expect("runs");
        assert!(output.status.success());
        events
    });
    clock.timed("vramtrace report --html", events, || page(&path, events));
    let path = directory.path().join("stacks.vtrace");
    with_stacks(events).write(&path);
    clock.timed("vramtrace holders", events, || {
        let mut holders = Command::new(env!("CARGO_BIN_EXE_vramtrace"));
        let output = holders.arg("holders").arg(&path).output().expect("runs");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("layer_"), "{text}");
        events
    });
    let path = directory.path().join("blocks.vtrace");
    with_blocks(events).write(&path);
    clock.timed("vramtrace export --format torch-snapshot", events, || {
        let mut export = Command::new(env!("CARGO_BIN_EXE_vramtrace"));
        export.args(["export", "--force", "--format", "torch-snapshot", "-o"]);
        let pickle = path.with_extension("pickle");
        assert!(export.args([&pickle, &path]).status().expect("runs").success());
        let written = std::fs::metadata(&pickle).expect("written").len();
        assert!(written > 50 * events, "{written}");
        events
    });
    clock.timed("vramtrace report --html, blocks", events, || page(&path, events));
    for command in ["report", "holders"] {
        clock.timed(&format!("vramtrace {command}, blocks"), events, || {
            let mut read = Command::new(env!("CARGO_BIN_EXE_vramtrace"));
            let output = read.arg(command).arg(&path).output().expect("runs");
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("model.py"), "{text}");
            events
        });
    }
    let path = directory.path().join("tensors.vtrace");
    let mut tensors = with_tensors(events);
    let end = events * 2_000;
    tensors.refused(end, Kind::Device, GIB, RefusedBy::Driver, 0);
    let (device, stack) = (DeviceId(0), StackId(0));
    let gave_up = Event::CacheOom { device, size: GIB, allocated: 0, reserved: 0, stack };
    tensors.event(end, gave_up);
    tensors.write(&path);
    for (name, command, part) in [
        ("vramtrace frag", "frag", "fragmentation"),
        ("vramtrace whatif", "whatif", "expandable_segments:True"),
        ("vramtrace report, out of memory", "report", "OUT OF MEMORY"),
        ("vramtrace oom", "oom", "OUT OF MEMORY"),
    ] {
        clock.timed(name, events, || {
            let mut asked = Command::new(env!("CARGO_BIN_EXE_vramtrace"));
            let output = asked.arg(command).arg(&path).output().expect("runs");
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains(part), "{text}");
            events
        });
    }
    fits(clock, directory.path());
}

/// Writes the page of a trace.
fn page(path: &Path, events: u64) -> u64 {
    let mut report = Command::new(env!("CARGO_BIN_EXE_vramtrace"));
    report
        .args(["report", "--html", "--force", "-o"])
        .args([path.with_extension("html"), PathBuf::from(path)]);
    assert!(report.output().expect("runs").status.success());
    events
}

/// `vramtrace fits` of two runs of 100,000 blocks.
fn fits(clock: &mut Clock, directory: &Path) {
    const BLOCKS: u64 = 100_000;
    let paths = [4, 6].map(|batch| {
        let path = directory.join(format!("batch_{batch}.vtrace"));
        training(BLOCKS, batch).write(&path);
        path
    });
    clock.timed("vramtrace fits, two runs", 2 * BLOCKS, || {
        let mut asked = Command::new(env!("CARGO_BIN_EXE_vramtrace"));
        asked.arg("fits").args(&paths).args(["--recorded", "batch=4,6", "--card", "24GiB"]);
        let output = asked.output().expect("runs");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("fits"), "{text}");
        2 * BLOCKS
    });
}

/// A training of 4 steps with this many blocks, at a batch, of 1,000 stacks.
fn training(blocks: u64, batch: u64) -> TraceBuilder {
    const STACKS: u32 = 1_000;
    const STEPS: u64 = 4;
    let mut builder = TraceBuilder::new();
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
    let mut cache = Cache::new(Conf::default(), None);
    let mut time_ns = 0;
    let mut take = |builder: &mut TraceBuilder, cache: &mut Cache, size: u64, stack: u32| {
        let before = cache.totals().reserved;
        let block = cache.alloc(size, 0, 0).expect("no limit");
        let (address, size) = cache.span(block);
        let address = address % (1 << 49) + (1 << 40);
        time_ns += 1_000;
        let grown = cache.totals().reserved - before;
        if grown > 0 {
            builder.alloc(time_ns, Kind::Device, address, grown);
        }
        builder.alloc_by(time_ns, Kind::Block, address, size, stack);
        (block, address, time_ns)
    };
    let half = blocks / STEPS / 2;
    for step in 0..STEPS {
        let size = |n: u64| 1_000 * batch * (n % 37 + 1);
        let mut held = Vec::new();
        for n in 0..half {
            let stack = (n % u64::from(STACKS)) as u32 + 1;
            held.push(take(&mut builder, &mut cache, size(n), stack));
        }
        for n in 0..half {
            // Some blocks that the other batch has not.
            let more = batch.is_multiple_of(4) && n.is_multiple_of(50);
            for _ in 0..1 + u64::from(more) {
                let stack = STACKS + (n % u64::from(STACKS)) as u32 + 1;
                let (block, address, time_ns) = take(&mut builder, &mut cache, size(n) / 2, stack);
                cache.free(block);
                builder.free(time_ns, Space::Block, address);
            }
            if let Some((block, address, time_ns)) = held.pop() {
                cache.free(block);
                builder.free(time_ns, Space::Block, address);
            }
        }
        let (block, address, time_ns) =
            take(&mut builder, &mut cache, 4_096 * (step + 1), 2 * STACKS + 1);
        cache.free(block);
        builder.free(time_ns, Space::Block, address);
    }
    builder
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
    let mut builder = TraceBuilder::new();
    let mut cache = Cache::new(Conf::default(), None);
    let mut time_ns = 0;
    let mut seed = 1u64;
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let mut take = |builder: &mut TraceBuilder, cache: &mut Cache, size: u64| {
        let before = cache.totals().reserved;
        let block = cache.alloc(size, 0, 0).expect("no limit");
        let (address, size) = cache.span(block);
        let address = address % (1 << 49) + (1 << 40);
        time_ns += 1_000;
        let grown = cache.totals().reserved - before;
        if grown > 0 {
            builder.alloc(time_ns, Kind::Device, address, grown);
        }
        builder.alloc(time_ns, Kind::Block, address, size);
        (block, address, time_ns)
    };
    for _ in 0..BLOCKS {
        let size = 512 + random(4 * MIB);
        take(&mut builder, &mut cache, size);
    }
    for _ in 0..events / (2 * BLOCKS) {
        let scale = 1 + random(8);
        let mut held = Vec::new();
        for _ in 0..BLOCKS {
            let size = scale * (512 << random(14));
            held.push(take(&mut builder, &mut cache, size));
        }
        while let Some((block, address, time_ns)) = held.pop() {
            cache.free(block);
            builder.free(time_ns, Space::Block, address);
        }
    }
    builder
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
#[derive(Default)]
struct Clock {
    /// ns an event of the first case.
    decode: Option<f64>,
}

impl Clock {
    /// The best of five.
    fn timed(&mut self, what: &str, events: u64, mut work: impl FnMut() -> u64) {
        let mut best = f64::MAX;
        for _ in 0..5 {
            let start = Instant::now();
            assert!(work() >= events);
            best = best.min(start.elapsed().as_secs_f64());
        }
        let each = best * 1e9 / events as f64;
        let ratio = each / *self.decode.get_or_insert(each);
        println!(
            "{what:<46} {:>8.1} ms  {each:>7.1} ns an event  {ratio:>6.1} x decode",
            best * 1e3
        );
    }
}
