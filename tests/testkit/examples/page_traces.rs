//! Writes the traces that the tests of the page are about: `page_traces DIRECTORY [BLOCKS]`.

use std::collections::HashMap;
use std::path::Path;

use testkit::trace_builder::{
    GPT2, MS, SECOND, TORCH, TraceBuilder, cached, cap_event, reserved, training,
};
use vramtrace_format::header::seal;
use vramtrace_format::word::{Check, check};
use vramtrace_format::{
    Alloc, Definition, Event, HEADER_BYTES, Kind, Mark, RefusedBy, Space, StackId, TraceReader,
};

const MIB: u64 = 1 << 20;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().expect("a directory");
    let directory = Path::new(&directory);
    let blocks: u64 = arguments.next().map_or(1_000_000, |text| text.parse().expect("a number"));
    std::fs::create_dir_all(directory).expect("a directory");
    let write = |name: &str, builder: &TraceBuilder| builder.write(&directory.join(name));
    write("oom.vtrace", &cached());
    write("driver.vtrace", &training());
    write("refused.vtrace", &refused());
    write("empty.vtrace", &TraceBuilder::new());
    write("hostile.vtrace", &hostile());
    write("plain.vtrace", &without_stacks());
    write("lost.vtrace", &lost());
    write("erased.vtrace", &testkit::erased_trace::erased());
    write("phases.vtrace", &phases());
    write("leak.vtrace", &leak());
    write("sleeping.vtrace", &sleeping());
    std::fs::write(directory.join("invalid.vtrace"), invalid()).expect("write a trace");
    let mut damaged = steps(3_000, 0).bytes();
    // Amid the events.
    let at = damaged.len() / 2 + (64 << 10);
    damaged[at..at + 4096].fill(0xa5);
    std::fs::write(directory.join("damaged.vtrace"), damaged).expect("write a trace");
    for rank in 0..4u32 {
        let more = if rank == 2 { 700 } else { 0 };
        let mut builder = steps(2_000, more).rank(rank, 4);
        builder.sample(3 * SECOND, Some(900 * MIB + u64::from(rank == 2) * 600 * MIB), 500 * MIB);
        let folder = directory.join("ranks");
        std::fs::create_dir_all(&folder).expect("a directory");
        builder.write(&folder.join(format!("rank{rank}.vtrace")));
    }
    // Rank 1 runs out of memory.
    let folder = directory.join("ranks-oom");
    std::fs::create_dir_all(&folder).expect("a directory");
    for rank in 0..4u32 {
        let builder = if rank == 1 { cached() } else { steps(2_000, 0) };
        builder.rank(rank, 4).write(&folder.join(format!("rank{rank}.vtrace")));
    }
    write("before.vtrace", &steps(3_000, 0));
    write("after.vtrace", &steps(3_000, 40));
    write("million.vtrace", &steps(blocks, 0));
    let csv = "action,addr,size,stream\nalloc,1048576,512,0\nalloc,2097152,1048576,0\nfree_completed,1048576,512,0\n";
    std::fs::write(directory.join("import.csv"), csv).expect("write a CSV");
}

/// A program without PyTorch whose last call the cap refuses.
fn refused() -> TraceBuilder {
    let mut builder = TraceBuilder::new();
    stacks(&mut builder);
    builder.event(MS, cap_event(0, 1000 * MIB));
    builder.context(MS, 0);
    builder.sample(MS, Some(500 * MIB), 500 * MIB);
    for n in 0..8 {
        builder.alloc_by((10 + n) * MS, Kind::Device, (1 << 40) + n * (1 << 32), 50 * MIB, 4);
    }
    builder.refused(100 * MS, Kind::Device, 400 * MIB, RefusedBy::Cap, 1000 * MIB);
    builder
}

