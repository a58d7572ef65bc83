//! Texts that events refer to by id: names of marks, of kernels, of modules.
//!
//! A program can make names without end (`range_push(f"step {i}")`), so those of marks and those of code
//! each have a number and a sum of bytes of their own: marks never take a kernel's name away.

use crate::runtime::fallible::MakeRoom;
use crate::runtime::fallible_map::Map;
use crate::runtime::lock::Lock;
use crate::runtime::log;
use vramtrace_format::Definition;

/// Most distinct texts of one use.
pub const MOST: usize = 1 << 14;
/// Most bytes of the texts of one use, where the trace has room for them.
const BYTES_MOST: u64 = 16 << 20;

/// What a text is the name of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    Mark,
    Code,
}

/// The name of the marks that have none of their own.
const FURTHER: &str = "(further names)";

#[derive(Default)]
struct Texts {
    ids: Map<Box<str>, u32>,
    bytes: u64,
    /// There is no room for more.
    full: bool,
    /// The id of [`FURTHER`]; 0: not defined yet.
    further: u32,
}

#[derive(Default)]
struct Tables {
    marks: Texts,
    code: Texts,
    last: u32,
}

pub struct Names {
    tables: Lock<Tables>,
    /// Most bytes of the texts of one use.
    room: u64,
}

impl Names {
    /// `limit`: the most bytes of the trace, if it is limited. Definitions stay in it to its end.
    pub fn new(limit: Option<u64>) -> Names {
        let room = limit.map_or(BYTES_MOST, |limit| BYTES_MOST.min(limit / 16));
        Names { tables: Lock::new(Tables::default()), room }
    }

    /// The id of a text; 0: none. `define` writes its definition before the id is handed out; it returns
    /// false when nothing is recorded.
    pub fn id(&self, of: Use, name: &str, define: impl Fn(&Definition) -> bool) -> u32 {
        if name.is_empty() {
            return 0;
        }
        let mut tables = self.tables.lock();
        let Tables { marks, code, last } = &mut *tables;
        let texts = match of {
            Use::Mark => marks,
            Use::Code => code,
        };
        if let Some(id) = texts.ids.get(name) {
            return *id;
        }
        let add = |text: &str, last: &mut u32| {
            let id = *last + 1;
            let is_defined = define(&Definition::Text { id, text: text.to_string() });
            if is_defined {
                *last = id;
            }
            if is_defined { id } else { 0 }
        };
        let bytes = texts.bytes.saturating_add(name.len() as u64);
        if !texts.full && texts.ids.len() < MOST && bytes <= self.room {
            if texts.ids.make_room().is_err() {
                return 0;
            }
            let id = add(name, last);
            if id != 0 {
                texts.bytes = bytes;
                let _ = texts.ids.insert(name.into(), id);
            }
            return id;
        }
        let says = !std::mem::replace(&mut texts.full, true);
        if of == Use::Mark && texts.further == 0 {
            texts.further = add(FURTHER, last);
        }
        let (id, kept) = (texts.further, texts.ids.len());
        drop(tables);
        if says {
            let text = match of {
                Use::Mark => format!(
                    "more than {kept} names of ranges and marks: the trace has further ones as \"{FURTHER}\""
                ),
                Use::Code => format!(
                    "more than {kept} names of kernels and modules: the trace has further ones without a \
                     name"
                ),
            };
            log::line(format_args!("{text}"));
            define(&Definition::Note { text });
        }
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn names_of_marks_leave_room_for_those_of_kernels() {
        let (names, defined) = (Names::new(None), RefCell::new(Vec::new()));
        let define = |new: &Definition| {
            defined.borrow_mut().push(new.clone());
            true
        };
        let ids: Vec<u32> =
            (0..20_000).map(|step| names.id(Use::Mark, &format!("step {step}"), define)).collect();
        let further = MOST as u32 + 1;
        assert!(ids[..MOST].iter().zip(1..).all(|(id, number)| *id == number));
        assert!(ids[MOST..].iter().all(|id| *id == further));
        assert_eq!(names.id(Use::Mark, "step 7", define), 8);
        assert_eq!(names.id(Use::Code, "kernel", define), further + 1);
        for number in 0..=MOST {
            names.id(Use::Code, &format!("kernel {number}"), define);
        }
        assert_eq!(names.id(Use::Code, "another", define), 0);
        let notes = |new: &&Definition| matches!(new, Definition::Note { .. });
        assert_eq!(defined.borrow().iter().filter(notes).count(), 2);
    }

    #[test]
    fn names_take_a_part_of_a_limited_trace() {
        let names = Names::new(Some(4 << 20));
        let long = "x".repeat(4000);
        let given = (0..1000).filter(|n| names.id(Use::Code, &format!("{long}{n}"), |_| true) != 0);
        assert_eq!(given.count(), (256 << 10) / 4003);
    }

    #[test]
    fn a_name_that_was_not_written_is_tried_again() {
        let names = Names::new(None);
        assert_eq!(names.id(Use::Mark, "step", |_| false), 0);
        assert_eq!(names.id(Use::Mark, "step", |_| true), 1);
    }
}
