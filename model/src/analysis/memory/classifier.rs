//! The frames of a stack that stand for its holder, and the library that requested the memory: the same in text and JSON of
//! all reports.
//!
//! The library of driver memory is that of the innermost frame that is not plumbing; bindings, the
//! CUDA runtime, and what runs the program's code (IPython, pytest) are plumbing. The library of a PyTorch block is that of the innermost frame outside of
//! PyTorch's allocator and dispatch (its native code, and Python lines that only pass a call on).
//! `x + y` in `train.py` belongs to the program, a line of `transformers` to that package,
//! `torch.optim` to PyTorch; cuBLAS and NCCL are separate. A block's stack with frames of PyTorch
//! alone belongs to PyTorch. The recorder applies the same rules (`shim/src/hooks/process/oom/names.rs`).
//!
//! The recorder keeps the stack of the forward operation for memory that a node of PyTorch's backward pass allocates on a
//! thread without Python frames. The holder is then `LogSoftmaxBackward0 of loss_utils.py:40 < train.py:23`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::Hash;

use rustc_hash::FxHashMap;
use serde::{Serialize, Serializer};
use vramtrace_format::{Header, StackId};

use super::frames::{self, Layer, Places, is_allocator, is_dispatch, is_pool};
use crate::analysis::{Level, autograd, engines};
use crate::facts::ProcessId;
use crate::symbols::{FREE_CACHE, Frame, Language, Symbols};

/// The layers and libraries of the frames of one process.
#[derive(Clone, Debug)]
pub struct StackClassifier<'s> {
    pub symbols: &'s Symbols,
    /// By index into the frames.
    layers: Vec<Layer>,
    /// By index into the frames: an index into `titles`.
    libraries: Vec<Option<u32>>,
    /// By index into the frames: functions of an engine that tell what memory is for.
    engines: Vec<bool>,
    /// Index of the program's name in `titles`.
    program: u32,
    /// Names of libraries.
    titles: Vec<String>,
    /// Index of PyTorch in `titles`.
    torch: u32,
    pub process: ProcessId,
}

/// The frames of one stack that name its holder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyFrames {
    /// Index of the innermost frame outside of frameworks.
    pub lead: Option<usize>,
    /// Index of the innermost frame of the program's own tree outside of `lead`.
    pub caller: Option<usize>,
    pub(super) library: Option<u32>,
}

impl<'s> StackClassifier<'s> {
    pub fn new(symbols: &'s Symbols, header: &Header) -> StackClassifier<'s> {
        let places = Places::of_trace(header, symbols);
        let mut titles: Vec<String> = Vec::new();
        let mut known: HashMap<String, u32> = HashMap::new();
        let mut title = |name: String| {
            *known.entry(name).or_insert_with_key(|name| {
                titles.push(name.clone());
                titles.len() as u32 - 1
            })
        };
        let frames = symbols.frames();
        let layers = frames.iter().map(|frame| places.layer(frame)).collect();
        let libraries = frames.iter().map(|frame| places.library(frame).map(&mut title)).collect();
        let engines = frames.iter().map(engines::names_holder).collect();
        let program = title(places.program().to_string());
        let torch = title("PyTorch".to_string());
        let process = ProcessId::of(header);
        StackClassifier { symbols, layers, libraries, engines, program, titles, torch, process }
    }

    fn at(&self, index: u32) -> &'s Frame {
        &self.symbols.frames()[index as usize]
    }

    /// The key frames of a stack of driver memory.
    pub fn key_frames(&self, stack: StackId) -> KeyFrames {
        let frames = self.symbols.indexes(stack);
        let layer = |at: usize| self.layers[frames[at] as usize];
        let language = |at: usize| self.at(frames[at]).language;
        // Reports show Python lines; native ones where the stack has no Python frames.
        let python = (0..frames.len()).any(|at| language(at) == Language::Python);
        let read = |at: &usize| !python || language(*at) == Language::Python;
        // Threads that run backward have no Python frames: the node of the graph names the operation.
        let node = |at: &usize| {
            let frame = self.at(frames[*at]);
            !python && autograd::node(&frame.function).is_some()
        };
        let node = (0..frames.len()).find(node);
        let innermost =
            |least: Layer| (0..frames.len()).filter(read).find(|at| layer(*at) >= least);
        let framework = || {
            let of_framework = |at: &usize| layer(*at) >= Layer::Framework;
            let names = |at: &usize| !is_allocator(self.at(frames[*at]));
            (0..frames.len()).filter(read).filter(of_framework).find(names)
        };
        let lead = node
            .or_else(|| self.of_engine(frames))
            .or_else(|| self.beyond_wrappers(frames, innermost(Layer::Package)?))
            .or_else(|| innermost(Layer::Package))
            .or_else(framework)
            .or_else(|| innermost(Layer::Framework))
            .or_else(|| innermost(Layer::Plumbing));
        let named = |at: usize| {
            let frame = self.at(frames[at]);
            (&frame.file, &frame.function)
        };
        // Many programs allocate through a helper function: its caller is shown, too.
        let beyond = lead.map_or(0, |lead| lead + 1);
        let another = |at: &usize| lead.is_none_or(|lead| named(*at) != named(lead));
        let mut own = (beyond..frames.len()).filter(read).filter(|at| layer(*at) == Layer::Own);
        // Of a program that lies elsewhere: a test below another directory.
        let of_program = |at: &usize| self.is_of_program(frames[*at]);
        let elsewhere = || (beyond..frames.len()).filter(read).filter(of_program).find(another);
        let caller = own.find(another).or_else(elsewhere);
        KeyFrames { lead, caller, library: self.library_of(frames) }
    }

