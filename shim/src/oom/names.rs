//! Names for a few stacks. Their definitions are read again from the trace file, without calling the
//! loader or the interpreter, so this works at any point of the program, and at its end.

use crate::capture::definitions::DefinitionLocation;
use crate::oom::sources::Sources;
use crate::runtime::fallible_map::Map;
use vramtrace_format::layers::{Layer, Places, base_name, package_of_source, package_title};
use vramtrace_format::{Definition, Header, PythonFrame, StackId, code, lines};

/// Reads a definition again, by its location, kind of record and id.
pub type Read<'a> = &'a mut dyn FnMut(DefinitionLocation, u8, u32) -> Option<Definition>;

pub struct Names<'a> {
    process: Sources,
    places: Places,
    read: Read<'a>,
    codes: Map<u32, Option<Code>>,
}

#[derive(Clone)]
struct Code {
    file: String,
    minor: u8,
    first_line: i32,
    line_table: Vec<u8>,
}

struct Frames {
    native: Vec<u64>,
    python: Vec<PythonFrame>,
}

/// Most frames of a stack that are examined.
const DEEP: usize = 128;

impl<'a> Names<'a> {
    pub fn new(process: Sources, header: &Header, read: Read<'a>) -> Names<'a> {
        Names { process, places: Places::of(header), read, codes: Map::default() }
    }

    fn frames(&mut self, stack: StackId) -> Option<Frames> {
        let place = self.process.capture.interner().stack_location(stack)?;
        match (self.read)(place, code::DEFINE_STACK, stack.0)? {
            Definition::Stack { id, native, python, .. } if id == stack => {
                Some(Frames { native, python })
            }
            _ => None,
        }
    }

    /// The library that requested the memory: the innermost one that is not a runtime. Its path, and
    /// its common name if it has one.
    pub fn library(&mut self, stack: StackId) -> Option<Library> {
        let frames = self.frames(stack)?;
        for address in &frames.native {
            let Some((path, _)) = self.module(*address) else { continue };
            if let Some(title) = self.places.library(&path) {
                let own = path == self.places.executable();
                return Some(Library { path, title, own });
            }
        }
        for frame in frames.python.iter().take(DEEP) {
            let Some(code) = self.code(frame.code) else { continue };
            if let Some(package) = package_of_source(&code.file) {
                let title = package_title(package);
                return Some(Library { path: code.file, title, own: false });
            }
        }
        None
    }

    /// `modeling_gpt2.py:1291 < train.py:41`: the innermost line outside of frameworks, and whose
    /// line of the program led there.
    pub fn place(&mut self, stack: StackId) -> Option<String> {
        let frames = self.frames(stack)?;
        self.python_place(&frames.python).or_else(|| self.native_place(&frames.native))
    }

    fn python_place(&mut self, frames: &[PythonFrame]) -> Option<String> {
        let mut inner: Option<(String, u32)> = None;
        let mut outer = None;
        let mut framework = None;
        for frame in frames.iter().take(DEEP) {
            let Some(code) = self.code(frame.code) else { continue };
            let layer = self.places.python(&code.file);
            let at = frame.last_instruction;
            let line = lines::line(code.minor, code.first_line, &code.line_table, at).unwrap_or(0);
            let here = (base_name(&code.file).to_string(), line);
            match &inner {
                None if layer >= Layer::Package => inner = Some(here),
                None if layer == Layer::Framework => framework = framework.or(Some(here)),
                Some(known) if layer == Layer::Own && *known != here => {
                    outer = Some(here);
                    break;
                }
                _ => {}
            }
        }
        let shown = |(file, line): (String, u32)| match line {
            0 => file,
            line => format!("{file}:{line}"),
        };
        let inner = shown(inner.or(framework)?);
        Some(match outer {
            Some(outer) => format!("{inner} < {}", shown(outer)),
            None => inner,
        })
    }

    fn native_place(&mut self, addresses: &[u64]) -> Option<String> {
        let mut first = None;
        for address in addresses {
            let Some((path, at)) = self.module(*address) else { continue };
            let layer = self.places.native(Some(&path), "");
            let shown = || format!("{}+{at:#x}", base_name(&path));
            match layer {
                Layer::Plumbing => {}
                Layer::Own => return Some(shown()),
                _ if first.is_none() => first = Some(shown()),
                _ => {}
            }
        }
        first
    }

    /// The library of a return address, and the place of its call there.
    fn module(&self, address: u64) -> Option<(String, u64)> {
        self.process.capture.interner().module_at(address.checked_sub(1)?)
    }

    fn code(&mut self, id: u32) -> Option<Code> {
        if let Some(known) = self.codes.get(&id) {
            return known.clone();
        }
        let place = self.process.capture.interner().code_location(id);
        let found =
            match place.and_then(|place| (self.read)(place, code::DEFINE_CODE, id)) {
                Some(Definition::Code {
                    id: found, minor, file, first_line, line_table, ..
                }) if found == id => Some(Code { file, minor, first_line, line_table }),
                _ => None,
            };
        let _ = self.codes.insert(id, found.clone());
        found
    }
}

pub struct Library {
    pub path: String,
    pub title: String,
    /// The program itself.
    pub own: bool,
}

impl Library {
    /// Whether it is the library from which PyTorch's cache allocates its segments.
    pub fn is_torch_cache(&self) -> bool {
        base_name(&self.path).starts_with("libc10")
    }
}
