//! SIGKILL at any instant: every record whose append had returned is in the file.

use super::*;
use std::sync::atomic::AtomicU64;

const THREADS: usize = 4;

#[test]
fn what_was_appended_survives() {
    let mut random = 0x9E37_79B9_7F4A_7C15u64 ^ u64::from(std::process::id());
    for round in 0..40 {
        for place in PLACES {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at_us = 1_000 + (random >> 33) % if round % 4 == 0 { 2_000 } else { 30_000 };
            kill_once(place, at_us);
        }
    }
}

fn kill_once(place: Option<TailPlace>, microseconds: u64) {
    let scratch = Scratch::new("kill");
    // The journal: how many pairs each thread has appended, in memory that outlives the child.
    // SAFETY: a fresh page of zeros, longer than the array, which is used until `munmap` below.
    let journal = unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(at, libc::MAP_FAILED);
        &*(at as *const [AtomicU64; THREADS])
    };
    // SAFETY: the child records on a copy of this memory until it is killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let recorder = recorder(scratch.path(), "unlimited", tail_only(place));
        std::thread::scope(|scope| {
            for (thread, count) in journal.iter().enumerate() {
                scope.spawn(move || {
                    for i in 0u64.. {
                        let key = ((thread as u64) << 32 | i) << 9;
                        recorder.record(&alloc(key, site(recorder, thread as u64)));
                        recorder.record(&free(key));
                        count.store(i + 1, Ordering::Release);
                    }
                });
            }
        });
    }
    std::thread::sleep(std::time::Duration::from_micros(microseconds));
    // SAFETY: our own child, which has not been waited for.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    let appended: Vec<u64> = journal.iter().map(|count| count.load(Ordering::Acquire)).collect();
    // SAFETY: the mapping of above, whose last use was the line before.
    unsafe { libc::munmap(journal.as_ptr().cast_mut().cast(), 4096) };
    let path = scratch.path().join("trace.vtrace");
    if !path.exists() {
        return assert_eq!(appended, [0; THREADS]);
    }
    let bytes = bytes_of(&path);
    let reader = match TraceReader::new(&bytes) {
        Ok(reader) => reader,
        // Killed before the header page was there.
        Err(_) => return assert_eq!(appended, [0; THREADS]),
    };
    let mut pairs = [0u64; THREADS];
    let mut events = reader.events();
    for one in events.by_ref() {
        if let Event::Free { key, .. } = one.event {
            let (thread, i) = ((key >> 41) as usize, key >> 9 & 0xFFFF_FFFF);
            assert_eq!(pairs[thread], i);
            pairs[thread] += 1;
        }
    }
    assert_eq!(events.damage(), &[], "after {microseconds} us");
    for (found, appended) in pairs.into_iter().zip(appended) {
        // Without a tail they are written at once until that takes too much of the time.
        assert!(found >= appended || place.is_none(), "{found} of {appended}");
        assert!(found <= appended + 1, "{found} of {appended}");
    }
}