    /// The function of an engine that tells what memory is for; where it is of an allocator, the one that called it. In
    /// a stack with Python frames, too: one line there may call all of an engine (`Booster.update`).
    fn of_engine(&self, frames: &[u32]) -> Option<usize> {
        let first = frames.iter().position(|index| self.engines[*index as usize])?;
        let frame = |at: &usize| self.at(frames[*at]);
        let native = |at: &usize| frame(at).language == Language::Native;
        let mut above = (first..frames.len()).take_while(native);
        Some(above.find(|at| !frame(at).says_it_allocates()).unwrap_or(first))
    }

    /// The innermost frame outside of the wrappers that begin at `first`, see `allocator_frames.rs`. `None`: there are
    /// none, or nothing is outside.
    fn beyond_wrappers(&self, frames: &[u32], first: usize) -> Option<usize> {
        let says = |at: &usize| self.at(frames[*at]).says_it_allocates();
        let wrapper = |at: &usize| self.symbols.wrappers.contains(&frames[*at]);
        let last = (first..frames.len()).take_while(says).filter(wrapper).last()?;
        let own = |at: &usize| self.layers[frames[*at] as usize] >= Layer::Package;
        (last + 1..frames.len()).find(own)
    }

    /// The key frames of a block's stack: the library is the one that requested the block
    /// from PyTorch.
    pub fn key_frames_of_block(&self, stack: StackId) -> KeyFrames {
        let asked = self.symbols.indexes(stack).iter().find_map(|index| self.asked(*index));
        KeyFrames { library: asked.or(Some(self.torch)), ..self.key_frames(stack) }
    }

    /// The key frames of a stack, for memory at this level.
    pub fn key_frames_at(&self, stack: StackId, level: Level) -> KeyFrames {
        match level {
            Level::Driver => self.key_frames(stack),
            Level::Tensor => self.key_frames_of_block(stack),
        }
    }

    /// Whether a stack of the driver's memory is a tensor's: PyTorch's backend cudaMallocAsync keeps no segments.
    fn is_tensor(&self, frames: &[u32]) -> bool {
        let frame = |index: &u32| self.at(*index);
        let innermost = frames.iter().map(frame).find(|of| frames::is_torch_cache(of));
        innermost.is_some_and(|of| of.function.contains("CUDACachingAllocator::CudaMallocAsync"))
    }

    /// The library of a frame that may have requested a block. `None`: the frame passes the call on.
    fn asked(&self, index: u32) -> Option<u32> {
        let frame = self.at(index);
        let own = || self.is_of_program(index).then_some(self.program);
        let library = self.libraries[index as usize].or_else(own)?;
        let hands_on = match frame.language {
            Language::Native => library == self.torch,
            Language::Python => is_dispatch(frame),
        };
        (!hands_on).then_some(library)
    }

    /// Whether a frame is a line of the program, or of Python code in no package: that has the program's name, too.
    fn is_of_program(&self, index: u32) -> bool {
        let python = self.at(index).language == Language::Python;
        match self.layers[index as usize] {
            Layer::Own => true,
            Layer::Package => python && self.libraries[index as usize].is_none(),
            _ => false,
        }
    }

