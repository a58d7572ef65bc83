//! Single definitions are found again by the place where they were written.

mod common;

use common::any::{definition, fixed};
use common::*;
use proptest::prelude::*;
use vramtrace_format::*;

const SLOTS: [u32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

proptest! {
    #![proptest_config(fixed(60))]

    #[test]
    fn each_definition_is_found_by_its_offset(definitions in proptest::collection::vec(definition(), 1..60)) {
        let windows = grid(&[(WindowKind::Definitions, 1, 0); 8]);
        let mut places = Vec::new();
        let mut each = windows.iter();
        let mut writer = each.next().unwrap().writer();
        for definition in &definitions {
            let mut define = Define::new(definition);
            let offset = loop {
                match writer.define(ThreadId(1), 0, &mut define) {
                    Appended::At { offset, .. } => break offset,
                    Appended::Full => writer = each.next().unwrap().writer(),
                }
            };
            places.push(define.first().unwrap_or(offset));
        }
        let bytes = file(&windows);
        let mut lookup = Lookup::new(&SLOTS, |offset, to: &mut [u8]| {
            let from = offset as usize;
            bytes.get(from..from + to.len()).map(|bytes| to.copy_from_slice(bytes)).is_some()
        });
        for (place, definition) in places.iter().zip(&definitions) {
            let found = lookup.at(*place);
            prop_assert_eq!(found.as_ref(), Some(definition));
        }
        for place in places {
            prop_assert_eq!(lookup.at(place + 8), None);
        }
        prop_assert_eq!(lookup.at(0), None);
        prop_assert_eq!(lookup.at(u64::MAX), None);
    }
}

#[test]
fn early_definitions_are_found_by_their_id() {
    let windows = grid(&[(WindowKind::Definitions, 1, 0)]);
    let code = |id, bytes| Definition::Code {
        id,
        minor: 12,
        name: "f".into(),
        file: "a.py".into(),
        first_line: 7,
        line_table: vec![1; bytes],
    };
    let all = [code(1, 10), code(2, 5000), Definition::Text { id: 3, text: "x".into() }];
    define_all(&windows, &all);
    let bytes = file(&windows);
    let mut lookup = Lookup::new(&[0], |offset, to: &mut [u8]| {
        to.copy_from_slice(&bytes[offset as usize..][..to.len()]);
        true
    });
    assert_eq!(lookup.early(code::DEFINE_CODE, 1).as_ref(), Some(&all[0]));
    assert_eq!(lookup.early(code::DEFINE_CODE, 2).as_ref(), Some(&all[1]));
    assert_eq!(lookup.early(code::DEFINE_CODE, 3), None);
    assert_eq!(lookup.early(0x86, 3).as_ref(), Some(&all[2]));
}
