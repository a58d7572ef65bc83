//! Makes a directory from arbitrary bytes: traces, tails, links, FIFOs, sparse and cut files under the names that a
//! reader looks for. What is there is loaded and read as a report does, and tails are merged: all of it must end, take
//! a bounded amount of memory, and leave the file outside of the directory as it is.
#![no_main]

mod repaired;

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use libfuzzer_sys::fuzz_target;
use repaired::{trace, words};
use vramtrace_format::{
    HEADER_BYTES, Header, SLOT, TailPlace, TraceReader, WindowHeader, WindowKind, WindowWriter, tail,
};
use vramtrace_reader::analysis::ranks::ProcessFigures;
use vramtrace_reader::trace::{self, open};

const NAMES: [&[u8]; 6] =
    [b"a.vtrace", b"b.vtrace", b"a.vtrace.2", b"run", b"\x1b[2J\n.vtrace", b"..vtrace"];
const OUTSIDE: &[u8] = b"nobody writes here";

/// A sound trace of these bytes that says that it has a tail.
fn killed(inside: &[u8]) -> (Header, Vec<u8>) {
    let inside = words(inside);
    let half = inside.len() / 2;
    let mut bytes =
        trace(&[(WindowKind::Definitions, &inside[..half]), (WindowKind::Events, &inside[half..])]);
    let header = TraceReader::new(&bytes).expect("a sound trace").header().clone();
    let header = Header { tail: Some(TailPlace::Beside), ..header };
    bytes[..HEADER_BYTES].copy_from_slice(&header.to_page());
    (header, bytes)
}

/// A tail with a sound window at this slot of the trace.
fn tail_of(header: &Header, slot: u32) -> Vec<u8> {
    let kind = WindowKind::Events;
    let file = header.file_tag();
    let window = WindowHeader { kind, slots: 1, sequence: 1, slot, base_time_ns: 0, file };
    let words: Vec<_> = (0..SLOT / 8).map(|_| AtomicU64::new(0)).collect();
    WindowWriter::begin(&words, window);
    let mut tail = header.to_page().to_vec();
    tail.resize(tail::TAIL_START, 0);
    tail.extend(words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()));
    tail
}

fn make(place: &Path, outside: &Path, step: &[u8]) {
    let [what, name, size, inside @ ..] = step else { return };
    let (header, bytes) = killed(inside);
    let mut name = NAMES[usize::from(*name) % NAMES.len()].to_vec();
    if what & 0x80 != 0 {
        name = tail::name(&name, header.file_tag());
    }
    let path = place.join(OsStr::from_bytes(&name));
    // A name that is taken stays as it is: opening a FIFO would wait, a link leads outside.
    let new = || File::options().write(true).create_new(true).mode(0o600).open(&path);
    let write = |bytes: &[u8]| new()?.write_all_at(bytes, 0);
    let sparse = || {
        let file = new()?;
        file.write_all_at(inside, u64::from(*size) * SLOT as u64)?;
        file.set_len(1 << (size % 40))
    };
    // What fails makes nothing.
    let _ = match what & 0x7 {
        0 => write(&bytes),
        1 => write(&tail_of(&header, 1 << (size % 32))),
        2 => write(&bytes[..bytes.len() * usize::from(*size) / 256]),
        3 => {
            let to = [outside, Path::new("/dev/zero"), place, Path::new("a.vtrace")];
            symlink(to[usize::from(size % 4)], &path)
        }
        4 => {
            let name = CString::new(path.as_os_str().as_bytes()).expect("no NUL");
            // SAFETY: a C string.
            unsafe { libc::mkfifo(name.as_ptr(), 0o600) };
            Ok(())
        }
        5 => sparse(),
        6 => std::fs::create_dir(&path),
        _ => std::fs::hard_link(outside, &path),
    };
}

fuzz_target!(|input: &[u8]| {
    let scratch = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let (place, outside) = (scratch.path().join("run"), scratch.path().join("outside"));
    std::fs::create_dir(&place).expect("a directory");
    std::fs::write(&outside, OUTSIDE).expect("a file");
    for step in input.chunks(input.len().div_ceil(6).max(4)) {
        make(&place, &outside, step);
    }
    if let Ok(loaded) = trace::load(std::slice::from_ref(&place)) {
        for trace in &loaded.traces {
            let _ = (ProcessFigures::replayed(trace), trace.damage());
        }
    }
    for name in NAMES {
        let path = place.join(OsStr::from_bytes(name));
        let _ = trace::merge(&path);
        let _ = open(&path).map(|trace| trace.definitions());
    }
    assert_eq!(std::fs::read(&outside).expect("still there"), OUTSIDE);
});
