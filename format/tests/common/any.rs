//! Any event, any definition.
#![allow(dead_code)]

use proptest::prelude::*;
use proptest::sample::select;
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
    (code, numbers()).prop_map(|(code, numbers)| Event::any(code, numbers.into_iter()).unwrap())
}

/// With fewer of them the fields at the end of a record are not there.
fn numbers() -> impl Strategy<Value = Vec<u64>> {
    proptest::collection::vec(prop_oneof![2 => number(), 1 => key()], 0..18)
}

fn event_of(name: &str) -> u8 {
    let found = Event::KINDS.iter().find(|(_, known)| *known == name);
    found.map(|(code, _)| *code).expect("a kind of event")
}

/// Any definition of the table. Some are longer than a record.
pub fn definition() -> impl Strategy<Value = Definition> {
    let all: Vec<u8> = Definition::KINDS.iter().map(|(code, _)| *code).collect();
    let any = |(code, numbers): (u8, Vec<u64>)| Definition::any(code, numbers.into_iter());
    (select(all), numbers()).prop_map(move |of| any(of).unwrap())
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
