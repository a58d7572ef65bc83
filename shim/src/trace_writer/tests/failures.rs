//! Failures of the file: a full disk, limits, truncation, removal. The program goes on, with one line on
//! stderr.

use super::*;
use crate::driver::api::Api;
use std::os::unix::fs::PermissionsExt;

/// Two events each. Under a sanitizer some windows must do: it takes minutes for more.
const EACH: u64 = if cfg!(sanitized) { 60_000 } else { 100_000 };

/// A fifth of a million events, and what a program would notice: nothing.
fn work(recorder: &'static TraceWriter, from: u64) {
    for key in from..from + EACH {
        let Event::Alloc(block) = alloc(key << 9, SiteId(0)) else { unreachable!() };
        recorder.record_block(recorder.clock().now_ns(), &block);
        recorder.record_free(recorder.clock().now_ns(), key << 9, Space::Device, SiteId(0));
    }
}

/// Short records go to a window without a look at the state of the recording.
#[test]
fn no_short_record_comes_after_the_recording_has_stopped() {
    let scratch = Scratch::new("stopped");
    let (recorder, fake) = (recorder(scratch.path(), "unlimited", |_| ()), Fake::default());
    let made = |recorder: &TraceWriter, key: u64| {
        fake.allocate(recorder, key << 21, 4096, SiteId(0));
        fake.free(recorder, key << 21);
    };
    (1..4).for_each(|key| made(recorder, key));
    assert!(recorder.short.get().is_some(), "the usual way");
    recorder.stop(StopReason::WriteFailed, 5);
    (4..9).for_each(|key| made(recorder, key));
    assert!(recorder.short.get().is_none());
    let found = events(&scratch.path().join("trace.vtrace"));
    let keys = found.iter().filter_map(|event| match event {
        Event::Alloc(Alloc { key, .. }) | Event::Free { key, .. } => Some(key >> 21),
        _ => None,
    });
    assert_eq!(keys.collect::<Vec<_>>(), [1, 1, 2, 2, 3, 3]);
}

/// After the orderly end there is no tail: each record is written to the file at once, short ones too.
#[test]
fn short_records_after_the_end_are_in_the_file() {
    let scratch = Scratch::new("after-end");
    let (recorder, fake) = (recorder(scratch.path(), "unlimited", |_| ()), Fake::default());
    (1..4).for_each(|key| fake.allocate(recorder, key << 21, 4096, SiteId(0)));
    recorder.end(&fake);
    (4..9).for_each(|key| fake.allocate(recorder, key << 21, 4096, SiteId(0)));
    assert!(recorder.short.get().is_none());
    // What was not within the share of the time is written with a later one.
    assert!(recorder.trace().unwrap().flush().is_ok());
    let found = events(&scratch.path().join("trace.vtrace"));
    let made = found.iter().filter(|event| matches!(event, Event::Alloc(_)));
    assert_eq!(made.count(), 8);
}

fn events(path: &Path) -> Vec<Event> {
    let bytes = bytes_of(path);
    let reader = TraceReader::new(&bytes).unwrap();
    let mut events = reader.events();
    let found = events.by_ref().map(|one| one.event).collect();
    assert_eq!(events.damage(), &[]);
    found
}

fn reason(path: &Path) -> Option<StopReason> {
    events(path).into_iter().find_map(|event| match event {
        Event::Stopped { reason, .. } => Some(reason),
        _ => None,
    })
}

