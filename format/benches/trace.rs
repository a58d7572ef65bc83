//! Cost of appending and decoding, as `name value unit` lines. `cargo bench -p vramtrace-format`.
//!
//! Each figure is the best of several rounds: what the code costs when nothing disturbs it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use vramtrace_format::*;

const SLOTS: u16 = 4;
const ROUNDS: usize = 20;

fn window(sequence: u64) -> (Vec<AtomicU64>, WindowHeader) {
    let header = WindowHeader {
        kind: WindowKind::Events,
        slots: SLOTS,
        sequence,
        slot: sequence as u32 * u32::from(SLOTS),
        base_time_ns: 0,
        file: Header::default().file_tag(),
    };
    ((0..header.bytes() / 8).map(|_| AtomicU64::new(0)).collect(), header)
}

fn clear(words: &[AtomicU64]) {
    words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
}

fn alloc(n: u64) -> Event {
    Event::Alloc(Alloc {
        key: n << 9,
        space: Space::Device,
        size: 4096,
        site: SiteId(1),
        stack: StackId(n as u32),
        requested: None,
    })
}

fn free(n: u64) -> Event {
    Event::Free { key: n << 9, space: Space::Device, site: SiteId(0) }
}

/// Fills the window; the number of appends.
fn fill(writer: &WindowWriter, thread: u16, event: impl Fn(u64) -> Event) -> u64 {
    let mut n = 0;
    while let Appended::At { .. } =
        writer.append(ThreadId(thread), n * 1000, std::hint::black_box(&event(n)))
    {
        n += 1;
    }
    n
}

/// Best nanoseconds an append.
fn append(threads: u16, event: impl Fn(u64) -> Event + Sync) -> f64 {
    let (words, header) = window(0);
    (0..ROUNDS)
        .map(|_| {
            clear(&words);
            let writer = WindowWriter::begin(&words, header);
            let start = Instant::now();
            let count: u64 = std::thread::scope(|scope| {
                let (writer, event) = (&writer, &event);
                let others: Vec<_> =
                    (1..threads).map(|t| scope.spawn(move || fill(writer, t, event))).collect();
                let mine = fill(writer, 0, event);
                mine + others.into_iter().map(|t| t.join().unwrap_or(0)).sum::<u64>()
            });
            start.elapsed().as_nanos() as f64 / count as f64
        })
        .fold(f64::MAX, f64::min)
}

fn main() {
    let pair = |n: u64| if n.is_multiple_of(2) { alloc(n / 2) } else { free(n / 2) };
    println!("append_alloc {:.1} ns", append(1, alloc));
    println!("append_free {:.1} ns", append(1, free));
    println!("append_pair {:.1} ns", 2.0 * append(1, pair));
    println!("append_pair_2_threads {:.1} ns", 2.0 * append(2, pair));
    let wide = |n| Event::PoolState { pool: PoolId(1), reserved: n, used: n };
    println!("append_wide {:.1} ns", append(1, wide));

    let mut bytes = Header::default().to_page().to_vec();
    let mut written = 0;
    for sequence in 0..32 {
        let (words, header) = window(sequence);
        written += fill(&WindowWriter::begin(&words, header), 1, pair);
        bytes.extend(words.iter().flat_map(|w| w.load(Ordering::Relaxed).to_ne_bytes()));
    }
    println!("bytes_an_event {:.2} bytes", bytes.len() as f64 / written as f64);
    let best = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            let reader = TraceReader::new(&bytes).expect("a trace");
            let sum = reader.events().fold(0u64, |sum, stamped| match stamped.event {
                Event::Alloc(alloc) => sum.wrapping_add(alloc.size ^ stamped.time_ns),
                Event::Free { key, .. } => sum.wrapping_add(key),
                _ => sum,
            });
            std::hint::black_box(sum);
            start.elapsed().as_secs_f64()
        })
        .fold(f64::MAX, f64::min);
    println!("decode {:.1} M events/s", written as f64 / best / 1e6);
}
