//! Names for stacks: functions, files, lines, libraries; native and Python frames as one stack.
//!
//! Each address and each Python instruction is named once, the addresses of a library in one pass
//! over its file. What cannot be named is listed in [`Symbols::problems`], never guessed.

mod debug_file;
pub mod frame;
pub mod known_names;
mod limits;
pub mod native;
pub mod notebooks;
mod outside;
mod packed;
mod torch_version;

pub use frame::{Frame, Language, base_name};
pub use native::demangle;
pub use packed::{PackLimits, Packed};
pub use torch_version::torch_version;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use indexmap::IndexSet;
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};
use vramtrace_format::{Definition, Header, NativeName, PythonFrame, StackFlags, StackId, lines};

use crate::trace::{Address, Definitions, HostFiles, Module, Stack, Stacks};
use native::{FileNames, ResolvedFrame, Unnamed};
use notebooks::Cells;
use vramtrace_format::cells;
use vramtrace_format::layers::{Layer, Places};
use vramtrace_format::stack_order::{self, FrameOrigin, Which};

/// Maximum number of callers of an address that are examined: two functions decide.
const MAX_CALLERS: usize = 64;

/// Stands for memory of a framework's cache that is in no block: the id of no recorded stack.
pub const FREE_CACHE: StackId = StackId(u32::MAX);
/// What people read in place of its frames.
pub const FREE_CACHE_NAME: &str = "free in cache";

/// The named stacks of one trace. Copies share one table.
#[derive(Clone, Debug, Default)]
pub struct Symbols(Arc<SymbolTable>);

impl Deref for Symbols {
    type Target = SymbolTable;

    fn deref(&self) -> &SymbolTable {
        &self.0
    }
}

#[derive(Clone, Debug, Default)]
pub struct SymbolTable {
    frames: Vec<Frame>,
    stacks: FxHashMap<StackId, Named>,
    /// Of stacks in PyTorch's backward pass: the stack of the forward operation.
    forward: FxHashMap<StackId, StackId>,
    /// Indexes of the native functions that only allocate for others: their names say that they allocate, and several
    /// functions call them in the stacks of the trace, also in those that are not in this table.
    pub wrappers: FxHashSet<u32>,
    problems: Vec<String>,
    /// See [`Definitions::patched_by`]; as the libraries of the frames.
    pub patched_by: Vec<String>,
}

#[derive(Clone, Debug)]
struct Named {
    flags: StackFlags,
    /// Indexes among the frames, innermost first.
    frames: Box<[u32]>,
}

impl Symbols {
    /// Names the wanted stacks, and those of their forward operations. Ids that are not defined are passed over.
    pub fn of(
        definitions: &Definitions,
        header: &Header,
        wanted: impl IntoIterator<Item = StackId>,
    ) -> Symbols {
        let stacks = definitions.stacks();
        let mut namer = Namer::new(definitions, header);
        let mut wanted: FxHashSet<StackId> = wanted.into_iter().collect();
        if wanted.remove(&FREE_CACHE) {
            // The stack that stands for free memory in a framework's cache.
            let frame = namer.frame(Frame::named(Language::Native, FREE_CACHE_NAME.into()));
            let named = Named { flags: StackFlags(0), frames: [frame].into() };
            namer.symbols.stacks.insert(FREE_CACHE, named);
        }
        let forward = |id: &StackId| Some((*id, stacks.forward_of(*id)?));
        namer.symbols.forward = wanted.iter().filter_map(forward).collect();
        wanted.extend(namer.symbols.forward.values());
        let mut wanted: Vec<(StackId, &Stack)> =
            wanted.into_iter().filter_map(|id| Some((id, stacks.get(id)?))).collect();
        wanted.sort_unstable_by_key(|(id, _)| *id);
        let addresses = WantedAddresses::of(stacks, header, wanted.iter().map(|(_, stack)| *stack));
        namer.places.extend(
            addresses
                .hidden
                .into_iter()
                .map(|(index, origin)| (index, AddressFrames { origin, frames: Vec::new() })),
        );
        namer.name_modules(addresses.modules);
        for (id, stack) in wanted {
            namer.name_stack(id, stack);
        }
        namer.find_wrappers();
        namer.symbols.frames = namer.frames.into_iter().collect();
        Symbols(Arc::new(namer.symbols))
    }

    /// Of all stacks of the trace.
    pub fn of_all(definitions: &Definitions, header: &Header) -> Symbols {
        Symbols::of(definitions, header, definitions.stacks().ids())
    }
}