    /// The library of the innermost frame that is not plumbing; for a line of the program, its name. Where that is PyTorch, a native frame
    /// further out may name cuBLAS: PyTorch allocates its workspace.
    fn library_of(&self, frames: &[u32]) -> Option<u32> {
        if self.is_tensor(frames) {
            return frames.iter().find_map(|index| self.asked(*index)).or(Some(self.torch));
        }
        let of = |index: &u32| self.libraries[*index as usize];
        let asked = |index: &u32| of(index).is_some() || self.is_of_program(*index);
        let first = frames.iter().position(asked)?;
        let Some(found) = of(&frames[first]) else { return Some(self.program) };
        let native = |index: &&u32| self.at(**index).language == Language::Native;
        if self.titles[found as usize] == "PyTorch" {
            let around = frames[first..].iter().take_while(native);
            let exact =
                around.filter_map(of).find(|title| self.titles[*title as usize] == "cuBLAS");
            return exact.or(Some(found));
        }
        Some(found)
    }

    /// The name of the library that requested the memory. `None`: not known.
    pub fn library_name(&self, key_frames: &KeyFrames) -> Option<&str> {
        Some(&self.titles[key_frames.library? as usize])
    }

    /// The library that requested the memory of a stack at this level.
    pub fn library_at(&self, stack: StackId, level: Level) -> Option<String> {
        self.library_name(&self.key_frames_at(stack, level)).map(str::to_string)
    }

    /// Whether a library other than the program and PyTorch requested the memory.
    pub fn is_other_library(&self, key_frames: &KeyFrames) -> bool {
        key_frames.library.is_some_and(|library| library != self.program && library != self.torch)
    }

    /// Whether PyTorch's cache requested the driver memory of this stack: for itself, or for a library's
    /// workspace.
    pub fn is_torch_cache(&self, stack: StackId) -> bool {
        let of_cache = |index: &u32| {
            let frame = self.symbols.frames().get(*index as usize);
            frame.is_some_and(frames::is_torch_cache)
        };
        self.key_frames(stack).library == Some(self.torch)
            || self.symbols.indexes(stack).iter().any(of_cache)
    }

    /// Whether a function of the stack, outside of the CUDA runtime, is an allocator's by its name.
    pub fn names_pool(&self, stack: StackId) -> bool {
        let frames = self.symbols.indexes(stack);
        !self.is_tensor(frames)
            && frames.iter().any(|index| {
                let frame = self.at(*index);
                self.layers[*index as usize] > Layer::Plumbing && is_pool(&frame.function)
            })
    }

    /// The frame at an index of a stack's frames.
    pub fn frame(&self, stack: StackId, at: Option<usize>) -> Option<&'s Frame> {
        let index = *self.symbols.indexes(stack).get(at?)?;
        self.symbols.frames().get(index as usize)
    }

    /// The key of a stack by [`super::GroupBy::Line`], at this level. Stacks without frames have the reason
    /// as their key.
    pub fn holder_key(&self, stack: StackId, level: Level) -> impl Hash + Eq + use<'s> {
        (self.why_empty(stack), self.line(stack, &self.key_frames_at(stack, level)))
    }

    /// Why a stack has no frames. `None`: it has some.
    pub(super) fn why_empty(&self, stack: StackId) -> Option<&'static str> {
        self.symbols.indexes(stack).is_empty().then(|| self.symbols.why_empty(stack))
    }

    /// The key by [`super::GroupBy::Line`]: library, line and calling line, and those of the forward operation.
    pub(super) fn line(&self, stack: StackId, key_frames: &KeyFrames) -> impl Hash + Eq + use<'s> {
        let line = |at| {
            let frame = self.frame(stack, at)?;
            // Without a line the function tells them apart: a library's file says nothing.
            let function = frame.line.is_none().then_some(&frame.function);
            Some((&frame.file, frame.line, function))
        };
        let forward = self.forward_key(stack);
        (key_frames.library, line(key_frames.lead), line(key_frames.caller), forward)
    }

    /// Numbers the holders of blocks by [`super::GroupBy::Line`]: stacks of one holder have the same number.
    pub fn lines(&self, stacks: impl IntoIterator<Item = StackId>) -> FxHashMap<StackId, u32> {
        let mut known = FxHashMap::default();
        let mut lines = FxHashMap::default();
        for stack in stacks {
            let next = known.len() as u32;
            let key = self.holder_key(stack, Level::Tensor);
            let line = *known.entry(key).or_insert(next);
            lines.insert(stack, line);
        }
        lines
    }

    /// What the stacks of one forward line have in common.
    pub(super) fn forward_key(&self, stack: StackId) -> impl Hash + Eq + use<'s> {
        let forward = self.symbols.forward_of(stack)?;
        let key_frames = self.key_frames(forward);
        let line = |at| self.frame(forward, at).map(|frame| (&frame.file, frame.line));
        Some((line(Some(key_frames.lead?))?, line(key_frames.caller)))
    }

    /// The stack with its names, for memory at any level.
    pub fn named(&self, stack: StackId) -> NamedStack {
        self.named_by(stack, &self.key_frames(stack))
    }

    pub(super) fn named_by(&self, id: StackId, key_frames: &KeyFrames) -> NamedStack {
        let named = |id: StackId, key_frames: &KeyFrames| {
            let (lead, caller) = (key_frames.lead, key_frames.caller);
            NamedStack { symbols: self.symbols.clone(), id, lead, caller, forward: None }
        };
        let forward = self.symbols.forward_of(id).map(|id| named(id, &self.key_frames(id)));
        let forward = forward.filter(|forward| forward.lead().is_some()).map(Box::new);
        NamedStack { forward, ..named(id, key_frames) }
    }
}

