//! A trace file in memory, written with the crate's own writer.
#![allow(dead_code)]

pub mod any;

use std::sync::atomic::{AtomicU64, Ordering};

use vramtrace_format::*;

pub struct Window {
    pub header: WindowHeader,
    pub words: Vec<AtomicU64>,
}

impl Window {
    pub fn writer(&self) -> WindowWriter<'_> {
        WindowWriter::begin(&self.words, self.header)
    }
}

pub fn header() -> Header {
    Header {
        major: vramtrace_format::header::MAJOR,
        minor: vramtrace_format::header::MINOR,
        uuid: *b"0123456789abcdef",
        pid: 4711,
        parent_pid: 1,
        process_start_ticks: 99,
        start_unix_ns: 1_700_000_000_000_000_000,
        start_mono_ns: 5,
        host: "node7".into(),
        executable: "/usr/bin/python3".into(),
        command: vec!["python3".into(), "train.py".into()],
        working_directory: "/home/me".into(),
        rank: Some(3),
        local_rank: None,
        world_size: Some(8),
        driver_version: Some(13000),
        writer: "0.1.0".into(),
        max_bytes: Some(2 << 30),
        run: Some(7),
        tail: Some(TailPlace::Beside),
    }
}

/// Windows of `(kind, slots, base time)` one after the other.
pub fn grid(windows: &[(WindowKind, u16, u64)]) -> Vec<Window> {
    let mut slot = 0;
    let mut sequences = [0; 3];
    windows
        .iter()
        .map(|(kind, slots, base_time_ns)| {
            let sequence = sequences[*kind as usize];
            sequences[*kind as usize] += 1;
            let header = WindowHeader {
                kind: *kind,
                slots: *slots,
                sequence,
                slot,
                base_time_ns: *base_time_ns,
                file: header().file_tag(),
            };
            slot += u32::from(*slots);
            let words = (0..header.bytes() / 8).map(|_| AtomicU64::new(0)).collect();
            Window { header, words }
        })
        .collect()
}

pub fn file(windows: &[Window]) -> Vec<u8> {
    let mut bytes = header().to_page().to_vec();
    for window in windows {
        bytes.extend(window.words.iter().flat_map(|w| w.load(Ordering::Relaxed).to_ne_bytes()));
    }
    bytes
}

pub fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().unwrap())).collect()
}

/// Stores a record, with its length and check, and returns the place behind it.
pub fn put(bytes: &mut [u8], at: usize, head: word::Head, rest: &[u64]) -> usize {
    let head = word::Head { len: rest.len() as u8 + 1, check: 0, ..head };
    let mut words = [&[head.pack()], rest].concat();
    let check = word::check(word::Check::of_file(header().file_tag()), &words);
    words[0] |= u64::from(check.sum16(at as u64));
    let record = words.iter().flat_map(|word| word.to_le_bytes());
    bytes[at..].iter_mut().zip(record).for_each(|(byte, of_record)| *byte = of_record);
    at + 8 * words.len()
}

pub fn alloc(key: u64, size: u64) -> Event {
    Event::Alloc(Alloc {
        key,
        space: Space::Device,
        size,
        site: SiteId(1),
        stack: StackId(2),
        requested: None,
    })
}

pub fn free(key: u64) -> Event {
    Event::Free { key, space: Space::Device, site: SiteId(0) }
}

/// Appends definitions to the windows in turn, rolling on `Full`.
pub fn define_all(windows: &[Window], definitions: &[Definition]) {
    let mut windows = windows.iter().filter(|w| w.header.kind == WindowKind::Definitions);
    let mut writer = windows.next().expect("a definition window").writer();
    for definition in definitions {
        let mut define = Define::new(definition);
        while writer.define(ThreadId(1), 0, &mut define) == Appended::Full {
            writer = windows.next().expect("another definition window").writer();
        }
    }
}

/// Appends events `(thread, time, event)` to the windows in turn; what the reader should give.
pub fn append_all(windows: &[Window], events: &[(u16, u64, Event)]) -> Vec<Stamped> {
    let mut windows = windows.iter().filter(|w| w.header.kind == WindowKind::Events);
    let mut writer = windows.next().expect("an event window").writer();
    let mut written = Vec::new();
    for (thread, time_ns, event) in events {
        let (thread, time_ns, event) = (ThreadId(*thread), *time_ns, *event);
        let offset = loop {
            match writer.append(thread, time_ns, &event) {
                Appended::At { offset, .. } => break offset,
                Appended::Full => writer = windows.next().expect("another event window").writer(),
            }
        };
        written.push(Stamped { offset, time_ns, thread, event });
    }
    written
}

pub type Contents = (Vec<Definition>, Vec<Stamped>, Vec<Damage>);

/// Everything that a reader gives for these bytes: definitions, events, damage.
pub fn read(bytes: &[u8]) -> Result<Contents, Error> {
    let reader = TraceReader::new(bytes)?;
    let mut damage = reader.damage().to_vec();
    let mut definitions = reader.definitions();
    let found = definitions.by_ref().collect();
    damage.extend(definitions.damage());
    let mut events = reader.events();
    let given = events.by_ref().collect();
    damage.extend(events.damage());
    Ok((found, given, damage))
}

/// A small trace of one definition and one event window, with every form of record in it.
pub fn small() -> (Vec<u8>, Vec<Definition>, Vec<Stamped>) {
    let windows = grid(&[(WindowKind::Definitions, 1, 0), (WindowKind::Events, 1, 0)]);
    let definitions = vec![
        Definition::Api { id: 1, name: "cuMemAlloc_v2".into() },
        Definition::Thread { id: ThreadId(1), tid: 4711, name: "python3".into() },
        Definition::Text { id: 1, text: "a long one ".repeat(500) },
        Definition::Site {
            id: SiteId(1),
            api: 1,
            kind: Some(Kind::Device),
            device: DeviceId(0),
            context: ContextId(1),
            pool: PoolId(0),
            stream: 0,
        },
        Definition::Note { text: "done".into() },
    ];
    define_all(&windows, &definitions);
    let mut events = Vec::new();
    for n in 1..150u64 {
        let time = n * 6400;
        events.push((1, time, alloc(n << 21, n)));
        events.push((2, time + 64, Event::PoolState { pool: PoolId(1), reserved: n, used: n }));
        events.push((1, time + 128, free(n << 21)));
    }
    events.push((1, 6_400_000, Event::Ended));
    let written = append_all(&windows, &events);
    (file(&windows), definitions, written)
}
