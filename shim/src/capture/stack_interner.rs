//! Assigns ids to stacks: each distinct stack is written to the trace once.
//!
//! Used under a lock that is held briefly, and only for stacks that a thread's workspace does not have.
//! A definition is written to the file before its id is used.

use super::native;
use super::python::Interpreter;
use super::python::code;
use super::python::memory::Plain;
use super::python::walk;
use crate::capture::definitions::DefinitionLocation;
use crate::runtime::elf::Image;
use crate::runtime::fallible::{MakeRoom, TryPush, list_of};
use crate::runtime::hash_table::{KeyedSlot, Table};
use crate::runtime::mapped_modules::Loaded;
use vramtrace_format::{Definition, Join, PythonFrame, StackFlags, StackId};

/// Most distinct stacks of a process.
const STACKS_MOST: u32 = 1 << 20;

/// A captured stack whose id is not known yet.
pub struct Stack<'a> {
    pub flags: StackFlags,
    pub native: &'a [native::Frame],
    pub python: &'a [walk::Frame],
    pub joins: &'a [Join],
    /// The stack of the forward operation whose autograd node runs; 0: none runs, or it is not known.
    pub forward: StackId,
}

#[derive(Default)]
pub struct StackInterner {
    /// The id, by fingerprint.
    stacks: Table<KeyedSlot>,
    codes: Table<KeyedSlot>,
    /// The libraries that are loaded at their addresses now, as far as is known.
    modules: Vec<Known>,
    last_module: u32,
    /// Locations of the definitions of stacks and of code, indexed by id less 1.
    stack_places: Vec<DefinitionLocation>,
    code_places: Vec<DefinitionLocation>,
    /// Stacks of PyTorch's backward pass with those of their forward operations, in the order of their ids.
    forwards: Vec<(StackId, StackId)>,
    /// Room left for definitions.
    room: u64,
    full: StackId,
}

#[derive(PartialEq)]
struct Known {
    start: u64,
    end: u64,
    base: u64,
    path: Vec<u8>,
    build_id: Vec<u8>,
}

impl Known {
    fn holds(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// The path that is written. The loader has none for the program itself.
    fn shown(&self) -> String {
        match self.path.is_empty() {
            true => std::fs::read_link("/proc/self/exe")
                .map_or(String::new(), |path| path.to_string_lossy().into_owned()),
            false => String::from_utf8_lossy(&self.path).into_owned(),
        }
    }
}

/// The result of looking up a stack.
pub struct Interned {
    pub id: StackId,
    /// This is the first stack for which there was no room.
    pub full: bool,
}

impl StackInterner {
    /// `room`: most bytes of definitions.
    pub fn new(room: u64) -> StackInterner {
        StackInterner { room, ..StackInterner::default() }
    }

    /// The location of a stack's definition.
    pub fn stack_location(&self, id: StackId) -> Option<DefinitionLocation> {
        self.stack_places.get((id.0 as usize).checked_sub(1)?).copied()
    }

    /// The stack of the forward operation of a stack in PyTorch's backward pass.
    pub fn forward_of(&self, id: StackId) -> Option<StackId> {
        let at = self.forwards.binary_search_by_key(&id.0, |(stack, _)| stack.0).ok()?;
        Some(self.forwards[at].1)
    }

    /// The location of a code object's definition.
    pub fn code_location(&self, id: u32) -> Option<DefinitionLocation> {
        self.code_places.get((id as usize).checked_sub(1)?).copied()
    }

    /// From now on code is defined again.
    pub fn forget_codes(&mut self) {
        self.codes = Table::default();
    }

    /// The library at this address: its path, and the address relative to it.
    pub fn module_at(&self, address: u64) -> Option<(String, u64)> {
        let known = self.modules.iter().find(|known| known.holds(address))?;
        Some((known.shown(), address.wrapping_sub(known.base)))
    }