#[derive(Clone, Debug, Default)]
pub struct NamedStack {
    symbols: Symbols,
    pub id: StackId,
    /// Indexes of frames, innermost first.
    lead: Option<usize>,
    caller: Option<usize>,
    /// Of a node of the backward pass.
    forward: Option<Box<NamedStack>>,
}

/// A stack in a document.
#[derive(Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
struct StackFacts<'s> {
    /// Innermost first.
    frames: Vec<&'s Frame>,
    /// Indices in `frames`: the innermost frame outside of frameworks, and the next outer frame of the
    /// program's own source tree in another function.
    lead: Option<usize>,
    caller: Option<usize>,
    /// The name where no line of the program is known: a node of the autograd graph, or PyTorch's free
    /// cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<Cow<'s, str>>,
    /// Why there are no frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_frames: Option<&'static str>,
}

impl Serialize for NamedStack {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let frames = self.frames().collect();
        let (lead, caller, name) = (self.lead, self.caller, self.name());
        StackFacts { frames, lead, caller, name, no_frames: self.why_no_frames() }.serialize(to)
    }
}

#[cfg(feature = "schemas")]
impl schemars::JsonSchema for NamedStack {
    fn schema_name() -> Cow<'static, str> {
        "Stack".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        StackFacts::json_schema(generator)
    }
}

impl PartialEq for NamedStack {
    fn eq(&self, other: &NamedStack) -> bool {
        self.id == other.id && self.frames().eq(other.frames())
    }
}

impl NamedStack {
    /// Stands for a stack until its names are known.
    pub fn without_names(id: StackId) -> NamedStack {
        NamedStack { id, ..NamedStack::default() }
    }

    /// Innermost first.
    pub fn frames(&self) -> impl DoubleEndedIterator<Item = &Frame> + Clone {
        self.symbols.stack(self.id)
    }

    fn frame(&self, at: Option<usize>) -> Option<&Frame> {
        let index = *self.symbols.indexes(self.id).get(at?)?;
        self.symbols.frames().get(index as usize)
    }

    /// The innermost frame outside of frameworks, which stands for the holder.
    pub fn lead(&self) -> Option<&Frame> {
        self.frame(self.lead)
    }

    /// The innermost frame of the program's own tree outside of the lead.
    pub fn caller(&self) -> Option<&Frame> {
        self.frame(self.caller)
    }

    /// `None`: there are some.
    pub fn why_no_frames(&self) -> Option<&'static str> {
        self.frames().next().is_none().then(|| self.symbols.why_empty(self.id))
    }

    pub fn is_free_cache(&self) -> bool {
        self.id == FREE_CACHE
    }

    /// The forward operation, if it has a lead.
    pub fn forward(&self) -> Option<&NamedStack> {
        self.forward.as_deref()
    }

    /// The line of the forward operation and the program's line that called it: `loss_utils.py:40 < train.py:23`.
    /// `None`: the stack is not of a node of the backward pass, or its forward operation is not known.
    pub fn forward_line(&self) -> Option<String> {
        let forward = self.forward()?;
        let place = |frame: &Frame| {
            let place = frame.place().filter(|_| frame.line.is_some());
            place.unwrap_or_else(|| frame.function.to_string())
        };
        let lead = forward.lead().map(place)?;
        Some(match forward.caller() {
            Some(caller) => format!("{lead} < {}", place(caller)),
            None => lead,
        })
    }

    /// The name of the function that stands for the holder. `None`: there is no lead.
    pub fn function(&self) -> Option<Cow<'_, str>> {
        let lead = self.lead()?;
        Some(match self.forward_line() {
            Some(line) => Cow::Owned(autograd::with_forward(&lead.function, &line)),
            None => autograd::holder_name(&lead.function),
        })
    }

    fn name(&self) -> Option<Cow<'_, str>> {
        let lead = self.lead()?;
        let node = || self.forward.is_some() || autograd::node(&lead.function).is_some();
        (self.is_free_cache() || node()).then(|| self.function())?
    }
}

#[cfg(test)]
mod tests;
