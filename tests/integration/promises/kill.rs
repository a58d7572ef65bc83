//! SIGKILL at random instants: the trace opens, and holds every call that had returned.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;
use testkit::{Program, Scratch, Setup};
use vramtrace_format::{Event, Space, TraceReader};

const THREADS: usize = 3;
const LIVE: usize = 64;
/// u64 allocations, u64 frees, u64 live[LIVE] per thread: see tests/programs/journal.c.
const PER_THREAD: usize = (2 + LIVE) * 8;

/// 200 kills when asked for the whole test (`VRAMTRACE_TEST_FULL=1`), else 40.
fn rounds() -> u64 {
    if std::env::var_os("VRAMTRACE_TEST_FULL").is_some() { 200 } else { 40 }
}

fn word(bytes: &[u8], index: usize) -> u64 {
    u64::from_le_bytes(bytes[index * 8..][..8].try_into().unwrap())
}

#[test]
fn every_returned_call_survives_sigkill() {
    let program = Program::c("journal");
    let mut seed = 0x9E37_79B9u64;
    let mut killed_while_busy = 0;
    for round in 0..rounds() {
        let scratch = Scratch::new();
        let notes = scratch.0.join("notes");
        let setup = Setup::simulated().preload().arg(notes.display()).arg(THREADS);
        let mut child = setup.command(&program.0, &scratch).spawn().unwrap();
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        std::thread::sleep(Duration::from_micros(3_000 + (seed >> 33) % 120_000));
        child.kill().unwrap();
        child.wait().unwrap();

        let traces = scratch.traces();
        // Killed in its first call, it may leave a file without a header page.
        let unbegun = || {
            let is_empty = |path: &&PathBuf| std::fs::metadata(path).unwrap().len() == 0;
            traces.iter().filter(is_empty).for_each(|path| std::fs::remove_file(path).unwrap());
        };
        let notes = std::fs::read(&notes).unwrap_or_default();
        if notes.len() < THREADS * PER_THREAD {
            unbegun();
            continue;
        }
        let journal: Vec<&[u8]> = notes.chunks(PER_THREAD).take(THREADS).collect();
        let allocations: u64 = journal.iter().map(|j| word(j, 0)).sum();
        let frees: u64 = journal.iter().map(|j| word(j, 1)).sum();
        if allocations == 0 {
            unbegun();
            continue; // killed before its first call returned: there need not be a file
        }
        killed_while_busy += 1;
        assert_eq!(traces.len(), 1, "round {round}");

        let bytes = testkit::trace_bytes(&traces[0]);
        let reader = TraceReader::new(&bytes).unwrap_or_else(|e| panic!("round {round}: {e}"));
        let (mut live, mut seen, mut freed) = (HashSet::new(), 0u64, 0u64);
        for stamped in reader.events() {
            match stamped.event {
                Event::Alloc(a) if a.space == Space::Device => {
                    seen += 1;
                    live.insert(a.key);
                }
                Event::Free { key, space: Space::Device, .. } => {
                    freed += 1;
                    live.remove(&key);
                }
                _ => {}
            }
        }
        let (in_trace, returned) = ((seen, freed), (allocations, frees));
        let has_all = seen >= allocations && freed >= frees;
        assert!(has_all, "round {round}: {in_trace:?} in the trace, {returned:?} returned");
        let addresses = journal.iter().flat_map(|j| (2..2 + LIVE).map(|slot| word(j, slot)));
        let lost: Vec<u64> = addresses.filter(|at| *at != 0 && !live.contains(at)).collect();
        assert!(lost.is_empty(), "round {round}: {lost:x?} are lost");
        // The command reads each trace, too.
        if round % 10 == 0 {
            let report = testkit::report(&traces);
            assert_eq!(report["processes"][0]["ended_in_order"], false);
        }
    }
    assert!(killed_while_busy > rounds() / 2, "too few hit a busy program: {killed_while_busy}");
}
