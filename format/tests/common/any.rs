//! Any event, any definition.
#![allow(dead_code)]

use std::sync::OnceLock;

use proptest::prelude::*;
use proptest::sample::select;
use vramtrace_format::word::{Head, SMALL_MASK};
use vramtrace_format::*;

/// A time as a record holds it: whole ticks.
pub fn time() -> impl Strategy<Value = u64> {
    (0..1u64 << 58).prop_map(|ticks| ticks << 6)
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0..100u64, Just(0), Just(u64::MAX)]
}

fn key() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), (0..1u64 << 40).prop_map(|n| n << 9), (1u64 << 49)..(1 << 50)]
}

/// Any event of the table, with more allocations and frees. No anchors: those the writer puts by
/// itself.
pub fn event() -> impl Strategy<Value = Event> {
    let all = Event::KINDS.iter().filter(|(_, name)| *name != "Anchor");
    let all: Vec<u8> = all.map(|(code, _)| *code).collect();
    let often = vec![event_of("Alloc"), event_of("Free")];
    let code = prop_oneof![2 => select(often), 5 => select(all)];
    (code, numbers()).prop_map(|(code, numbers)| event_near(code, &numbers))
}

/// With fewer of them the fields at the end of a record are not there.
fn numbers() -> impl Strategy<Value = Vec<u64>> {
    proptest::collection::vec(prop_oneof![2 => number(), 1 => key()], 0..15)
}

fn event_of(name: &str) -> u8 {
    let found = Event::KINDS.iter().find(|(_, known)| *known == name);
    found.map(|(code, _)| *code).expect("a kind of event")
}

/// An event of this kind whose record has these words, the first as its small fields: as they are, or, where they are not
/// values of the fields, with small numbers and more words.
pub fn event_near(code: u8, numbers: &[u64]) -> Event {
    let small = numbers.first().copied().unwrap_or(0);
    let body = numbers.get(1..).unwrap_or_default();
    let whole: Vec<u64> = body.iter().copied().chain(std::iter::repeat(0)).take(14).collect();
    let smalls = [small, small & 0x03_0303_0303, 0x01_0101_0101, 0x02_0202_0202, 3];
    let mut tries = smalls.into_iter().flat_map(|small| [(small, body), (small, &whole)]);
    let found = tries.find_map(|(small, body)| decoded(code, small & SMALL_MASK, body));
    found.unwrap_or_else(|| panic!("kind {code:#x}: {numbers:?}"))
}

/// The event that a reader finds in a record.
fn decoded(code: u8, small: u64, body: &[u64]) -> Option<Event> {
    static BEGIN: OnceLock<Vec<u8>> = OnceLock::new();
    let begin = BEGIN.get_or_init(|| {
        let windows = super::grid(&[(WindowKind::Events, 1, 0)]);
        let _ = windows[0].writer();
        super::file(&windows)[..HEADER_BYTES + 64].to_vec()
    });
    let head = Head { time_lo: 0, kind: code, len: 0, thread: 1, check: 0 };
    let mut bytes = begin.clone();
    bytes.resize(begin.len() + 16 + 8 * body.len(), 0);
    super::put(&mut bytes, begin.len(), head, &[&[small], body].concat());
    let reader = TraceReader::new(&bytes).unwrap();
    reader.events().next().map(|at| at.event)
}

/// Any definition of the table. Some are longer than a record.
pub fn definition() -> impl Strategy<Value = Definition> {
    let long = || (700..1500usize).prop_map(|length| "ß".repeat(length));
    let text = || prop_oneof![6 => ".{0,12}", 1 => long()];
    let bytes = (any::<u8>(), 0..3000usize)
        .prop_map(|(first, length)| (0..length).map(|n| first.wrapping_add(n as u8)).collect());
    let words = (number(), 0..300u64)
        .prop_map(|(first, length)| (0..length).map(|n| first.wrapping_mul(2 * n + 1)).collect());
    (0..14u8, [number(), number(), number(), number()], [text(), text()], bytes, words).prop_map(
        |(kind, numbers, texts, bytes, words)| of_kind(kind, numbers, texts, bytes, words),
    )
}

fn of_kind(
    kind: u8,
    n: [u64; 4],
    [name, text]: [String; 2],
    bytes: Vec<u8>,
    words: Vec<u64>,
) -> Definition {
    let id = n[0] as u32;
    let device = DeviceId(n[1] as u8);
    match kind {
        0 => Definition::Api { id: id as u16, name },
        1 => Definition::Thread { id: ThreadId(id as u16), tid: n[1] as u32, name },
        2 => {
            let uuid = u128::from(n[2]).to_le_bytes();
            Definition::Device { id: device, mig: n[0] & 1 == 1, uuid, total_bytes: n[3], name }
        }
        3 => {
            let id = ContextId(id as u16);
            Definition::Context { id, device, primary: n[2] & 1 == 1, handle: n[3] }
        }
        4 => {
            let origin = PoolOrigin::ALL[n[2] as usize % PoolOrigin::COUNT];
            Definition::Pool { id: PoolId(id as u16), device, origin, handle: n[3] }
        }
        5 => Definition::Site {
            id: SiteId(id),
            device,
            api: n[2] as u16,
            context: ContextId((n[2] >> 16) as u16),
            pool: PoolId((n[2] >> 32) as u16),
            kind: Kind::from_u8((n[2] >> 48) as u8 & 15),
            stream: n[3],
        },
        6 => Definition::Text { id, text },
        7 => Definition::Note { text },
        8 => {
            let [_, base, start, end] = n;
            Definition::Module { id, base, start, end, path: name, build_id: bytes }
        }
        9 => {
            let (minor, first_line) = (n[1] as u8, n[2] as i32);
            Definition::Code { id, minor, first_line, name, file: text, line_table: bytes }
        }
        10 => {
            let python = words
                .iter()
                .map(|n| PythonFrame { code: *n as u32, last_instruction: (n >> 32) as i32 });
            let joins =
                words.iter().map(|n| Join { python: *n as u32, native: (n >> 32) as u32 }).take(9);
            let (python, joins) = (python.collect(), joins.collect());
            Definition::Stack {
                id: StackId(id),
                flags: StackFlags(n[1] as u8),
                native: words,
                python,
                joins,
            }
        }
        11 => Definition::Setting { name, value: text },
        12 => {
            let name = |n: &u64| NativeName {
                function: *n as u32,
                file: (n >> 32) as u32,
                line: !*n as u32,
            };
            Definition::Names { module: id, address: n[1], names: words.iter().map(name).collect() }
        }
        _ => Definition::Forward { stack: StackId(id), forward: StackId(n[1] as u32) },
    }
}

/// A fixed seed: the 16-bit check lets one damaged record in 65,536 pass.
pub fn fixed(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(20_250_101),
        ..ProptestConfig::default()
    }
}