fn stacks(builder: &mut TraceBuilder) {
    builder.code(1, "Module._call_impl", TORCH, 1501);
    builder.code(2, "GPT2Attention._attn", GPT2, 212);
    builder.code(3, "train", "/home/me/train.py", 41);
    builder.code(4, "<module>", "/home/me/train.py", 77);
    builder.code(5, "GPT2MLP.forward", GPT2, 301);
    builder.code(6, "Adam.step", "/opt/venv/lib/python3.11/site-packages/torch/optim/adam.py", 90);
    builder.code(7, "load", "/home/me/data.py", 12);
    builder.stack(1, &[], &[2, 1, 3, 4], &[]);
    builder.stack(2, &[], &[5, 1, 3, 4], &[]);
    builder.stack(3, &[], &[6, 3, 4], &[]);
    builder.stack(4, &[], &[7, 3, 4], &[]);
    builder.stack(5, &[], &[3, 4], &[]);
}

/// Steps as training makes them: what is made in a step is given back in reverse order, at the places
/// where blocks of that size lay before. `more`: MiB that one line keeps beside.
fn steps(blocks: u64, more: u64) -> TraceBuilder {
    const STEP: u64 = 1_000;
    let mut builder = TraceBuilder::new();
    stacks(&mut builder);
    let site = builder.site(Kind::Block, 0);
    builder.context(MS, 0);
    builder.sample(MS, Some(500 * MIB), 500 * MIB);
    let mut free: HashMap<u64, Vec<u64>> = HashMap::new();
    let (mut segments, mut room, mut at) = (0u64, 0u64, 0u64);
    let mut now = 10 * MS;
    let mut seed = 1u64;
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let mut take = |builder: &mut TraceBuilder,
                    free: &mut HashMap<u64, Vec<u64>>,
                    now: u64,
                    size: u64,
                    stack: u32| {
        let address = free.entry(size).or_default().pop().unwrap_or_else(|| {
            if room < size {
                (at, room) = (
                    (1 << 40) + segments * (1 << 32),
                    size.max(20 * MIB).next_multiple_of(2 * MIB),
                );
                segments += 1;
                builder.alloc_by(now, Kind::Device, at, room, 5);
            }
            let address = at;
            (at, room) = (at + size, room - size);
            address
        });
        let alloc = Alloc {
            key: address,
            space: Space::Block,
            size,
            site,
            stack: StackId(stack),
            requested: None,
        };
        builder.event(now, Event::Alloc(alloc));
        address
    };
    for n in 0..more {
        take(&mut builder, &mut free, now + n, MIB, 4);
    }
    for n in 0..200u64 {
        take(&mut builder, &mut free, now + n, 512 << (n % 12), 3);
    }
    for _ in 0..(blocks / STEP).max(1) {
        let mut held = Vec::new();
        for n in 0..STEP.min(blocks) {
            now += 1_000 + random(3_000);
            let size = (512 * (1 + random(4))) << random(11);
            let address = take(&mut builder, &mut free, now, size, (n % 3) as u32 + 1);
            held.push((address, size));
            // Some live for a moment only.
            if random(3) == 0 {
                let (address, size) = held.swap_remove(random(held.len() as u64) as usize);
                now += 500;
                builder.free(now, Space::Block, address);
                free.entry(size).or_default().push(address);
            }
        }
        while let Some((address, size)) = held.pop() {
            now += 700;
            builder.free(now, Space::Block, address);
            free.entry(size).or_default().push(address);
        }
    }
    builder.event(now + MS, Event::Ended);
    builder
}

/// Names that would end a script, turn text around, or fill a screen.
fn hostile() -> TraceBuilder {
    let mut builder = TraceBuilder::new();
    builder.header.host = "node</script><img src=x onerror=alert(1)>".into();
    builder.header.command =
        vec!["python3".into(), "</script><script>window.hacked=1</script>".into()];
    let long = "x".repeat(10_000);
    let names = [
        "</script><script>window.hacked = 1</script>",
        "\u{202e}gnitset\u{202c} <b>bold</b>",
        "<img src=x onerror=\"window.hacked=1\">",
        "constructor",
        "__proto__",
        &long,
        "\u{fffd}\u{fffd}\u{0}\u{7}\u{1b}[31m",
        "a&b\"c'd`e${window.hacked=1}",
    ];
    for (name, n) in names.iter().zip(1u32..) {
        let file = format!("/home/me/{name}/{name}.py");
        builder.code(n, name, &file, 10 + n as i32);
        builder.stack(n, &[], &[n], &[]);
        let size = u64::from(20 - n) * MIB;
        builder.alloc_by(u64::from(n) * SECOND, Kind::Device, u64::from(n) << 40, size, n);
    }
    builder.define(Definition::Text { id: 1, text: names[0].into() });
    builder.event(3 * SECOND, Event::Mark { name: 1, mark: Mark::Start });
    builder.event(9 * SECOND, Event::Ended);
    builder
}