    /// The id of a stack. `define` returns `None` once nothing is recorded any more.
    pub fn stack(
        &mut self,
        fingerprint: u64,
        stack: &Stack,
        interpreter: Option<&Interpreter>,
        define: impl Fn(&Definition) -> Option<DefinitionLocation>,
    ) -> Interned {
        let known = |id| Interned { id, full: false };
        if let Some(known_one) = self.stacks.get(fingerprint) {
            return known(StackId(known_one.value));
        }
        if self.full != StackId(0) {
            return known(self.full);
        }
        if self.stack_places.make_room().is_err() {
            return known(StackId(0));
        }
        let id = StackId(self.stack_places.len() as u32 + 1);
        if id.0 > STACKS_MOST || self.room == 0 {
            let definition = Definition::Stack {
                id,
                flags: StackFlags::TOO_MANY,
                native: Vec::new(),
                python: Vec::new(),
                joins: Vec::new(),
            };
            let Some(place) = define(&definition) else { return known(StackId(0)) };
            let _ = self.stack_places.try_push(place);
            self.full = id;
            return Interned { id, full: true };
        }
        let python = stack.python.iter().map(|frame| PythonFrame {
            code: self.code(frame, interpreter, &define),
            last_instruction: frame.last_instruction,
        });
        let frames = (
            list_of(stack.python.len(), python),
            list_of(stack.native.len(), stack.native.iter().map(|frame| frame.address as u64)),
            list_of(stack.joins.len(), stack.joins.iter().copied()),
        );
        let (Ok(python), Ok(native), Ok(joins)) = frames else { return known(StackId(0)) };
        let words = 2 + stack.native.len() + stack.python.len() + stack.joins.len();
        let definition = Definition::Stack { id, flags: stack.flags, native, python, joins };
        let Some(place) = define(&definition) else { return known(StackId(0)) };
        let _ = self.stack_places.try_push(place);
        self.spend(8 * words);
        if stack.forward != StackId(0) {
            define(&Definition::Forward { stack: id, forward: stack.forward });
            let _ = self.forwards.try_push((id, stack.forward));
            self.spend(8 * 3);
        }
        // Without host memory for the table the stack is written again the next time.
        let _ = self.stacks.insert(KeyedSlot { key: fingerprint, value: id.0 });
        known(id)
    }

    /// Number of distinct stacks so far.
    pub fn stacks(&self) -> u64 {
        self.stack_places.len() as u64
    }

    fn spend(&mut self, bytes: usize) {
        self.room = self.room.saturating_sub(bytes as u64);
    }

    /// Returns 0 for code that cannot be read.
    fn code(
        &mut self,
        frame: &walk::Frame,
        interpreter: Option<&Interpreter>,
        define: &impl Fn(&Definition) -> Option<DefinitionLocation>,
    ) -> u32 {
        let fingerprint = frame.identity.max(1);
        if let Some(known) = self.codes.get(fingerprint) {
            return known.value;
        }
        if self.code_places.make_room().is_err() {
            return 0;
        }
        let Some(layout) = interpreter.map(|interpreter| &interpreter.layout) else { return 0 };
        let Some(read) = code::read(&Plain, layout, frame.code) else { return 0 };
        let id = self.code_places.len() as u32 + 1;
        let code::Code { name, file, first_line, line_table } = read;
        let bytes = 64 + name.len() + file.len() + line_table.len();
        let minor = layout.minor;
        let definition = Definition::Code { id, minor, name, file, first_line, line_table };
        let Some(place) = define(&definition) else { return 0 };
        let _ = self.code_places.try_push(place);
        self.spend(bytes);
        let _ = self.codes.insert(KeyedSlot { key: fingerprint, value: id });
        id
    }

    /// Notes a loaded library. Returns true if it replaces another one at these addresses: then equal
    /// addresses no longer mean equal stacks.
    ///
    /// # Safety
    /// The library is loaded now.
    pub unsafe fn module(
        &mut self,
        loaded: &Loaded,
        image: &Image,
        define: impl Fn(&Definition) -> Option<DefinitionLocation>,
    ) -> bool {
        // SAFETY: the library is loaded now (see above).
        let object = unsafe { loaded.object() };
        let (start, end, base) = (loaded.start as u64, loaded.end as u64, image.base as u64);
        #[allow(clippy::disallowed_methods)] // short
        let (path, build_id) = (object.path().to_bytes().to_vec(), image.build_id.to_vec());
        let new = Known { start, end, base, path, build_id };
        if self.modules.contains(&new) {
            return false;
        }
        let count = self.modules.len();
        self.modules.retain(|known| known.end <= start || end <= known.start);
        let replaces = self.modules.len() < count;
        self.add(new, define);
        replaces
    }

