//! Names for a few stacks. Their definitions are read again from the trace file, without calling the
//! loader or the interpreter, so this works at any point of the program, and at its end.

use crate::capture::definitions::DefinitionLocation;
use crate::oom::demangle;
use crate::oom::sources::Sources;
use crate::runtime::fallible::{TryPush, list_of};
use crate::runtime::fallible_map::Map;
use crate::runtime::file_symbols;
use vramtrace_format::layers::{
    Layer, Places, base_name, is_dispatch, package_of_source, package_title,
};
use vramtrace_format::stack_order::{self, FrameRole, Which};
use vramtrace_format::{Definition, Header, Join, PythonFrame, StackId, cells, code, lines};

/// Reads a definition again, by its location, kind of record and id.
pub type Read<'a> = &'a mut dyn FnMut(DefinitionLocation, u8, u32) -> Option<Definition>;

pub struct Names<'a> {
    process: Sources,
    /// Bytes of files that may still be read for names.
    left: u64,
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

/// The origin of one frame.
struct Origin {
    layer: Layer,
    /// `None`: the frame belongs to plumbing, or to Python code outside of any package.
    library: Option<Library>,
    /// The frame passes on a request for a block of PyTorch's cache.
    passes_block_on: bool,
}

impl Origin {
    /// A line of the program, or of Python code in no package: that has the program's name, too.
    fn is_of_program(&self) -> bool {
        self.layer == Layer::Own || self.layer == Layer::Package && self.library.is_none()
    }
}

/// Most Python frames of a stack that are examined.
const DEEP: usize = 128;
/// Native frames of the program that are named.
const MOST_OWN: usize = 16;
/// Bytes of files that are read for the names of one message.
const MOST_BYTES: u64 = 64 << 20;
/// The name of PyTorch's libraries and packages in [`vramtrace_format::layers`].
const TORCH: &str = "PyTorch";

