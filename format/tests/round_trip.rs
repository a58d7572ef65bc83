//! What the writer writes, the reader gives back.

mod common;
use common::*;
use vramtrace_format::*;

#[test]
fn pairs_fill_a_window_and_come_back_in_order() {
    let windows = grid(&[(WindowKind::Definitions, 1, 0), (WindowKind::Events, 1, 0)]);
    let definition = Definition::Text { id: 7, text: "x".repeat(10_000) };
    let mut define = Define::new(&definition);
    let appended = windows[0].writer().define(ThreadId(1), 0, &mut define);
    assert!(matches!(appended, Appended::At { offset: 4160, .. }), "{appended:?}");

    let writer = windows[1].writer();
    let (mut written, mut middles) = (Vec::new(), 0);
    'full: for n in 1u64.. {
        for event in [alloc(n << 9, n), free(n << 9)] {
            match writer.append(ThreadId(n as u16), n * 1000, &event) {
                Appended::At { offset, middle, .. } => {
                    written.push((offset, n as u16, n * 1000 / 64 * 64, event));
                    middles += u32::from(middle);
                }
                Appended::Full => break 'full,
            }
        }
    }
    assert!(writer.is_complete());
    assert_eq!(middles, 1);
    assert!(written.len() > 2 * (SLOT - 4096) / 48);

    let bytes = file(&windows);
    let reader = TraceReader::new(&bytes).unwrap();
    assert_eq!(*reader.header(), header());
    assert_eq!(reader.damage(), []);
    assert_eq!(reader.definitions().collect::<Vec<_>>(), [definition]);
    let mut events = reader.events();
    for (offset, thread, time_ns, event) in written {
        let thread = ThreadId(thread);
        assert_eq!(events.next(), Some(Stamped { offset, time_ns, thread, event }));
    }
    assert_eq!(events.next(), None);
    assert_eq!(events.damage(), []);
    assert_eq!(events.unknown() + events.unfinished(), 0);
}
