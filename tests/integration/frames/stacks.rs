//! The stacks of a trace, as its allocations carry them: raw, and as the reader names them.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

use vramtrace_format::{Definition, Event, Join, StackFlags, StackId, TraceReader};
use vramtrace_reader::symbols::{Frame, Symbols};
use vramtrace_reader::trace::open;

/// One stack as it was written.
#[derive(Clone, Debug)]
pub struct Raw {
    pub flags: StackFlags,
    pub native: Vec<u64>,
    pub python: usize,
    pub joins: Vec<Join>,
    /// Where libraries were at that time.
    pub modules: Rc<Vec<Library>>,
}

#[derive(Clone, Debug)]
pub struct Library {
    pub range: Range<u64>,
    pub base: u64,
    pub path: String,
}

impl Raw {
    /// The library that holds a return address.
    pub fn library(&self, address: u64) -> Option<&Library> {
        self.modules.iter().rev().find(|module| module.range.contains(&(address - 1)))
    }
}

pub struct Stacks {
    symbols: Symbols,
    raw: HashMap<StackId, Raw>,
    of_size: HashMap<u64, StackId>,
}

impl Stacks {
    pub fn of(path: &Path) -> Stacks {
        let bytes = testkit::trace_bytes(path);
        let reader = TraceReader::new(&bytes).unwrap();
        let (mut raw, mut of_size) = (HashMap::new(), HashMap::new());
        let mut modules = Rc::new(Vec::new());
        for definition in reader.definitions() {
            match definition {
                Definition::Module { start, end, base, path, .. } => {
                    Rc::make_mut(&mut modules).push(Library { range: start..end, base, path });
                }
                Definition::Stack { id, flags, native, python, joins } => {
                    let (python, modules) = (python.len(), modules.clone());
                    raw.insert(id, Raw { flags, native, python, joins, modules });
                }
                _ => {}
            }
        }
        for stamped in reader.events() {
            if let Event::Alloc(alloc) = stamped.event {
                of_size.insert(alloc.size, alloc.stack);
            }
        }
        let trace = open(path).unwrap();
        let (definitions, damage) = trace.definitions();
        assert!(damage.is_empty(), "{damage:?}");
        let symbols = Symbols::of_all(&definitions, trace.header());
        Stacks { symbols, raw, of_size }
    }

    pub fn raw(&self, size: u64) -> &Raw {
        let id = self.of_size.get(&size).unwrap_or_else(|| panic!("no allocation of {size}"));
        self.raw.get(id).unwrap_or_else(|| panic!("size {size}: stack {id:?} is not defined"))
    }

    /// Each once, raw and named.
    pub fn all(&self) -> impl Iterator<Item = (&Raw, Vec<&Frame>)> {
        self.raw.iter().map(|(id, raw)| (raw, self.symbols.stack(*id).collect()))
    }

    /// Innermost first, both languages merged.
    pub fn named(&self, size: u64) -> Vec<&Frame> {
        self.symbols.stack(self.of_size[&size]).collect()
    }
}
