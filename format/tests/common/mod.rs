//! A trace file in memory, written with the crate's own writer.
#![allow(dead_code)]

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

pub fn alloc(key: u64, size: u64) -> Event {
    Event::Alloc(Alloc { key, space: Space::Device, size, site: SiteId(1), stack: StackId(2) })
}

pub fn free(key: u64) -> Event {
    Event::Free { key, space: Space::Device, site: SiteId(0) }
}