/// The bytes of a trace whose function, file, phase and command are no UTF-8: 0xff begins no character,
/// and 0xc3 wants another byte behind it than `(`.
fn invalid() -> Vec<u8> {
    const PLACE: &[u8] = b"####";
    const BROKEN: &[u8] = &[0xff, 0xfe, 0xc3, b'('];
    let mut builder = TraceBuilder::new();
    builder.header.command = vec!["python3".into(), "broken_####_command.py".into()];
    builder.code(1, "broken_####_function", "/home/me/####/broken_####_file.py", 10);
    builder.stack(1, &[], &[1], &[]);
    builder.alloc_by(SECOND, Kind::Device, 1 << 40, 20 * MIB, 1);
    builder.define(Definition::Text { id: 1, text: "broken_####_phase".into() });
    builder.event(2 * SECOND, Event::Mark { name: 1, mark: Mark::Push });
    builder.event(3 * SECOND, Event::Mark { name: 0, mark: Mark::Pop });
    builder.event(9 * SECOND, Event::Ended);
    let mut bytes = builder.bytes();
    let places: Vec<usize> =
        (0..bytes.len() - PLACE.len()).filter(|at| bytes[*at..].starts_with(PLACE)).collect();
    assert_eq!(places.len(), 5, "command, function, folder, file, phase");
    let file = Check::of_file(TraceReader::new(&bytes).expect("a trace").header().file_tag());
    let sum = |bytes: &[u8], start: usize| {
        let words = bytes[start..start + 8 * usize::from(bytes[start + 4])].chunks_exact(8);
        let words: Vec<u64> =
            words.map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))).collect();
        check(file, &words).sum16(start as u64)
    };
    // A record begins where a sound one does that reaches so far.
    let record = |place: usize| {
        let starts = (HEADER_BYTES..=place / 8 * 8).rev().step_by(8);
        let mut starts = starts.filter(|start| start + 8 * usize::from(bytes[start + 4]) > place);
        let is_sound =
            |start: &usize| sum(&bytes, *start).to_le_bytes() == bytes[*start..start + 2];
        starts.find(is_sound).expect("a record")
    };
    let records: Vec<usize> =
        places.iter().filter(|place| **place >= HEADER_BYTES).map(|place| record(*place)).collect();
    for place in places {
        bytes[place..place + BROKEN.len()].copy_from_slice(BROKEN);
    }
    for start in records {
        let sum = sum(&bytes, start).to_le_bytes();
        bytes[start..start + 2].copy_from_slice(&sum);
    }
    let header: &mut [u8; HEADER_BYTES] = bytes.first_chunk_mut().expect("a header page");
    seal(header);
    bytes
}

fn without_stacks() -> TraceBuilder {
    let mut builder = TraceBuilder::new();
    builder.context(MS, 0);
    for n in 0..40u64 {
        builder.alloc(n * 10 * MS, Kind::Device, (1 << 40) + n * (1 << 30), (n + 1) * MIB);
    }
    for n in 0..20u64 {
        builder.free((400 + n) * MS, Space::Device, (1 << 40) + n * (1 << 30));
    }
    builder.event(SECOND, Event::Ended);
    builder
}

/// Windows are missing in the middle.
fn lost() -> TraceBuilder {
    let mut builder = TraceBuilder::new();
    stacks(&mut builder);
    builder.alloc_by(SECOND, Kind::Device, 1 << 40, 64 * MIB, 1);
    builder.lose();
    builder.alloc_by(5 * SECOND, Kind::Device, 2 << 40, 32 * MIB, 2);
    builder.event(6 * SECOND, Event::Ended);
    builder
}

