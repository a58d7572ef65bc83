//! A trace with a limit: what it takes on disk, and what it still answers.

use super::*;
use std::collections::{BTreeSet, HashMap};
use std::os::unix::fs::MetadataExt;
use vramtrace_format::{Purpose, Run, Stamped};

const MIB: u64 = 1 << 20;

/// Address of a block of its own 64 MiB.
fn address(number: u64) -> u64 {
    (number + 1) << 26
}

/// A program with a peak early on, then a long life at a low level.
fn run(recorder: &'static TraceWriter, fake: &Fake, churn: u64) {
    let sites = [site(recorder, 7), site(recorder, 8)];
    let size = |number: u64| 2 * MIB * (1 + number % 5);
    let allocate =
        |number| fake.allocate(recorder, address(number), size(number), sites[number as usize % 2]);
    for number in 0..200 {
        allocate(number);
    }
    // Some windows of history before the peak.
    for _ in 0..20 {
        for number in 200..1200 {
            allocate(number);
            fake.free(recorder, address(number));
        }
    }
    for number in 200..2000 {
        allocate(number);
    }
    for number in 200..2000 {
        fake.free(recorder, address(number));
    }
    // A thread that does not run keeps its window: what the other writes meanwhile would give up the peak.
    let turns = &std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            scope.spawn(move || {
                for i in 0..churn {
                    (i % 1000 == 0).then(|| turns.wait());
                    let number = 10_000 * (thread + 1) + i % 300;
                    allocate(number);
                    if i % 2000 == 0 {
                        recorder.record(&free(1)); // of unknown memory: in nobody's sums
                        fake.ledger.refused(DeviceId(0), vramtrace_format::RefusedBy::Cap, || ());
                    }
                    fake.free(recorder, address(number));
                }
            });
        }
    });
    // One more of each is live at the end.
    allocate(5000);
}

#[derive(Debug, Default, PartialEq)]
struct Answers {
    live: BTreeSet<(u64, u64)>,
    live_bytes: u64,
    highest: u64,
    /// (site, allocations, frees).
    totals: BTreeSet<(u32, u64, u64)>,
}

fn ids_of(events: &[Stamped], purpose: Purpose) -> Vec<u8> {
    let begun = events.iter().filter_map(|one| match one.event {
        Event::StateBegin { id, what, .. } if what == purpose => Some(id),
        _ => None,
    });
    begun.collect()
}

/// Windows that stay for the last copy of the history alone need no checkpoint.
fn is_of_history(reader: &TraceReader, run: &Run) -> bool {
    let ids = ids_of(&reader.events_of(run).collect::<Vec<_>>(), Purpose::Checkpoint);
    let has = |is: &dyn Fn(&Event) -> bool| reader.events_of(run).any(|one| is(&one.event));
    has(&|event| matches!(event, Event::HistoryBin(_)))
        && !has(&|event| matches!(event, Event::StateEnd { id, .. } if ids.contains(id)))
}

/// Replays one run of windows, from the start or from its first whole checkpoint.
fn replay(reader: &TraceReader, run: &Run) -> Answers {
    let events: Vec<_> = reader.events_of(run).collect();
    let mut live = HashMap::new();
    let mut totals: HashMap<u32, (u64, u64)> = HashMap::new();
    let mut from = 0;
    if run.after_gap {
        let ends: Vec<u8> = events
            .iter()
            .filter_map(|one| match one.event {
                Event::StateEnd { id, .. } => Some(id),
                _ => None,
            })
            .collect();
        let begins = |one: &Stamped| match one.event {
            Event::StateBegin { id, what: Purpose::Checkpoint, .. } => {
                ends.contains(&id).then_some(id)
            }
            _ => None,
        };
        from = events.iter().position(|one| begins(one).is_some()).expect("a checkpoint");
        let chosen = begins(&events[from]).unwrap();
        for one in &events[from..] {
            match one.event {
                Event::StateEvent(listed) if listed.state == chosen => {
                    let Event::Alloc(alloc) = listed.event() else { continue };
                    let value = (alloc.size, listed.time_ns >> 6, alloc.site.0);
                    let before = live.insert(alloc.key, value);
                    assert_eq!(before, None, "twice in one checkpoint");
                }
                Event::StateTotals { id, site, allocations, frees, .. } if id == chosen => {
                    let sum = totals.entry(site.0).or_default();
                    *sum = (sum.0 + allocations, sum.1 + frees);
                }
                _ => {}
            }
        }
    }
    let bytes = |live: &HashMap<u64, (u64, u64, u32)>| live.values().map(|one| one.0).sum::<u64>();
    let mut now = bytes(&live);
    let mut highest = now;
    for one in &events[from..] {
        match one.event {
            Event::Alloc(alloc) => {
                let fresh = (alloc.size, one.time_ns >> 6, alloc.site.0);
                if live.get(&alloc.key) == Some(&fresh) {
                    continue;
                }
                assert_eq!(live.insert(alloc.key, fresh), None);
                totals.entry(alloc.site.0).or_default().0 += 1;
                now += alloc.size;
                highest = highest.max(now);
            }
            Event::Free { key, .. } => {
                if let Some((size, _, site)) = live.remove(&key) {
                    totals.entry(site).or_default().1 += 1;
                    now -= size;
                }
            }
            _ => {}
        }
    }
    assert_eq!(now, bytes(&live));
    Answers {
        live: live.iter().map(|(key, one)| (*key, one.0)).collect(),
        live_bytes: now,
        highest,
        totals: totals.into_iter().map(|(site, sum)| (site, sum.0, sum.1)).collect(),
    }
}

