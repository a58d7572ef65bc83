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

fn site() -> impl Strategy<Value = SiteId> {
    prop_oneof![Just(0), any::<u32>()].prop_map(SiteId)
}

fn stack() -> impl Strategy<Value = StackId> {
    any::<u32>().prop_map(StackId)
}

fn device() -> impl Strategy<Value = DeviceId> {
    any::<u8>().prop_map(DeviceId)
}

fn context() -> impl Strategy<Value = ContextId> {
    any::<u16>().prop_map(ContextId)
}

fn pool() -> impl Strategy<Value = PoolId> {
    any::<u16>().prop_map(PoolId)
}

/// Any event of the table, with more allocations and frees. No anchors: those the writer puts by
/// itself.
pub fn event() -> impl Strategy<Value = Event> {
    let all = Event::KINDS.iter().filter(|(_, name)| *name != "Anchor");
    let all: Vec<u8> = all.map(|(code, _)| *code).collect();
    let often = vec![event_of("Alloc"), event_of("Free")];
    let code = prop_oneof![2 => select(often), 5 => select(all)];
    let numbers = proptest::collection::vec(prop_oneof![2 => number(), 1 => key()], 16);
    (code, numbers).prop_map(|(code, numbers)| Event::any(code, numbers.into_iter()).unwrap())
}

fn event_of(name: &str) -> u8 {
    let found = Event::KINDS.iter().find(|(_, known)| *known == name);
    found.map(|(code, _)| *code).expect("a kind of event")
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => proptest::collection::vec(any::<char>(), 0..30).prop_map(String::from_iter),
        // Long ones go in parts.
        1 => (any::<char>(), 200..3000usize).prop_map(|(c, n)| c.to_string().repeat(n)),
        1 => (1900..2100usize).prop_map(|n| "x".repeat(n)),
    ]
}

pub fn definition() -> impl Strategy<Value = Definition> {
    use PoolOrigin::*;
    let origin = prop_oneof![Just(Default), Just(Created), Just(Imported)];
    let kind = proptest::option::of(select(&Kind::ALL[..]));
    prop_oneof![
        (any::<u16>(), text()).prop_map(|(id, name)| Definition::Api { id, name }),
        (any::<u16>(), any::<u32>(), text()).prop_map(|(id, tid, name)| Definition::Thread {
            id: ThreadId(id),
            tid,
            name
        }),
        (device(), any::<[u8; 16]>(), text(), number(), any::<bool>()).prop_map(
            |(id, uuid, name, total_bytes, mig)| Definition::Device {
                id,
                uuid,
                name,
                total_bytes,
                mig
            }
        ),
        (context(), device(), number(), any::<bool>()).prop_map(|(id, device, handle, primary)| {
            Definition::Context { id, device, handle, primary }
        }),
        (pool(), device(), number(), origin).prop_map(|(id, device, handle, origin)| {
            Definition::Pool { id, device, handle, origin }
        }),
        (site(), any::<u16>(), kind, device(), context(), pool(), number()).prop_map(
            |(id, api, kind, device, context, pool, stream)| Definition::Site {
                id,
                api,
                kind,
                device,
                context,
                pool,
                stream
            }
        ),
        (any::<u32>(), text()).prop_map(|(id, text)| Definition::Text { id, text }),
        (any::<u32>(), any::<u32>()).prop_map(|(stack, forward)| Definition::Forward {
            stack: StackId(stack),
            forward: StackId(forward)
        }),
        text().prop_map(|text| Definition::Note { text }),
        (text(), text()).prop_map(|(name, value)| Definition::Setting { name, value }),
        module(),
        code(),
        stack_definition(),
        names(),
    ]
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => proptest::collection::vec(any::<u8>(), 0..40),
        1 => proptest::collection::vec(any::<u8>(), 1500..5000),
    ]
}

fn module() -> impl Strategy<Value = Definition> {
    (any::<u32>(), text(), bytes(), number(), number(), number()).prop_map(
        |(id, path, build_id, base, start, end)| Definition::Module {
            id,
            path,
            build_id,
            base,
            start,
            end,
        },
    )
}

fn code() -> impl Strategy<Value = Definition> {
    (any::<u32>(), any::<u8>(), text(), text(), any::<i32>(), bytes()).prop_map(
        |(id, minor, name, file, first_line, line_table)| Definition::Code {
            id,
            minor,
            name,
            file,
            first_line,
            line_table,
        },
    )
}

fn names() -> impl Strategy<Value = Definition> {
    let name = (any::<u32>(), any::<u32>(), any::<u32>())
        .prop_map(|(function, file, line)| NativeName { function, file, line });
    let length = prop_oneof![4 => 0..6usize, 1 => 120..200usize];
    let names = length.prop_flat_map(move |n| proptest::collection::vec(name.clone(), n));
    (any::<u32>(), number(), names).prop_map(|(module, address, names)| Definition::Names {
        module,
        address,
        names,
    })
}

fn stack_definition() -> impl Strategy<Value = Definition> {
    let frame = (any::<u32>(), any::<i32>())
        .prop_map(|(code, last_instruction)| PythonFrame { code, last_instruction });
    let join = (any::<u32>(), any::<u32>()).prop_map(|(python, native)| Join { python, native });
    let lengths = || prop_oneof![4 => 0..20usize, 1 => 120..400usize];
    (
        any::<u32>(),
        any::<u8>(),
        lengths().prop_flat_map(|n| proptest::collection::vec(any::<u64>(), n)),
        lengths().prop_flat_map(move |n| proptest::collection::vec(frame.clone(), n)),
        proptest::collection::vec(join, 0..6),
    )
        .prop_map(|(id, flags, native, python, joins)| Definition::Stack {
            id: StackId(id),
            flags: StackFlags(flags),
            native,
            python,
            joins,
        })
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