    /// Notes code that belongs to no library. Returns true if a library was at its address before.
    pub fn made(
        &mut self,
        code: usize,
        define: impl Fn(&Definition) -> Option<DefinitionLocation>,
    ) -> bool {
        let was_library = |known: &Known| known.holds(code as u64) && known.path != MADE;
        let Some(at) = self.modules.iter().position(was_library) else { return false };
        let before = self.modules.swap_remove(at);
        self.add(Known { base: 0, path: MADE.into(), build_id: Vec::new(), ..before }, define);
        true
    }

    fn add(&mut self, known: Known, define: impl Fn(&Definition) -> Option<DefinitionLocation>) {
        self.last_module += 1;
        let (id, path, &Known { base, start, end, .. }) = (self.last_module, known.shown(), &known);
        self.spend(128 + path.len());
        define(&Definition::Module {
            id,
            path,
            build_id: known.build_id.clone(),
            base,
            start,
            end,
        });
        // Without host memory the library is noted again later.
        let _ = self.modules.try_push(known);
    }
}

/// The path that is written for generated code.
const MADE: &[u8] = b"[made at run time]";

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn stack(native: &[native::Frame]) -> Stack<'_> {
        let forward = StackId(0);
        Stack { flags: StackFlags::default(), native, python: &[], joins: &[], forward }
    }

    #[test]
    fn a_stack_is_written_once() {
        let mut library = StackInterner::new(1 << 20);
        let written = RefCell::new(Vec::new());
        let define = |definition: &Definition| {
            written.borrow_mut().push(definition.clone());
            Some(DefinitionLocation::At(8 * written.borrow().len() as u64))
        };
        let frames = [native::Frame { address: 7, low: 0 }];
        for _ in 0..3 {
            assert_eq!(library.stack(9, &stack(&frames), None, define).id, StackId(1));
        }
        assert_eq!(library.stack(10, &stack(&frames), None, define).id, StackId(2));
        assert_eq!(written.borrow().len(), 2);
        assert_eq!(library.stack_location(StackId(2)), Some(DefinitionLocation::At(16)));
        assert_eq!([0, 3].map(|id| library.stack_location(StackId(id))), [None; 2]);
        assert!(matches!(&written.borrow()[0], Definition::Stack { native, .. } if native == &[7]));
    }

    #[test]
    fn the_forward_operation_is_defined_behind_its_stack() {
        let mut library = StackInterner::new(1 << 20);
        let written = RefCell::new(Vec::new());
        let define = |definition: &Definition| {
            written.borrow_mut().push(definition.clone());
            Some(DefinitionLocation::Early)
        };
        let frames = [native::Frame { address: 7, low: 0 }];
        let backward = Stack { forward: StackId(1), ..stack(&frames) };
        library.stack(9, &stack(&frames), None, define);
        assert_eq!(library.stack(10, &backward, None, define).id, StackId(2));
        assert_eq!(library.stack(10, &backward, None, define).id, StackId(2));
        let found = [1, 2, 3].map(|id| library.forward_of(StackId(id)));
        assert_eq!(found, [None, Some(StackId(1)), None]);
        let written = written.into_inner();
        assert_eq!(written.len(), 3);
        let forward = Definition::Forward { stack: StackId(2), forward: StackId(1) };
        assert!(matches!(written[1], Definition::Stack { id: StackId(2), .. }));
        assert_eq!(written[2], forward);
    }

    #[test]
    fn what_is_not_recorded_has_no_number() {
        let mut library = StackInterner::new(1 << 20);
        assert_eq!(library.stack(9, &stack(&[]), None, |_| None).id, StackId(0));
        assert_eq!(
            library.stack(9, &stack(&[]), None, |_| Some(DefinitionLocation::Early)).id,
            StackId(1)
        );
    }

    #[test]
    fn when_there_is_no_room_the_rest_share_one_number() {
        let mut library = StackInterner::new(100);
        let frames = [native::Frame::default(); 20];
        assert_eq!(
            library.stack(1, &stack(&frames), None, |_| Some(DefinitionLocation::Early)).id,
            StackId(1)
        );
        let first = library.stack(2, &stack(&frames), None, |definition| {
            matches!(definition, Definition::Stack { flags: StackFlags::TOO_MANY, .. })
                .then_some(DefinitionLocation::Early)
        });
        assert!(first.full && first.id == StackId(2));
        let later = library.stack(3, &stack(&frames), None, |_| panic!());
        assert!(!later.full && later.id == StackId(2));
        assert_eq!(library.stack(1, &stack(&frames), None, |_| panic!()).id, StackId(1));
    }
}