#[test]
fn the_file_size_limit_ends_recording_and_kills_nobody() {
    for place in PLACES {
        let scratch = Scratch::new("fsize");
        let path = scratch.path().to_path_buf();
        let (result, stderr) = stderr_of(|| {
            let limit = libc::rlimit { rlim_cur: 1_500_000, rlim_max: 1_500_000 };
            // SAFETY: the child has no other thread; the default action runs no code.
            unsafe {
                libc::signal(libc::SIGXFSZ, libc::SIG_DFL);
                libc::setrlimit(libc::RLIMIT_FSIZE, &limit);
            }
            let recorder = recorder(&path, "unlimited", tail_only(place));
            work(recorder, 0);
            recorder.is_silent()
        });
        assert_eq!(result, Ok(true), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(stderr.contains("ulimit -f"), "{stderr}");
        let trace = scratch.path().join("trace.vtrace");
        assert!(events(&trace).len() > 1000);
        if place.is_some() {
            assert_eq!(reason(&trace), Some(StopReason::FileSizeLimit));
        }
    }
}

#[test]
fn a_limit_too_small_for_anything_leaves_no_file() {
    let scratch = Scratch::new("fsize0");
    let path = scratch.path().to_path_buf();
    let (result, stderr) = stderr_of(|| {
        let limit = libc::rlimit { rlim_cur: 100_000, rlim_max: 100_000 };
        // SAFETY: changes the limits of this forked child only; `limit` outlives the call.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_DFL);
            libc::setrlimit(libc::RLIMIT_FSIZE, &limit);
        }
        work(recorder(&path, "unlimited", |_| ()), 0);
        true
    });
    assert_eq!(result, Ok(true));
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert_eq!(scratch.names(), [""; 0]);
}

#[test]
fn a_full_disk_ends_recording() {
    let scratch = Scratch::new("full");
    let target = std::ffi::CString::new(scratch.path().to_str().unwrap()).unwrap();
    // SAFETY: C strings.
    let mounted = unsafe {
        libc::mount(
            c"tmpfs".as_ptr(),
            target.as_ptr(),
            c"tmpfs".as_ptr(),
            0,
            c"size=1200k".as_ptr().cast(),
        )
    };
    if mounted != 0 {
        testkit::skip("full disk: mounting a tmpfs is not permitted");
        return;
    }
    for (name, place) in ["a", "b", "c"].into_iter().zip(PLACES) {
        let inner = scratch.path().join(name);
        std::fs::create_dir(&inner).unwrap();
        let (result, stderr) = stderr_of(|| {
            let recorder = recorder(&inner, "unlimited", tail_only(place));
            work(recorder, 0);
            recorder.is_silent()
        });
        assert_eq!(result, Ok(true), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        let trace = inner.join("trace.vtrace");
        let found = events(&trace);
        let stopped = reason(&trace);
        tail_of(&trace).into_iter().for_each(|tail| std::fs::remove_file(tail).unwrap());
        std::fs::remove_file(&trace).unwrap();
        assert!(stderr.contains("disk is full"), "{stderr}");
        assert!(found.len() > 1000, "{}", found.len());
        if place.is_some() {
            assert_eq!(stopped, Some(StopReason::DiskFull));
        }
    }
    // SAFETY: a C string.
    unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
}

/// What the tail has stays; a filter, or a limit on threads, may come at any time.
#[test]
fn without_tasks_or_permission_recording_pauses_and_what_was_recorded_stays() {
    for (may_run, text) in [(true, "ermission denied"), (false, "makes no thread")] {
        if testkit::user() != 0 && may_run {
            testkit::skip("another user: needs root");
            continue;
        }
        let scratch = Scratch::new("no-task");
        let path = scratch.path().to_path_buf();
        let (result, stderr) = stderr_of(|| {
            let recorder = recorder(&path, "unlimited", |_| ());
            (1..100).for_each(|key| recorder.record(&alloc(key << 9, SiteId(0))));
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: changes the limits and the user of this child alone.
            unsafe {
                if !may_run {
                    libc::setrlimit(libc::RLIMIT_NPROC, &none);
                }
                libc::setresuid(65_534, 65_534, 65_534);
            }
            work(recorder, 100);
            recorder.state.load(Ordering::Relaxed) == HELD
        });
        assert_eq!(result, Ok(true), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(stderr.contains(text) && stderr.contains("recording pauses"), "{stderr}");
        assert!(events(&scratch.path().join("trace.vtrace")).len() > 1000);
    }
}

/// From now on this thread makes no tasks.
fn give_up_tasks() {
    let step = |code, k, jf| libc::sock_filter { code, jt: 0, jf, k };
    let mut filter = [
        // The number; other than clone: to the last step.
        step(0x20, 0, 0),
        step(0x15, libc::SYS_clone as u32, 1),
        step(0x06, 0x0005_0000 | libc::EPERM as u32, 0),
        step(0x06, 0x7fff_0000, 0),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: a filter of this thread alone.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const program), 0);
    }
}

