//! Names for a few stacks. Their definitions are read again from the trace file, without calling the
//! loader or the interpreter, so this works at any point of the program, and at its end. Of a native function the library and
//! the place in it are known; its name is in a file, which the command reads.

use crate::capture::definitions::DefinitionLocation;
use crate::hooks::process::state::Process;
use crate::runtime::fallible::list_of;
use crate::runtime::fallible_map::Map;
use vramtrace_format::layers::{Layer, Places, base_name, is_dispatch, package_title};
use vramtrace_format::stack_order::{self, FrameOrigin, Which};
use vramtrace_format::{Definition, Join, PythonFrame, StackId, cells, code, lines};

/// Reads a definition again, by its location, kind of record and id.
type Read<'a> = &'a mut dyn FnMut(DefinitionLocation, u8, u32) -> Option<Definition>;

pub struct Names<'a> {
    p: &'static Process,
    places: Places,
    read: Read<'a>,
    codes: Map<u32, Option<Code>>,
}

#[derive(Clone)]
struct Code {
    file: String,
    name: String,
    minor: u8,
    first_line: i32,
    line_table: Vec<u8>,
}

struct Frames {
    native: Vec<u64>,
    python: Vec<PythonFrame>,
    joins: Vec<Join>,
}

/// A line of Python.
struct Line {
    layer: Layer,
    /// In no package and outside of the program's directories.
    is_outside: bool,
    /// `train.py:41`.
    text: String,
}

/// Who requested memory.
#[derive(Clone, Debug)]
pub struct Library {
    pub title: String,
    /// The program itself.
    pub own: bool,
    /// The library from which PyTorch's cache allocates its segments.
    pub is_torch_cache: bool,
}

impl Library {
    fn named(title: String) -> Library {
        Library { title, own: false, is_torch_cache: false }
    }
}

/// Most Python frames of a stack that are examined.
const DEEP: usize = 128;
/// Native functions of the program that make up a place.
const NATIVE_MOST: usize = 6;
/// The name of PyTorch's libraries and packages in [`vramtrace_format::layers`].
const TORCH: &str = "PyTorch";

/// Runs `work` with the names of this process's stacks. Without a trace none is known.
pub fn with_names<R>(p: &'static Process, mut work: impl FnMut(&mut Names) -> R) -> R {
    let mut named = |read: Read| {
        let places = Places::of(&p.trace_writer.this_process());
        let places = places.patched_by(p.patched_entries.libraries());
        work(&mut Names { p, places, read, codes: Map::default() })
    };
    let mut result = None;
    p.trace_writer.look_up(|read| result = Some(named(read)));
    result.unwrap_or_else(|| named(&mut |_, _, _| None))
}

