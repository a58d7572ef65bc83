//! Processes that were started with an earlier version of the library, and run on: `vramtrace ps` reads
//! their live pages, and what starts later leaves them alone.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use testkit::{InteractiveProgram, Setup, SharedMemory, SharedSegment};
use vramtrace_format::member::{Member, Namespaces};

const MIB: u64 = 1 << 20;
const NO_CAP: u64 = u64::MAX;

/// The words of a page as this version of the library wrote it, of this very process: two devices.
fn page(version: u64, me: &Member) -> Vec<u64> {
    let (length, device_words) = match version {
        1 => (8192, 16),
        2 => (12288, 32),
        _ => (16384, 32),
    };
    let mut words = vec![0; length / 8];
    words[0] = u64::from_le_bytes(*b"vtlive\0\0");
    words[1] = version | 2 << 32;
    // It records.
    words[2] = u64::from(me.pid) | 1 << 32;
    (words[3], words[4], words[5]) = (me.start_ticks, 1_700_000_000_000_000_000, 77);
    (words[6], words[8]) = (2, 5_000_000_000);
    let path = b"/home/me/run/t.vtrace";
    words[7] = path.len() as u64;
    put_text(&mut words[16..], path);
    if version >= 2 {
        put_text(&mut words[528..], b"two-services");
    }
    for (index, [ordinal, live]) in [[0, 7 * MIB], [3, 9 * MIB]].into_iter().enumerate() {
        let at = 768 + device_words * index;
        let cap = if index == 0 { NO_CAP } else { 64 * MIB };
        let figures = [ordinal, live, 2 * live, 2 * MIB, live + 20 * MIB, cap, 4, 10, 6, 1, 2, 30];
        words[at..at + 12].copy_from_slice(&figures);
        match version {
            // What was asked for by a command, and its number: nothing.
            1 => words[at + 12..at + 14].fill(0),
            _ => {
                // Refused by a cap that only warns, the card, its UUID, whether the cap warns.
                let uuid = [0x0706_0504_0302_0100, 0x0F0E_0D0C_0B0A_0908 + index as u64];
                words[at + 12..at + 17].copy_from_slice(&[5, 1 << 30, uuid[0], uuid[1], 0]);
                if version == 3 {
                    // Nothing is free in a cache, all is resident, nothing is paused.
                    words[at + 17..at + 20].copy_from_slice(&[0, live, 0]);
                }
            }
        }
    }
    words
}

fn put_text(words: &mut [u64], text: &[u8]) {
    for (word, chunk) in words.iter_mut().zip(text.chunks(8)) {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        *word = u64::from_le_bytes(bytes);
    }
}

fn write(file: &Path, words: &[u64]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    fs::write(file, bytes).unwrap();
    fs::set_permissions(file, PermissionsExt::from_mode(0o600)).unwrap();
}

/// Where the command looks for a process without a runtime directory.
fn directory() -> PathBuf {
    let directory = PathBuf::from(format!("/dev/shm/vramtrace-{}", testkit::user()));
    let _ = fs::create_dir(&directory);
    fs::set_permissions(&directory, PermissionsExt::from_mode(0o700)).unwrap();
    directory
}