/// The other one makes room for it in time.
#[test]
fn what_a_thread_cannot_write_another_one_does_and_nothing_is_lost() {
    let scratch = Scratch::new("rights");
    let path = scratch.path().to_path_buf();
    let (result, stderr) = stderr_of(|| {
        let (recorder, fake) = (recorder(&path, "unlimited", |_| ()), Fake::default());
        recorder.record(&alloc(1 << 9, SiteId(0)));
        let (mine, its) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                give_up_tasks();
                for _ in 0..20 {
                    // Until the next window is missing.
                    while !recorder.trace().unwrap().events.lacks_next() {
                        recorder.record(&alloc(2 << 9, SiteId(0)));
                        recorder.record(&free(2 << 9));
                    }
                    mine.wait();
                    its.wait();
                }
            });
            for _ in 0..20 {
                mine.wait();
                recorder.maintain(&fake, false);
                its.wait();
            }
        });
        recorder.end(&fake);
        recorder.held.lost.load(Ordering::Relaxed) == 0
    });
    assert_eq!((result, stderr.as_str()), (Ok(true), ""));
    let found = events(&scratch.path().join("trace.vtrace"));
    assert!(found.len() > 100_000, "{}", found.len());
    assert!(!found.iter().any(|event| matches!(event, Event::Recording { .. })));
}

/// Closes all descriptors, as a daemon does at its start.
fn close_all() {
    // SAFETY: what a daemon does is what the recorder must stand; in a child of the test.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
}

#[test]
fn a_host_that_closes_every_descriptor_is_recorded_on() {
    for place in PLACES {
        let scratch = Scratch::new("closed");
        let path = scratch.path().to_path_buf();
        let (result, stderr) = stderr_of(|| {
            let recorder = recorder(&path, "unlimited", tail_only(place));
            work(recorder, 0);
            close_all();
            // From another directory: the path is absolute.
            std::env::set_current_dir("/").unwrap();
            work(recorder, EACH);
            // Without a tail some records may not be written yet.
            recorder.trace().unwrap().flush().is_ok() && !recorder.is_silent()
        });
        assert_eq!((result, stderr.as_str()), (Ok(true), ""));
        assert_eq!(events(&scratch.path().join("trace.vtrace")).len(), 4 * EACH as usize);
    }
}

#[test]
fn a_descriptor_that_became_another_file_is_left_alone() {
    for removed in [false, true] {
        let scratch = Scratch::new("reused");
        let path = scratch.path().to_path_buf();
        let (result, stderr) = stderr_of(|| {
            let recorder = recorder(&path, "unlimited", |_| ());
            work(recorder, 0);
            close_all();
            let victim = std::fs::File::create(path.join("victim")).unwrap();
            for number in 3..300 {
                testkit::redirect(number, &victim);
            }
            if removed {
                std::fs::create_dir(path.join("other")).unwrap();
                std::fs::rename(path.join("trace.vtrace"), path.join("other/trace")).unwrap();
            }
            work(recorder, EACH);
            recorder.is_silent() == removed
        });
        assert_eq!(result, Ok(true), "{stderr}");
        assert_eq!(stderr.lines().count(), usize::from(removed), "{stderr}");
        assert_eq!(std::fs::metadata(scratch.path().join("victim")).unwrap().len(), 0);
        if removed {
            assert!(stderr.contains("deleted, or moved to another directory"), "{stderr}");
            assert_eq!(scratch.names(), ["other", "victim"], "the tail is removed");
        } else {
            assert_eq!(events(&scratch.path().join("trace.vtrace")).len(), 4 * EACH as usize);
        }
    }
}

