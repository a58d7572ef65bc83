//! Any events and definitions survive the way through a file.

mod common;

use common::any::{definition, event, fixed};
use common::*;
use proptest::prelude::*;
use vramtrace_format::*;

fn threads_times_events(most: usize) -> impl Strategy<Value = Vec<(u16, u64, Event)>> {
    let step = prop_oneof![8 => 0..100_000u64, 1 => 0..(7u64 << 43)];
    proptest::collection::vec((any::<u16>(), step, event()), 1..most).prop_map(|events| {
        let mut time = 0;
        let stamp = |(thread, step, event)| {
            time += step >> 6 << 6;
            (thread, time, event)
        };
        events.into_iter().map(stamp).collect()
    })
}

proptest! {
    #![proptest_config(fixed(200))]

    #[test]
    fn events_come_back(events in threads_times_events(200)) {
        let windows = grid(&[(WindowKind::Events, 1, 0), (WindowKind::Events, 2, 0)]);
        let written = append_all(&windows, &events);
        let (_, given, damage) = read(&file(&windows)).unwrap();
        let given: Vec<_> = given.into_iter().filter(|s| s.event != Event::Anchor).collect();
        prop_assert_eq!(given, written);
        prop_assert_eq!(damage, []);
    }

    #[test]
    fn definitions_come_back(definitions in proptest::collection::vec(definition(), 1..60)) {
        let windows = grid(&[(WindowKind::Definitions, 1, 0); 8]);
        define_all(&windows, &definitions);
        let (given, _, damage) = read(&file(&windows)).unwrap();
        prop_assert_eq!(given, definitions);
        prop_assert_eq!(damage, []);
    }

    /// Each of the last records may be in any state that a killed writer leaves.
    #[test]
    fn a_writer_stopped_anywhere_costs_only_its_own_record(
        events in threads_times_events(120),
        stages in proptest::collection::vec((any::<proptest::sample::Index>(), 0..4u8), 0..20),
    ) {
        let windows = grid(&[(WindowKind::Events, 1, 0)]);
        let written = append_all(&windows, &events);
        let mut bytes = file(&windows);
        let mut lost = std::collections::HashSet::new();
        for (which, stage) in stages {
            let at = written[which.index(written.len())].offset as usize;
            if !lost.insert(at as u64) {
                continue;
            }
            let len = 8 * bytes[at + 4] as usize;
            // The kind and the check come last.
            bytes[at + 5] = 0;
            bytes[at..at + 2].fill(0);
            match stage {
                0 => bytes[at..at + len].fill(0),
                1 => bytes[at + 8..at + len].fill(0),
                2 => bytes[at + len - 8..at + len].fill(0),
                _ => {}
            }
        }
        let (_, given, damage) = read(&bytes).unwrap();
        let given: Vec<_> = given.into_iter().filter(|s| s.event != Event::Anchor).collect();
        let kept = |s: &&Stamped| !lost.contains(&s.offset);
        // A lost anchor may cost the times behind it, so compare the rest.
        let plain = |s: &Stamped| (s.offset, s.thread, s.event);
        prop_assert_eq!(
            given.iter().map(plain).collect::<Vec<_>>(),
            written.iter().filter(kept).map(plain).collect::<Vec<_>>()
        );
        prop_assert_eq!(damage, []);
    }

    #[test]
    fn the_header_comes_back(
        words in any::<[u64; 4]>(),
        uuid in any::<[u8; 16]>(),
        options in any::<[Option<u32>; 4]>(),
        max_bytes in any::<Option<u64>>(),
        run in proptest::option::of(1u64..),
        tail in any::<Option<bool>>(),
        texts in any::<[String; 3]>(),
        command in proptest::collection::vec(any::<String>(), 0..200),
    ) {
        let [host, executable, working_directory] = texts;
        let header = Header {
            uuid,
            pid: words[0] as u32,
            parent_pid: (words[0] >> 32) as u32,
            process_start_ticks: words[1],
            start_unix_ns: words[2],
            start_mono_ns: words[3],
            host, executable, working_directory, command,
            rank: options[0],
            local_rank: options[1],
            world_size: options[2],
            driver_version: options[3],
            max_bytes,
            run,
            tail: tail.map(|beside| if beside { TailPlace::Beside } else { TailPlace::Memory }),
            ..common::header()
        };
        let page = header.to_page();
        let given = TraceReader::new(&page).unwrap().header().clone();
        prop_assert!(header.command.len() >= given.command.len());
        for (given, argument) in given.command.iter().zip(&header.command) {
            prop_assert!(argument.starts_with(given.as_str()));
        }
        if header.command.iter().map(|a| a.len() + 2).sum::<usize>() < 1500 {
            prop_assert_eq!(given, header);
        }
    }
}

#[test]
fn pairs_fill_a_window_and_come_back_in_order() {
    let windows = grid(&[(WindowKind::Definitions, 1, 0), (WindowKind::Events, 1, 0)]);
    let definition = Definition::Text { id: 7, text: "x".repeat(10_000) };
    let mut define = Define::new(&definition);
    let appended = windows[0].writer().define(ThreadId(1), 0, &mut define);
    assert!(matches!(appended, Appended::At { offset: 4160, .. }), "{appended:?}");

    let writer = windows[1].writer();
    let (mut written, mut middles) = (Vec::new(), 0);
    for (n, event) in
        (1u64..).flat_map(|n| [alloc(n << 9, n), free(n << 9)].map(|event| (n, event)))
    {
        let thread = ThreadId(n as u16);
        let appended = writer.append(thread, n * 1000, &event);
        let Appended::At { offset, middle, .. } = appended else { break };
        written.push(Stamped { offset, time_ns: n * 1000 / 64 * 64, thread, event });
        middles += u32::from(middle);
    }
    assert!(writer.is_complete());
    assert_eq!(middles, 1);
    assert!(written.len() > 2 * (SLOT - 4096) / 48);
    let bytes = file(&windows);
    assert_eq!(*TraceReader::new(&bytes).unwrap().header(), common::header());
    assert_eq!(read(&bytes), Ok((vec![definition], written, vec![])));
}