#[track_caller]
fn check_ps(memory: &SharedMemory, version: u64, pid: u32) {
    let processes = memory.ps(&[]);
    let mine: Vec<&Value> = processes.iter().filter(|process| process["pid"] == pid).collect();
    let [mine] = mine[..] else { panic!("version {version}: {processes:#?}") };
    assert_eq!(mine["trace"], "/home/me/run/t.vtrace");
    assert_eq!(mine["group"], if version >= 2 { json!("two-services") } else { Value::Null });
    assert_eq!((&mine["updated_at_s"], &mine["sites"]), (&json!(5.0), &json!([])));
    assert_eq!(mine["devices"].as_array().unwrap().len(), 2, "version {version}");
    for (device, [ordinal, live]) in
        mine["devices"].as_array().unwrap().iter().zip([[0, 7 * MIB], [3, 9 * MIB]])
    {
        let cap = if ordinal == 0 { Value::Null } else { json!(64 * MIB) };
        for (field, expected) in [
            ("ordinal", json!(ordinal)),
            ("live_bytes", json!(live)),
            ("peak_bytes", json!(2 * live)),
            ("counted_bytes", json!(live + 20 * MIB)),
            ("cap_bytes", cap),
            ("live_allocations", json!(4)),
            ("allocations", json!(10)),
            ("refused_by_cap", json!(1)),
            ("refused_by_driver", json!(2)),
            ("would_have_refused", json!(if version >= 2 { 5 } else { 0 })),
            ("total_bytes", json!(if version >= 2 { 1 << 30 } else { 0 })),
            // They knew nothing of memory that sleeps: all that is live is on the card.
            ("resident_bytes", json!(live)),
            ("paused_bytes", json!(0)),
            ("free_cache_bytes", json!(0)),
        ] {
            assert_eq!(device[field], expected, "version {version}: {field}");
        }
    }
    let (status, text, wrong) = memory.command(&[], &["ps"]);
    assert_eq!((status, wrong.contains(&pid.to_string())), (0, false), "{wrong}");
    let line = text.lines().find(|line| line.contains(&pid.to_string())).unwrap();
    assert!(line.contains("cuda:0"), "{text}");
}

/// This process stands for one of an earlier version: one page at a time.
#[test]
fn ps_reads_the_pages_of_the_versions_before() {
    let (memory, directory) = (SharedMemory::new(), directory());
    let me = Member::of_this_process().unwrap();
    let pid = me.pid.to_string();
    let order = ["cap", "--pid", &pid, "--device", "0", "512MiB"];

    // Version 1, and the first of version 2: the file is the page.
    let file = directory.join(format!("{}.{}", me.pid, me.start_ticks));
    for version in [1, 2] {
        write(&file, &page(version, &me));
        check_ps(&memory, version, me.pid);
        let (status, out, wrong) = memory.command(&[], &order);
        let after = fs::read(&file).unwrap();
        let word = |at: usize| u64::from_ne_bytes(after[8 * at..8 * at + 8].try_into().unwrap());
        if version == 1 {
            assert_eq!((status, after.len()), (2, 8192), "version 1 takes no orders: {out}");
            assert!(wrong.contains("is not a page of this version"), "{wrong}");
        } else {
            assert_eq!((status, after.len()), (0, 12288), "{wrong}");
            assert!(out.contains("next CUDA call"), "{out}");
            assert_eq!((word(577), word(576)), (512 * MIB, word(9)), "device 0's order");
        }
        // By its pid alone no process is known to be dead: what starts now leaves it.
        let dead = directory.join(format!("{}.{}", me.pid, me.start_ticks - 1));
        fs::copy(&file, &dead).unwrap();
        drop(InteractiveProgram::start(Setup::simulated().preload()));
        let left = [&file, &dead].map(|file| fs::remove_file(file).is_ok());
        assert_eq!(left, [true; 2], "version {version}");
    }

    // Later ones of version 2, and version 3: the page is a segment, found by the name of its file.
    let here = Namespaces::of_this_process();
    for version in [2, 3] {
        let segment = SharedSegment::new(&page(version, &me));
        let place = format!("{}.{}.{}", here.pid, here.ipc, segment.id);
        let file = directory.join(format!("{}.{}.{place}", me.pid, me.start_ticks));
        write(&file, &page(version, &me));
        check_ps(&memory, version, me.pid);
        let (status, out, wrong) = memory.command(&[], &order);
        assert_eq!(status, 0, "{wrong}");
        assert!(out.contains("next CUDA call"), "{out}");
        assert_eq!((segment.word(577), segment.word(576)), (512 * MIB, segment.word(9)));
        // Its process lives: a later version takes no such page away, whatever its length.
        drop(InteractiveProgram::start(Setup::simulated().preload()));
        assert!(file.exists(), "a process that starts removed the page of one that runs");
        check_ps(&memory, version, me.pid);
        // It is gone with its segment.
        drop(segment);
        drop(InteractiveProgram::start(Setup::simulated().preload()));
        assert!(!file.exists());
    }
}