impl Names<'_> {
    fn frames(&mut self, stack: StackId) -> Option<Frames> {
        let place = self.p.capture.interner().stack_location(stack)?;
        match (self.read)(place, code::DEFINE_STACK, stack.0)? {
            Definition::Stack { id, native, python, joins, .. } if id == stack => {
                Some(Frames { native, python, joins })
            }
            _ => None,
        }
    }

    /// The innermost library, or the program, that requested memory by this stack. `block`: the memory is a block of
    /// PyTorch's cache, and PyTorch's if nobody else asked for it; else memory of the driver. The rules are those of
    /// the command's reports (`model/src/analysis/memory/classifier.rs`), except that names of native functions are not
    /// known here.
    pub fn library(&mut self, stack: StackId, block: bool) -> Option<Library> {
        let frames = self.frames(stack)?;
        let modules = frames.native.iter().map(|address| self.module(*address));
        let modules = list_of(frames.native.len(), modules).unwrap_or_default();
        let role = |module: &Option<(String, u64)>| match module {
            Some((path, _)) => FrameOrigin::of_library(path),
            None => FrameOrigin::Shown,
        };
        let roles = list_of(modules.len(), modules.iter().map(role)).unwrap_or_default();
        let shown = stack_order::shown(&roles, frames.python.len().min(DEEP), &frames.joins);
        let requester = shown.into_iter().find_map(|which| match which {
            Which::Native(index) => self.native_requester(modules[index].as_ref(), block),
            Which::Python(index) => self.python_requester(frames.python[index].code, block),
        });
        requester.or_else(|| block.then(|| Library::named(TORCH.to_string())))
    }

    /// `None`: the frame is plumbing, or hands on what others ask PyTorch's cache for.
    fn native_requester(&self, module: Option<&(String, u64)>, block: bool) -> Option<Library> {
        let (path, _) = module?;
        let title = self.places.library(path).filter(|title| !block || title != TORCH)?;
        let own = path == self.places.executable();
        Some(Library { title, own, is_torch_cache: base_name(path).starts_with("libc10") })
    }

    fn python_requester(&mut self, code: u32, block: bool) -> Option<Library> {
        let code = self.code(code)?;
        if block && is_dispatch(&code.file, &code.name) {
            return None;
        }
        if let Some(package) = self.places.package_of_source(&code.file) {
            return Some(Library::named(package_title(package)));
        }
        // A line of the program, or of Python code in no package: that has the program's name, too.
        let own = self.places.python(&code.file) >= Layer::Package;
        let title = || self.places.program().to_string();
        own.then(|| Library { own, ..Library::named(title()) })
    }

    /// `modeling_gpt2.py:1291 < train.py:41`: the innermost line outside of frameworks, and whose
    /// line of the program led there. Of memory of PyTorch's backward pass: `loss.py:40 < train.py:41 (backward)`,
    /// the line of the forward operation. Without Python `llama-bench+0x851bff < +0x851d02`.
    pub fn place(&mut self, stack: StackId) -> Option<String> {
        let frames = self.frames(stack)?;
        self.python_place(&frames.python)
            .or_else(|| self.forward_place(stack))
            .or_else(|| self.native_place(&frames.native))
    }

    fn forward_place(&mut self, stack: StackId) -> Option<String> {
        let forward = self.p.capture.interner().forward_of(stack)?;
        let frames = self.frames(forward)?;
        Some(format!("{} (backward)", self.python_place(&frames.python)?))
    }

    fn python_place(&mut self, frames: &[PythonFrame]) -> Option<String> {
        let frames = &frames[..frames.len().min(DEEP)];
        let lines = frames.iter().filter_map(|frame| self.line(frame));
        let lines = list_of(frames.len(), lines).unwrap_or_default();
        let innermost = |least| lines.iter().position(|line: &Line| line.layer >= least);
        let at = innermost(Layer::Package).or_else(|| innermost(Layer::Framework))?;
        let inner = &lines[at].text;
        let find_caller = |is_caller: fn(&Line) -> bool| {
            lines[at..].iter().find(|line| line.text != *inner && is_caller(line))
        };
        let caller = find_caller(|line| line.layer == Layer::Own);
        Some(match caller.or_else(|| find_caller(|line| line.is_outside)) {
            Some(caller) => format!("{inner} < {}", caller.text),
            None => inner.clone(),
        })
    }

    fn line(&mut self, frame: &PythonFrame) -> Option<Line> {
        let Code { file, minor, first_line, line_table, .. } = self.code(frame.code)?;
        let layer = self.places.python(&file);
        let is_outside = layer == Layer::Package && self.places.package_of_source(&file).is_none();
        let name = cells::shown(&file).unwrap_or_else(|| base_name(&file).to_string());
        let text = match lines::line(minor, first_line, &line_table, frame.last_instruction) {
            None | Some(0) => name,
            Some(line) => format!("{name}:{line}"),
        };
        Some(Line { layer, is_outside, text })
    }

    /// The innermost functions of the program, of which the first ones may only allocate for others; else the innermost of
    /// a library.
    fn native_place(&self, addresses: &[u64]) -> Option<String> {
        let (mut innermost, mut own, mut count) = (None, String::new(), 0);
        for (path, at) in addresses.iter().filter_map(|address| self.module(*address)) {
            let place = || format!("{}+{at:#x}", base_name(&path));
            match self.places.native(Some(&path), "") {
                Layer::Own if count == NATIVE_MOST => break,
                Layer::Own => {
                    own += &if count == 0 { place() } else { format!(" < +{at:#x}") };
                    count += 1;
                }
                Layer::Plumbing => {}
                _ => innermost = innermost.or_else(|| Some(place())),
            }
        }
        if count > 0 { Some(own) } else { innermost }
    }

    /// The library of a return address, and the place of its call there.
    fn module(&self, address: u64) -> Option<(String, u64)> {
        self.p.capture.interner().module_at(address.checked_sub(1)?)
    }

    fn code(&mut self, id: u32) -> Option<Code> {
        if let Some(known) = self.codes.get(&id) {
            return known.clone();
        }
        let place = self.p.capture.interner().code_location(id);
        let found = match place.and_then(|place| (self.read)(place, code::DEFINE_CODE, id)) {
            Some(Definition::Code { id: found, minor, name, file, first_line, line_table })
                if found == id =>
            {
                Some(Code { file, name, minor, first_line, line_table })
            }
            _ => None,
        };
        let _ = self.codes.insert(id, found.clone());
        found
    }
}