#[test]
fn names_that_are_taken_are_left_alone() {
    let scratch = Scratch::new("taken");
    let at = |name: &str| scratch.path().join(name);
    std::fs::write(at("trace.vtrace"), "mine").unwrap();
    // A link is a taken name, also one that leads nowhere.
    std::os::unix::fs::symlink(at("elsewhere"), at("trace.2.vtrace")).unwrap();
    let recorder = recorder(scratch.path(), "unlimited", |_| ());
    work(recorder, 0);
    recorder.end(&Fake::default());
    assert_eq!(scratch.names(), ["trace.2.vtrace", "trace.3.vtrace", "trace.vtrace"]);
    assert_eq!(std::fs::read(at("trace.vtrace")).unwrap(), b"mine");
    assert_eq!(recorder.path(), Some(at("trace.3.vtrace")));
    let mode = std::fs::metadata(at("trace.3.vtrace")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_directory_that_cannot_be_written() {
    let scratch = Scratch::new("readonly");
    let mode = |bits| std::fs::Permissions::from_mode(bits);
    std::fs::set_permissions(scratch.path(), mode(0o555)).unwrap();
    let path = scratch.path().to_path_buf();
    let (result, stderr) = stderr_of(|| {
        // Root may write anywhere.
        // SAFETY: changes the user of the child alone.
        unsafe { libc::setresuid(65_534, 65_534, 65_534) };
        let recorder = recorder(&path, "unlimited", |_| ());
        work(recorder, 0);
        recorder.state.load(Ordering::Relaxed) == UNOPENED && recorder.path().is_none()
    });
    std::fs::set_permissions(scratch.path(), mode(0o755)).unwrap();
    assert_eq!(result, Ok(true), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains("ermission denied") && stderr.contains("trace.vtrace"), "{stderr}");
    assert_eq!(scratch.names(), [""; 0]);
}

#[test]
fn nothing_worth_a_file_makes_none() {
    let scratch = Scratch::new("nothing");
    let recorder = recorder(scratch.path(), "unlimited", |_| ());
    recorder.define(&Definition::Note { text: "kept".into() });
    recorder.record(&Event::Cap {
        device: DeviceId(0),
        bytes: Some(7),
        group: None,
        soft: None,
        only_warns: false,
    });
    recorder.end(&Fake::default());
    assert_eq!(scratch.names(), [""; 0]);
    // What was kept is written when the file opens.
    recorder.record(&alloc(512, SiteId(0)));
    let path = scratch.path().join("trace.vtrace");
    let found = events(&path);
    assert!(matches!(found[0], Event::Cap { bytes: Some(7), .. }));
    assert!(matches!(found[1], Event::Alloc(_)));
    let bytes = bytes_of(&path);
    let reader = TraceReader::new(&bytes).unwrap();
    assert!(reader.definitions().any(|one| one == Definition::Note { text: "kept".into() }));
    let apis = reader.definitions().filter(|one| matches!(one, Definition::Api { .. })).count();
    assert_eq!(apis, Api::COUNT);
}

#[test]
fn a_stop_is_written_once() {
    let scratch = Scratch::new("stop");
    let recorder = recorder(scratch.path(), "unlimited", |_| ());
    work(recorder, 0);
    recorder.stop(StopReason::Panic, 0);
    recorder.stop(StopReason::Panic, 0);
    recorder.record(&free(512));
    assert_eq!(site(recorder, 1), SiteId(0));
    let found = events(&scratch.path().join("trace.vtrace"));
    assert_eq!(found.len() as u64, 2 * EACH + 1);
    assert_eq!(found.last(), Some(&Event::Stopped { reason: StopReason::Panic, errno: 0 }));
}