fn last_counters(reader: &TraceReader) -> Counters {
    let counters = reader.events().filter_map(|one| match one.event {
        Event::Counters(counters) => Some(counters),
        _ => None,
    });
    counters.last().expect("counters")
}

#[test]
fn ten_times_the_limit_and_the_same_answers() {
    let limit = 4 * MIB;
    // Under a sanitizer ten times take minutes.
    let (churn, times) = if cfg!(sanitized) { (110_000, 2) } else { (440_000, 10) };
    let mut answers = Vec::new();
    for (max, punch) in [("4MiB", true), ("4MiB", false), ("unlimited", true)] {
        let scratch = Scratch::new("bounded");
        let recorder = recorder(scratch.path(), max, |recorder| recorder.means.punch = punch);
        let fake = Fake::default();
        run(recorder, &fake, churn);
        recorder.end(&fake);
        let truth = fake.ledger.counters(DeviceId(0));
        let path = recorder.path().unwrap();
        let on_disk = std::fs::metadata(&path).unwrap().blocks() * 512;
        let bytes = bytes_of(&path);
        let reader = TraceReader::new(&bytes).unwrap();
        let counters = last_counters(&reader);
        assert_eq!(Counters { counted: 0, ..counters }, Counters { counted: 0, ..truth });
        let runs = reader.runs();
        if max == "unlimited" {
            assert!(on_disk > times * limit, "{on_disk}");
            assert_eq!(runs.len(), 1);
        } else {
            // What a copy takes, too.
            assert!(on_disk.max(bytes.len() as u64) < limit * 11 / 10, "{on_disk}");
            assert!(runs.last().unwrap().after_gap, "{runs:?}");
            assert!(reader.history_from_ns() > 0);
            let replayed = runs.iter().filter(|run| !is_of_history(&reader, run));
            let peaks = replayed.map(|run| replay(&reader, run).highest);
            assert_eq!(peaks.max(), Some(truth.peak), "what led to the peak is still there");
        }
        let found = replay(&reader, runs.last().unwrap());
        assert_eq!(found.live_bytes, truth.live);
        assert!(matches!(reader.events().last().unwrap().event, Event::Ended));
        answers.push((found.live, found.totals, counters.peak, counters.refused_by_cap));
    }
    assert!(answers.iter().all(|one| *one == answers[2]));
}

#[test]
fn where_nothing_may_be_erased_totals_go_on() {
    let scratch = Scratch::new("totals");
    let (mut peak, mut live) = (0, 0);
    let path = scratch.path().to_path_buf();
    let (result, stderr) = stderr_of(|| {
        let recorder = recorder(&path, "4MiB", |_| ());
        let (fake, site) = (Fake::default(), site(recorder, 7));
        // The checkpoints of so many take more than the limit.
        (0..90_000).for_each(|number| fake.allocate(recorder, address(number), 512, site));
        (1..90_000).for_each(|number| fake.free(recorder, address(number)));
        recorder.end(&fake);
        let truth = fake.ledger.counters(DeviceId(0));
        std::fs::write(path.join("truth"), format!("{} {}", truth.peak, truth.live)).is_ok()
    });
    assert_eq!(result, Ok(true));
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains("VRAMTRACE_MAX") && stderr.contains("totals"), "{stderr}");
    let truth = std::fs::read_to_string(scratch.path().join("truth")).unwrap();
    for (to, text) in [&mut peak, &mut live].into_iter().zip(truth.split(' ')) {
        *to = text.parse::<u64>().unwrap();
    }
    let path = scratch.path().join("trace.vtrace");
    assert!(std::fs::metadata(&path).unwrap().blocks() * 512 < 4 * MIB * 11 / 10);
    let bytes = bytes_of(&path);
    let reader = TraceReader::new(&bytes).unwrap();
    let counters = last_counters(&reader);
    assert_eq!((counters.peak, counters.live), (peak, live));
    let events: Vec<_> = reader.events().map(|one| one.event).collect();
    let stopped = Event::Stopped { reason: StopReason::CannotPunch, errno: 0 };
    let at = events.iter().position(|event| *event == stopped).expect("stopped");
    // Those that were under way may still have come.
    let later = events[at..].iter().filter(|event| matches!(event, Event::Free { .. }));
    assert!(later.count() <= 2);
    assert_eq!(events.last(), Some(&Event::Ended));
}