impl SymbolTable {
    /// Innermost first. Empty for a stack that is not known, or has no frames.
    pub fn stack(&self, id: StackId) -> impl DoubleEndedIterator<Item = &Frame> + Clone {
        self.indexes(id).iter().map(|index| &self.frames[*index as usize])
    }

    /// The same as indexes into [`Symbols::frames`].
    pub fn indexes(&self, id: StackId) -> &[u32] {
        self.stacks.get(&id).map_or(&[], |named| &named.frames)
    }

    /// The stack of the forward operation whose autograd node this stack runs, which is in this table too.
    pub fn forward_of(&self, id: StackId) -> Option<StackId> {
        self.forward.get(&id).copied()
    }

    /// Every frame once.
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// Why a stack without frames has none.
    pub fn why_empty(&self, id: StackId) -> &'static str {
        match self.stacks.get(&id).map(|named| named.flags) {
            _ if id == StackId(0) => "no stack was taken",
            None => "its stack is not in the trace",
            Some(flags) if flags.has(StackFlags::TOO_MANY) => {
                "stacks that came when the recorder had room for no more"
            }
            Some(flags)
                if flags.has(StackFlags::NATIVE_OFF)
                    && (flags.has(StackFlags::NO_PYTHON_THREAD)
                        || flags.has(StackFlags::NO_PYTHON_FRAMES)) =>
            {
                "a thread without Python frames"
            }
            Some(_) => "a stack without frames",
        }
    }

    /// Libraries that gave no names, and why. One line each.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }
}

/// The addresses that stacks need names for.
struct WantedAddresses {
    /// By index, with what they are: never shown.
    hidden: FxHashMap<u32, FrameOrigin>,
    /// Index and place in the file, by index of the module.
    modules: BTreeMap<Option<u32>, Vec<(u32, u64)>>,
}

impl WantedAddresses {
    fn of<'t>(
        stacks: &Stacks,
        header: &Header,
        wanted: impl Iterator<Item = &'t Stack>,
    ) -> WantedAddresses {
        let origin =
            |module: &Module| FrameOrigin::of_library(&path_of(module, header).to_string_lossy());
        let origins: Vec<FrameOrigin> = stacks.modules().iter().map(origin).collect();
        let mut all = WantedAddresses { hidden: FxHashMap::default(), modules: BTreeMap::new() };
        let mut seen: FxHashSet<u32> = FxHashSet::default();
        for stack in wanted {
            for index in &stack.native {
                let Address { module, at } = stacks.addresses()[*index as usize];
                let origin = module.map_or(FrameOrigin::Shown, |module| origins[module as usize]);
                // What is hidden needs no name: an interpreter's debug information is large.
                if stack_order::is_hidden(origin, !stack.python.is_empty()) {
                    all.hidden.insert(*index, origin);
                } else if seen.insert(*index) {
                    all.modules.entry(module).or_default().push((*index, at));
                }
            }
        }
        all
    }
}

/// Names for return addresses of a library, from the library itself.
fn ask(
    files: Option<&dyn HostFiles>,
    module: &Module,
    path: &Path,
    addresses: &[u64],
) -> Result<FileNames, Unnamed> {
    // The kernel's page is no file.
    let asked = files.filter(|_| !addresses.is_empty() && !module.path.starts_with('['));
    let Some(files) = asked else {
        let names = vec![Vec::new(); addresses.len()];
        return Ok(FileNames { names, ..FileNames::default() });
    };
    let calls: Vec<u64> = addresses.iter().map(|at| at.saturating_sub(1)).collect();
    known_names::names(files, path, &module.build_id, &calls)
}

/// What a file does not say, as a line. Libraries of the system and of frameworks come without symbols: only of the
/// program's own files is that said.
fn problem(path: &Path, places: &Places, found: &Result<FileNames, Unnamed>) -> Option<String> {
    let own = || places.native(path.to_str(), "") >= Layer::Package;
    let path = path.display();
    match found {
        Ok(FileNames { without_lines: Some(limit), .. }) => Some(format!(
            "{path}: its debug information {limit}; its functions have no files and lines"
        )),
        Ok(FileNames { stripped: Some(stripped), .. }) if own() => {
            Some(format!("{path}: {stripped}; its functions have no names"))
        }
        Ok(_) => None,
        Err(why) => Some(format!("{path}: {why}; its functions have no names")),
    }
}

/// The main program has no name with some loaders; a relative one is of where it was started.
fn path_of(module: &Module, header: &Header) -> PathBuf {
    loaded_path(&module.path, header)
}

fn loaded_path(path: &str, header: &Header) -> PathBuf {
    match path {
        "" => PathBuf::from(&header.executable),
        path if path.starts_with('[') => PathBuf::from(path),
        path => Path::new(&header.working_directory).join(path),
    }
}