fn phases() -> TraceBuilder {
    let mut builder = TraceBuilder::new();
    stacks(&mut builder);
    builder.define(Definition::Text { id: 1, text: "step".into() });
    builder.define(Definition::Text { id: 2, text: "forward".into() });
    builder.define(Definition::Text { id: 3, text: "backward".into() });
    builder.context(MS, 0);
    for step in 0..6u64 {
        let at = |ms: u64| (step * 100 + ms) * MS;
        let key = (1 << 40) + step * (1 << 33);
        builder.event(at(1), Event::Mark { name: 1, mark: Mark::Push });
        builder.event(at(2), Event::Mark { name: 2, mark: Mark::Push });
        builder.alloc_by(at(10), Kind::Device, key, (40 + step) * MIB, 1);
        builder.event(at(40), Event::Mark { name: 0, mark: Mark::Pop });
        builder.event(at(41), Event::Mark { name: 3, mark: Mark::Push });
        builder.alloc_by(at(50), Kind::Device, key + (1 << 32), 20 * MIB, 2);
        builder.free(at(60), Space::Device, key);
        builder.event(at(80), Event::Mark { name: 0, mark: Mark::Pop });
        builder.event(at(90), Event::Mark { name: 0, mark: Mark::Pop });
        builder.free(at(95), Space::Device, key + (1 << 32));
    }
    builder.event(700 * MS, Event::Ended);
    builder
}

/// One line that never gives back.
fn leak() -> TraceBuilder {
    let mut builder = TraceBuilder::new();
    stacks(&mut builder);
    builder.context(MS, 0);
    for n in 0..400u64 {
        let now = (n + 1) * 50 * MS;
        builder.alloc_by(now, Kind::Device, (1 << 40) + n * (1 << 30), 3 * MIB, 4);
        builder.alloc_by(now + MS, Kind::Device, (2 << 40) + n * (1 << 30), 30 * MIB, 1);
        builder.free(now + 20 * MS, Space::Device, (2 << 40) + n * (1 << 30));
    }
    builder.event(21 * SECOND, Event::Ended);
    builder
}

/// A server that sleeps twice: a region of PyTorch's blocks and one of the program's own are unmapped, and
/// come back in other objects, mapped by another line. A third region stays.
fn sleeping() -> TraceBuilder {
    let mut builder = TraceBuilder::new();
    stacks(&mut builder);
    builder.context(MS, 0);
    let regions = [(1u64 << 40, 40 * MIB, 1u32), (2 << 40, 24 * MIB, 2), (3 << 40, 20 * MIB, 4)];
    let map = |builder: &mut TraceBuilder, now, region: usize, object: u64, stack: u32| {
        let (address, size, _) = regions[region];
        builder.alloc_by(now, Kind::Vmm, object, size, stack);
        let stack = StackId(stack);
        builder
            .event(now, Event::Map { address, size, offset: 0, object, owner: StackId(0), stack });
    };
    for (n, (address, size, stack)) in regions.into_iter().enumerate() {
        builder.event(2 * MS, reserved(address, size, stack));
        map(&mut builder, 2 * MS, n, n as u64 + 1, stack);
    }
    let base = regions[0].0;
    for n in 0..6u64 {
        builder.alloc_by((10 + n) * MS, Kind::Block, base + n * 5 * MIB, 4 * MIB, 1 + n as u32 % 3);
    }
    builder.alloc_by(20 * MS, Kind::Block, regions[2].0, 8 * MIB, 3);
    for (sleep, at) in [(0u64, 100 * MS), (1, 300 * MS)] {
        for (region, (address, size, _)) in (0u64..2).zip(regions) {
            let object = region + 1 + sleep * 10;
            builder.event(at, Event::Unmap { address, size, stack: StackId(5) });
            builder.free(at, Space::Vmm, object);
        }
        // One is freed while it has no memory.
        builder.free(at + 50 * MS, Space::Block, base + sleep * 5 * MIB);
        for region in 0..2 {
            map(&mut builder, at + 100 * MS, region, region as u64 + 11 + sleep * 10, 5);
        }
        let made = base + sleep * 5 * MIB;
        builder.alloc_by(at + 120 * MS, Kind::Block, made, 3 * MIB, 2);
    }
    builder.event(500 * MS, Event::Ended);
    builder
}