impl<'a> Names<'a> {
    pub fn new(process: Sources, header: &Header, read: Read<'a>) -> Names<'a> {
        let places = Places::of(header).patched_by(process.patchers.libraries());
        Names { process, left: MOST_BYTES, places, read, codes: Map::default() }
    }

    fn frames(&mut self, stack: StackId) -> Option<Frames> {
        let place = self.process.capture.interner().stack_location(stack)?;
        match (self.read)(place, code::DEFINE_STACK, stack.0)? {
            Definition::Stack { id, native, python, joins, .. } if id == stack => {
                Some(Frames { native, python, joins })
            }
            _ => None,
        }
    }

    /// The library that requested memory by this stack. `block`: the memory is a block of PyTorch's
    /// cache, else memory of the driver. The rules are those of the command's reports
    /// (`model/src/analysis/memory/classifier.rs`), except that names of native functions are not known here.
    pub fn library(&mut self, stack: StackId, block: bool) -> Option<Library> {
        let frames = self.frames(stack)?;
        let origins = self.origins(&frames);
        match block {
            true => Some(self.block_requester(origins)),
            false => self.driver_requester(origins),
        }
    }

    /// The innermost library that is not plumbing, or the program.
    fn driver_requester(&self, origins: Vec<Origin>) -> Option<Library> {
        origins.into_iter().find_map(|origin| {
            let own = origin.is_of_program();
            origin.library.or_else(|| own.then(|| self.program()))
        })
    }

    /// The innermost library, or the program, that does not only pass the request on; else PyTorch.
    fn block_requester(&self, origins: Vec<Origin>) -> Library {
        let requester =
            origins.into_iter().filter(|origin| !origin.passes_block_on).find_map(|origin| {
                let own = origin.is_of_program();
                origin.library.or_else(|| own.then(|| self.program()))
            });
        requester.unwrap_or_else(|| Library {
            path: String::new(),
            title: TORCH.to_string(),
            own: false,
        })
    }

    fn program(&self) -> Library {
        let path = self.places.executable().to_string();
        Library { path, title: self.places.program().to_string(), own: true }
    }

    /// The shown frames, innermost first.
    fn origins(&mut self, frames: &Frames) -> Vec<Origin> {
        let modules = frames.native.iter().map(|address| self.module(*address));
        let modules = list_of(frames.native.len(), modules).unwrap_or_default();
        let role = |module: &Option<(String, u64)>| match module {
            Some((path, _)) => FrameRole::of_library(path),
            None => FrameRole::Shown,
        };
        let roles = list_of(modules.len(), modules.iter().map(role)).unwrap_or_default();
        let python = frames.python.len().min(DEEP);
        let mut origins = Vec::new();
        for which in stack_order::shown(&roles, python, &frames.joins) {
            let origin = match which {
                Which::Native(index) => self.native_origin(modules[index].as_ref()),
                Which::Python(index) => self.python_origin(frames.python[index].code),
            };
            if let Some(origin) = origin
                && origins.try_push(origin).is_err()
            {
                break;
            }
        }
        origins
    }

    fn native_origin(&self, module: Option<&(String, u64)>) -> Option<Origin> {
        let (path, _) = module?;
        let layer = self.places.native(Some(path), "");
        let library = self.places.library(path).map(|title| Library {
            path: path.clone(),
            title,
            own: path == self.places.executable(),
        });
        let passes_block_on = library.as_ref().is_some_and(|library| library.title == TORCH);
        Some(Origin { layer, library, passes_block_on })
    }

    fn python_origin(&mut self, code: u32) -> Option<Origin> {
        let code = self.code(code)?;
        let layer = self.places.python(&code.file);
        let passes_block_on = is_dispatch(&code.file, &code.name);
        let title = package_of_source(&code.file).map(package_title);
        let library = title.map(|title| Library { path: code.file, title, own: false });
        Some(Origin { layer, library, passes_block_on })
    }

    /// `modeling_gpt2.py:1291 < train.py:41`: the innermost line outside of frameworks, and whose
    /// line of the program led there. Of memory of PyTorch's backward pass: `loss.py:40 < train.py:41 (backward)`,
    /// the line of the forward operation.
    pub fn place(&mut self, stack: StackId) -> Option<String> {
        let frames = self.frames(stack)?;
        self.python_place(&frames.python)
            .or_else(|| self.forward_place(stack))
            .or_else(|| self.native_place(&frames.native))
    }

    fn forward_place(&mut self, stack: StackId) -> Option<String> {
        let forward = self.process.capture.interner().forward_of(stack)?;
        let frames = self.frames(forward)?;
        Some(format!("{} (backward)", self.python_place(&frames.python)?))
    }

    fn python_place(&mut self, frames: &[PythonFrame]) -> Option<String> {
        let mut inner: Option<(String, u32)> = None;
        let mut outer = None;
        let mut framework = None;
        // A line in no package and outside of the program's directories.
        let mut outside = None;
        for frame in frames.iter().take(DEEP) {
            let Some(code) = self.code(frame.code) else { continue };
            let layer = self.places.python(&code.file);
            let at = frame.last_instruction;
            let line = lines::line(code.minor, code.first_line, &code.line_table, at).unwrap_or(0);
            let here = (shown_file(&code.file), line);
            match &inner {
                None if layer >= Layer::Package => inner = Some(here),
                None if layer == Layer::Framework => framework = framework.or(Some(here)),
                Some(known) if layer == Layer::Own && *known != here => {
                    outer = Some(here);
                    break;
                }
                Some(known) if layer == Layer::Package && *known != here => {
                    let of_program = package_of_source(&code.file).is_none();
                    outside = outside.or(of_program.then_some(here));
                }
                _ => {}
            }
        }
        let shown = |(file, line): (String, u32)| match line {
            0 => file,
            line => format!("{file}:{line}"),
        };
        let inner = shown(inner.or(framework)?);
        Some(match outer.or(outside) {
            Some(outer) => format!("{inner} < {}", shown(outer)),
            None => inner,
        })
    }

    /// `llama_kv_cache::llama_kv_cache in llama-bench`: the innermost function of the program that does not only allocate
    /// for others, or of the innermost library. Without symbols `llama-bench+0x851bff`.
    fn native_place(&mut self, addresses: &[u64]) -> Option<String> {
        let mut first: Option<NativeFrame> = None;
        let mut own: Vec<NativeFrame> = Vec::new();
        for address in addresses {
            let Some((path, at)) = self.module(*address) else { continue };
            let layer = self.places.native(Some(&path), "");
            let of_one_file = own.first().is_none_or(|known| known.path == path);
            let frame = NativeFrame { address: *address, path, at };
            match layer {
                Layer::Plumbing => {}
                Layer::Own if of_one_file && own.len() < MOST_OWN => {
                    if own.try_push(frame).is_err() {
                        break;
                    }
                }
                _ => first = first.or(Some(frame)),
            }
        }
        if own.is_empty() {
            own.try_push(first?).ok()?;
        }
        let innermost = &own[0];
        let id = self.process.capture.interner().build_id_at(innermost.address.checked_sub(1)?);
        let at = list_of(own.len(), own.iter().map(|frame| frame.at)).unwrap_or_default();
        let found = file_symbols::names(&innermost.path, &id, &at, &mut self.left);
        let library = base_name(&innermost.path);
        match that_needs_it(found.iter().map(|name| name.as_deref().map(demangle::shown))) {
            Some(function) => Some(format!("{function} in {library}")),
            None => Some(format!("{library}+{:#x}", innermost.at)),
        }
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

/// A frame of native code.
struct NativeFrame {
    /// The return address.
    address: u64,
    path: String,
    /// The call, in the file.
    at: u64,
}

/// Of functions, innermost first, the first that does not only allocate for others; the last of those that do, where that
/// is `main` or has no name. `None`: the innermost has no name.
fn that_needs_it(functions: impl Iterator<Item = Option<String>>) -> Option<String> {
    let mut allocates = None;
    for function in functions {
        match function {
            Some(name) if name.to_ascii_lowercase().contains("alloc") => allocates = Some(name),
            Some(name) if allocates.is_none() || name != "main" => return Some(name),
            _ => break,
        }
    }
    allocates
}

/// The name of a source file in a line of the message.
fn shown_file(file: &str) -> String {
    cells::shown(file).unwrap_or_else(|| base_name(file).to_string())
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_function_that_needs_memory_is_not_the_one_that_allocates() {
        let chosen = |names: &[&str]| {
            let name = |name: &&str| (*name != "?").then(|| name.to_string());
            that_needs_it(names.iter().map(name))
        };
        let ggml =
            ["ggml_cuda_device_malloc", "ggml_vbuffer_alloc", "llama_kv_cache::load", "main"];
        assert_eq!(chosen(&ggml).as_deref(), Some("llama_kv_cache::load"));
        assert_eq!(
            chosen(&["gpu_malloc", "allocate_queue", "main"]).as_deref(),
            Some("allocate_queue")
        );
        assert_eq!(chosen(&["main"]).as_deref(), Some("main"));
        assert_eq!(chosen(&["gpu_malloc", "?", "work"]).as_deref(), Some("gpu_malloc"));
        assert_eq!(chosen(&["?", "work"]), None);
        assert_eq!(chosen(&[]), None);
    }
}