/// Frames at one native address: several where functions were inlined.
#[derive(Clone, Debug, Default)]
struct AddressFrames {
    origin: FrameOrigin,
    frames: Vec<u32>,
}

struct Namer<'s> {
    definitions: &'s Definitions,
    header: &'s Header,
    own_places: Places,
    symbols: SymbolTable,
    frames: IndexSet<Frame, FxBuildHasher>,
    /// By index of the address; those that are wanted.
    places: FxHashMap<u32, AddressFrames>,
    python: FxHashMap<PythonFrame, u32>,
    texts: FxHashSet<Arc<str>>,
    /// Of the notebooks beside the program; read at the first cell.
    cells: Option<Cells>,
    /// The problems: a trace may name a million libraries.
    said: FxHashSet<String>,
}

impl<'s> Namer<'s> {
    fn new(definitions: &'s Definitions, header: &'s Header) -> Namer<'s> {
        let path = |path: &String| loaded_path(path, header).to_string_lossy().into_owned();
        let patched_by = definitions.patched_by.iter().map(path).collect();
        Namer {
            definitions,
            header,
            own_places: Places::of(header),
            symbols: SymbolTable { patched_by, ..SymbolTable::default() },
            frames: IndexSet::default(),
            places: FxHashMap::default(),
            python: FxHashMap::default(),
            texts: FxHashSet::default(),
            cells: None,
            said: FxHashSet::default(),
        }
    }

    fn frame(&mut self, frame: Frame) -> u32 {
        self.frames.insert_full(frame).0 as u32
    }

    fn text(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return Arc::clone(known);
        }
        let shared: Arc<str> = text.into();
        self.texts.insert(Arc::clone(&shared));
        shared
    }

    fn name_modules(&mut self, modules: BTreeMap<Option<u32>, Vec<(u32, u64)>>) {
        for (module, addresses) in modules {
            let stacks = self.definitions.stacks();
            match module {
                Some(module) => self.name_module(&stacks.modules()[module as usize], &addresses),
                None => {
                    for (index, at) in addresses {
                        let name = format!("{at:#x}").into();
                        let frames = vec![self.frame(Frame::named(Language::Native, name))];
                        let shown = AddressFrames { origin: FrameOrigin::Shown, frames };
                        self.places.insert(index, shown);
                    }
                }
            }
        }
    }

    fn name_module(&mut self, module: &Module, addresses: &[(u32, u64)]) {
        let stacks = self.definitions.stacks();
        let path = path_of(module, self.header);
        let origin = FrameOrigin::of_library(&path.to_string_lossy());
        let missing = |(_, at): &&(u32, u64)| stacks.names(module, *at).is_none();
        let asked: Vec<u64> = addresses.iter().filter(missing).map(|(_, at)| *at).collect();
        let found = ask(self.definitions.files(), module, &path, &asked);
        if let Some(problem) = problem(&path, &self.own_places, &found)
            && self.said.insert(problem.clone())
        {
            self.symbols.problems.push(problem);
        }
        let mut found = found.map_or(Vec::new(), |found| found.names).into_iter();
        let library = self.text(&path.to_string_lossy());
        for (index, at) in addresses {
            let names = match stacks.names(module, *at) {
                Some(names) => names.iter().map(|name| self.packed(name)).collect(),
                None => found.next().unwrap_or_default(),
            };
            let unnamed = || format!("{}+{at:#x}", base_name(&library));
            let names = if names.is_empty() { vec![ResolvedFrame::default()] } else { names };
            let frames = names
                .into_iter()
                .map(|name| {
                    let function = name.function.unwrap_or_else(unnamed);
                    let frame = Frame {
                        language: Language::Native,
                        function: self.text(&function),
                        file: self.text(name.file.as_deref().unwrap_or_default()),
                        line: name.line,
                        library: Some(Arc::clone(&library)),
                    };
                    self.frame(frame)
                })
                .collect();
            self.places.insert(*index, AddressFrames { origin, frames });
        }
    }

    /// Finds the wrappers among the named frames. Their callers are looked up in all stacks of the trace, and named, so
    /// that all tables of a trace have the same.
    fn find_wrappers(&mut self) {
        // Of functions that were inlined, the outermost is the one that is called.
        let outermost = |places: &FxHashMap<u32, AddressFrames>, index: &u32| {
            places.get(index).and_then(|place| place.frames.last().copied())
        };
        let frames = &self.frames;
        // Frameworks' allocators name no holder anyway (`memory/allocator_frames.rs`), and their files are large.
        let own = |frame: &Frame| {
            self.own_places.native(frame.library.as_deref(), &frame.file) >= Layer::Package
        };
        let says = |at: u32| {
            let frame = &frames[at as usize];
            frame.says_it_allocates() && own(frame)
        };
        let mut callers: FxHashMap<u32, Vec<u32>> = FxHashMap::default();
        for index in self.places.keys().filter(|at| outermost(&self.places, at).is_some_and(says)) {
            callers.insert(*index, Vec::new());
        }
        if callers.is_empty() {
            return;
        }
        let stacks = self.definitions.stacks();
        for stack in stacks.ids().filter_map(|id| stacks.get(id)) {
            for pair in stack.native.windows(2) {
                if let Some(known) = callers.get_mut(&pair[0])
                    && known.len() < MAX_CALLERS
                    && !known.contains(&pair[1])
                {
                    known.push(pair[1]);
                }
            }
        }
        let mut unnamed: BTreeMap<Option<u32>, Vec<(u32, u64)>> = BTreeMap::new();
        for index in callers.values().flatten().filter(|index| !self.places.contains_key(index)) {
            let Address { module, at } = stacks.addresses()[*index as usize];
            let of_module = unnamed.entry(module).or_default();
            if !of_module.contains(&(*index, at)) {
                of_module.push((*index, at));
            }
        }
        self.name_modules(unnamed);
        for (index, callers) in callers {
            let callers = callers.iter().filter_map(|caller| outermost(&self.places, caller));
            let function = |at: u32| &*self.frames[at as usize].function;
            let functions: FxHashSet<&str> = callers.map(function).collect();
            if functions.len() > 1 {
                self.symbols.wrappers.extend(outermost(&self.places, &index));
            }
        }
    }

    fn packed(&self, name: &NativeName) -> ResolvedFrame {
        let text = |id| self.definitions.text(id).map(str::to_string);
        ResolvedFrame {
            function: text(name.function),
            file: text(name.file),
            line: Some(name.line).filter(|line| *line > 0),
        }
    }

    fn python_frame(&mut self, at: PythonFrame) -> u32 {
        if let Some(known) = self.python.get(&at) {
            return *known;
        }
        let frame = match self.definitions.stacks().code(at.code) {
            // The tool that took the stack has named it.
            Some(code) if code.minor == Definition::NAMED_NATIVE => Frame {
                language: Language::Native,
                function: Arc::clone(&code.name),
                file: Arc::clone(&code.file),
                line: u32::try_from(code.first_line).ok().filter(|line| *line > 0),
                library: base_name(&code.file).contains(".so").then(|| Arc::clone(&code.file)),
            },
            Some(code) => Frame {
                language: Language::Python,
                function: Arc::clone(&code.name),
                file: self.source(&code.file),
                line: lines::line(
                    code.minor,
                    code.first_line,
                    &code.line_table,
                    at.last_instruction,
                ),
                library: None,
            },
            None => {
                let function = format!("code object {}, not in the trace", at.code);
                Frame::named(Language::Python, function.into())
            }
        };
        let index = self.frame(frame);
        self.python.insert(at, index);
        index
    }

    /// The file of Python code, or the cell of a notebook that it stands for.
    fn source(&mut self, file: &Arc<str>) -> Arc<str> {
        let Some(cell) = cells::shown(file) else { return Arc::clone(file) };
        let header = self.header;
        let numbers = || match self.definitions.files() {
            None => Cells::default(),
            Some(files) => Cells::below(files, Path::new(&header.working_directory)),
        };
        let number =
            cells::hash(file).and_then(|hash| self.cells.get_or_insert_with(numbers).number(hash));
        self.text(&number.map_or(cell, cells::numbered))
    }

    fn name_stack(&mut self, id: StackId, stack: &Stack) {
        let place = |index: &u32| self.places.get(index);
        let origins: Vec<FrameOrigin> = stack
            .native
            .iter()
            .map(|index| place(index).map_or(FrameOrigin::Shown, |place| place.origin))
            .collect();
        let mut frames = Vec::new();
        for which in stack_order::shown(&origins, stack.python.len(), &stack.joins) {
            match which {
                Which::Native(index) => {
                    let place = self.places.get(&stack.native[index]);
                    frames.extend(place.iter().flat_map(|place| place.frames.iter().copied()));
                }
                Which::Python(index) => frames.push(self.python_frame(stack.python[index])),
            }
        }
        let inside = outside::inside(frames.iter().map(|at| &self.frames[*at as usize]));
        frames.truncate(inside);
        let named = Named { flags: stack.flags, frames: frames.into() };
        self.symbols.stacks.insert(id, named);
    }
}

#[cfg(test)]
mod tests;
