//! Holders of memory: bytes by line, function, library or stack.
//!
//! The library of driver memory is that of the innermost frame that is not plumbing; bindings, the
//! CUDA runtime, and what runs the program's code (IPython, pytest) are plumbing. The library of a PyTorch block is that of the innermost frame outside of
//! PyTorch's allocator and dispatch (its native code, and Python lines that only pass a call on).
//! `x + y` in `train.py` belongs to the program, a line of `transformers` to that package,
//! `torch.optim` to PyTorch; cuBLAS and NCCL are separate. A block's stack with frames of PyTorch
//! alone belongs to PyTorch. The recorder applies the same rules (`shim/src/oom/names.rs`).

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::Hash;

use rustc_hash::FxHashMap;
use serde::{Serialize, Serializer};
use vramtrace_format::{Cause, DeviceId, Header, StackId};

use super::allocator_frames::{self, is_allocator, is_pool};
use super::fold::folds;
use super::holdings::{Held, Holdings, Owner};
use super::named::NamedStack;
use super::places::{Layer, Places, is_dispatch};
use crate::analysis::engines::Role;
use crate::analysis::{Level, autograd, engines};
use crate::facts::{self, ProcessId};
use crate::symbols::{FREE_CACHE, Frame, Language, Symbols};

/// What two allocations have in common that belong to one holder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupBy {
    /// The line that requested the memory, the program's line that called it, and the library.
    #[default]
    Line,
    Function,
    Library,
    Stack,
}

/// Memory of one device that stacks with the same line, function, library, frames or role hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Holder {
    pub bytes: u64,
    /// The standard error of `bytes`, which samples of blocks estimate; absent where they are exact.
    #[serde(skip_serializing_if = "facts::is_zero")]
    pub error_bytes: u64,
    /// Allocations; of memory that the driver took, the calls' functions and names that it took it for.
    pub count: u64,
    /// Bytes without physical memory: it was unmapped and may be mapped again. Not in `bytes`.
    #[serde(skip_serializing_if = "facts::is_zero")]
    pub paused_bytes: u64,
    /// The part of `bytes` that is physical memory without a mapping.
    #[serde(skip_serializing_if = "facts::is_zero")]
    pub unmapped_bytes: u64,
    /// The call that mapped the memory again after it had been unmapped: its innermost frame outside
    /// of frameworks.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "lead_frame")]
    #[cfg_attr(test, schemars(with = "Option<Frame>"))]
    pub brought_back_by: Option<NamedStack>,
    /// The share of all held bytes of the device, 0 to 1.
    pub share: f64,
    /// Ordinal as the process saw it; null: not known.
    #[serde(serialize_with = "facts::ordinal")]
    #[cfg_attr(test, schemars(with = "Option<u8>"))]
    pub device: DeviceId,
    /// The library that requested the memory: `cuBLAS`, `PyTorch`, the program's name. Null: not known from the stack.
    pub library: Option<String>,
    /// Distinct stacks that are part of it. The frames are those of the largest.
    pub stacks: u64,
    #[serde(flatten)]
    pub stack: NamedStack,
    #[serde(flatten)]
    pub process: ProcessId,
    /// What the driver took the memory for, as in `driver_bytes` of a report; absent where it was allocated.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "facts::cause")]
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub driver_memory: Option<Cause>,
    /// Only in a listing by role.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub role: Option<Role>,
    /// True: blocks of PyTorch's cache. False: driver memory.
    #[serde(skip)]
    pub of_cache: bool,
}

fn lead_frame<S: Serializer>(stack: &Option<NamedStack>, to: S) -> Result<S::Ok, S::Error> {
    stack.as_ref().and_then(NamedStack::lead).serialize(to)
}

/// Sum of the bytes of holders.
pub fn sum_of<'h>(holders: impl IntoIterator<Item = &'h Holder>) -> u64 {
    holders.into_iter().fold(0, |sum, holder| sum.saturating_add(holder.bytes))
}

/// Fills the shares, and puts the largest first.
pub(in crate::analysis) fn shared_out(mut holders: Vec<Holder>) -> Vec<Holder> {
    let mut totals: FxHashMap<DeviceId, u64> = FxHashMap::default();
    for holder in &holders {
        let total = totals.entry(holder.device).or_default();
        *total = total.saturating_add(holder.bytes);
    }
    for holder in &mut holders {
        holder.share = holder.bytes as f64 / totals[&holder.device].max(1) as f64;
    }
    holders.sort_by_key(|holder| {
        let size = Reverse((holder.bytes, holder.paused_bytes, holder.count));
        (size, holder.device, holder.role, holder.stack.id, holder.driver_memory)
    });
    holders
}

/// The sums of a group of stacks, and its largest stack.
#[derive(Clone, Copy, Default)]
pub(in crate::analysis) struct Group {
    sum: Held,
    stacks: u64,
    /// Bytes of the largest stack.
    most: u64,
    pub stack: StackId,
    pub roles: FrameRoles,
    pub of_cache: bool,
}

impl Group {
    /// Adds a stack. True: it is the largest one so far; of equal ones that with the lowest id, so that the output does
    /// not depend on the order of hashes.
    pub(in crate::analysis) fn add(&mut self, stack: StackId, held: Held) -> bool {
        let first = self.stacks == 0;
        self.sum.add(held);
        self.stacks += 1;
        let largest = first || (held.bytes, Reverse(stack)) > (self.most, Reverse(self.stack));
        if largest {
            (self.most, self.stack) = (held.bytes, stack);
        }
        largest
    }
}

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
pub struct FrameRoles {
    /// Index of the innermost frame outside of frameworks.
    pub lead: Option<usize>,
    /// Index of the innermost frame of the program's own tree outside of `lead`.
    pub caller: Option<usize>,
    library: Option<u32>,
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

    /// The roles of the frames of a stack of driver memory.
    pub fn roles(&self, stack: StackId) -> FrameRoles {
        let frames = self.symbols.indexes(stack);
        let layer = |at: usize| self.layers[frames[at] as usize];
        let language = |at: usize| self.symbols.frames()[frames[at] as usize].language;
        // Reports show Python lines; native ones where the stack has no Python frames.
        let python = (0..frames.len()).any(|at| language(at) == Language::Python);
        let read = |at: &usize| !python || language(*at) == Language::Python;
        // Threads that run backward have no Python frames: the node of the graph names the operation.
        let node = |at: &usize| {
            let frame = &self.symbols.frames()[frames[*at] as usize];
            !python && autograd::node(&frame.function).is_some()
        };
        let node = (0..frames.len()).find(node);
        let innermost =
            |least: Layer| (0..frames.len()).filter(read).find(|at| layer(*at) >= least);
        let framework = || {
            let of_framework = |at: &usize| layer(*at) >= Layer::Framework;
            let names = |at: &usize| !is_allocator(&self.symbols.frames()[frames[*at] as usize]);
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
            let frame = &self.symbols.frames()[frames[at] as usize];
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
        FrameRoles { lead, caller, library: self.library_of(frames) }
    }

    /// The function of an engine that tells what memory is for; where it is of an allocator, the one that called it. In
    /// a stack with Python frames, too: one line there may call all of an engine (`Booster.update`).
    fn of_engine(&self, frames: &[u32]) -> Option<usize> {
        let first = frames.iter().position(|index| self.engines[*index as usize])?;
        let frame = |at: &usize| &self.symbols.frames()[frames[*at] as usize];
        let native = |at: &usize| frame(at).language == Language::Native;
        let mut above = (first..frames.len()).take_while(native);
        Some(above.find(|at| !frame(at).says_it_allocates()).unwrap_or(first))
    }

    /// The innermost frame outside of the wrappers that begin at `first`, see `allocator_frames.rs`. `None`: there are
    /// none, or nothing is outside.
    fn beyond_wrappers(&self, frames: &[u32], first: usize) -> Option<usize> {
        let says = |at: &usize| self.symbols.frames()[frames[*at] as usize].says_it_allocates();
        let wrapper = |at: &usize| self.symbols.is_wrapper(frames[*at]);
        let last = (first..frames.len()).take_while(says).filter(wrapper).last()?;
        let own = |at: &usize| self.layers[frames[*at] as usize] >= Layer::Package;
        (last + 1..frames.len()).find(own)
    }

    /// The roles of the frames of a block's stack: the library is the one that requested the block
    /// from PyTorch.
    pub fn roles_of_block(&self, stack: StackId) -> FrameRoles {
        let asked = self.symbols.indexes(stack).iter().find_map(|index| self.asked(*index));
        FrameRoles { library: asked.or(Some(self.torch)), ..self.roles(stack) }
    }

    /// The roles of the frames of a stack, for memory at this level.
    pub fn roles_at(&self, stack: StackId, level: Level) -> FrameRoles {
        match level {
            Level::Driver => self.roles(stack),
            Level::Tensor => self.roles_of_block(stack),
        }
    }

    /// Whether a stack of the driver's memory is a tensor's: PyTorch's backend cudaMallocAsync keeps no segments.
    fn is_tensor(&self, frames: &[u32]) -> bool {
        let frame = |index: &u32| &self.symbols.frames()[*index as usize];
        let innermost = frames.iter().map(frame).find(|of| allocator_frames::is_torch_cache(of));
        innermost.is_some_and(allocator_frames::is_torch_async)
    }

    /// The library of a frame that may have requested a block. `None`: the frame passes the call on.
    fn asked(&self, index: u32) -> Option<u32> {
        let frame = &self.symbols.frames()[index as usize];
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
        let python = self.symbols.frames()[index as usize].language == Language::Python;
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
        let native =
            |index: &&u32| self.symbols.frames()[**index as usize].language == Language::Native;
        if self.titles[found as usize] == "PyTorch" {
            let around = frames[first..].iter().take_while(native);
            let exact =
                around.filter_map(of).find(|title| self.titles[*title as usize] == "cuBLAS");
            return exact.or(Some(found));
        }
        Some(found)
    }

    /// The frames that a report shows, innermost first, as indexes into [`Symbols::frames`]. `fold`:
    /// without those that only pass a call on, but at least one.
    pub fn shown_frames(&self, stack: StackId, fold: bool) -> Vec<u32> {
        let all = self.symbols.indexes(stack);
        if !fold {
            return all.to_vec();
        }
        let frame = |index: &u32| &self.symbols.frames()[*index as usize];
        let python = all.iter().any(|index| frame(index).language == Language::Python);
        let shows = |index: &&u32| !folds(frame(index), self.layers[**index as usize], python);
        let mut shown: Vec<u32> = all.iter().filter(shows).copied().collect();
        // A function that calls itself down a tree of modules.
        shown.dedup_by_key(|index| (&frame(index).file, &frame(index).function));
        if shown.is_empty() {
            let lead = self.roles(stack).lead.and_then(|at| all.get(at));
            shown.extend(lead.or(all.first()));
        }
        shown
    }

    /// The name of the library that requested the memory. `None`: not known.
    pub fn library_name(&self, roles: &FrameRoles) -> Option<&str> {
        Some(&self.titles[roles.library? as usize])
    }

    /// The library that requested the memory of a stack at this level.
    pub fn library_at(&self, stack: StackId, level: Level) -> Option<String> {
        self.library_name(&self.roles_at(stack, level)).map(str::to_string)
    }

    /// Whether a library other than the program and PyTorch requested the memory.
    pub fn is_other_library(&self, roles: &FrameRoles) -> bool {
        roles.library.is_some_and(|library| library != self.program && library != self.torch)
    }

    /// Whether PyTorch's cache requested the driver memory of this stack: for itself, or for a library's
    /// workspace.
    pub fn is_torch_cache(&self, stack: StackId) -> bool {
        let of_cache = |index: &u32| {
            let frame = self.symbols.frames().get(*index as usize);
            frame.is_some_and(allocator_frames::is_torch_cache)
        };
        self.roles(stack).library == Some(self.torch)
            || self.symbols.indexes(stack).iter().any(of_cache)
    }

    /// Whether a function of the stack, outside of the CUDA runtime, is an allocator's by its name.
    pub fn names_pool(&self, stack: StackId) -> bool {
        let frames = self.symbols.indexes(stack);
        !self.is_tensor(frames)
            && frames.iter().any(|index| {
                let frame = &self.symbols.frames()[*index as usize];
                self.layers[*index as usize] > Layer::Plumbing && is_pool(&frame.function)
            })
    }

    /// The frame at an index of a stack's frames.
    pub fn frame(&self, stack: StackId, at: Option<usize>) -> Option<&'s Frame> {
        let index = *self.symbols.indexes(stack).get(at?)?;
        self.symbols.frames().get(index as usize)
    }

    /// The holders of all devices, largest first.
    pub fn holders(&self, holdings: &Holdings, by: GroupBy) -> Vec<Holder> {
        match by {
            GroupBy::Line => self.group(holdings, |stack, roles| self.line(stack, roles)),
            GroupBy::Function => self.group(holdings, |stack, roles| {
                let function = |at| {
                    let frame = self.frame(stack, at)?;
                    Some((&frame.file, &frame.function))
                };
                (
                    roles.library,
                    function(roles.lead),
                    function(roles.caller),
                    self.forward_key(stack),
                )
            }),
            // The free memory of a cache is a separate holder.
            GroupBy::Library => {
                self.group(holdings, |stack, roles| (roles.library, stack == FREE_CACHE))
            }
            GroupBy::Stack => self.group(holdings, |stack, _| {
                let forward = self.symbols.forward_of(stack);
                (self.symbols.indexes(stack), forward.map(|forward| self.symbols.indexes(forward)))
            }),
        }
    }

    /// The key of a stack of driver memory by [`GroupBy::Line`].
    pub fn line_of(&self, stack: StackId) -> impl Hash + Eq + use<'s> {
        self.line(stack, &self.roles(stack))
    }

    /// The key of a stack by [`GroupBy::Line`], at either level. Stacks without frames have the reason
    /// as their key.
    pub fn holder_key(&self, stack: StackId, level: Level) -> impl Hash + Eq + use<'s> {
        let empty = self.symbols.indexes(stack).is_empty();
        let why = empty.then(|| self.symbols.why_empty(stack));
        (why, self.line(stack, &self.roles_at(stack, level)))
    }

    /// The key by [`GroupBy::Line`]: library, line and calling line, and those of the forward operation.
    fn line(&self, stack: StackId, roles: &FrameRoles) -> impl Hash + Eq + use<'s> {
        let line = |at| {
            let frame = self.frame(stack, at)?;
            // Without a line the function tells them apart: a library's file says nothing.
            let function = frame.line.is_none().then_some(&frame.function);
            Some((&frame.file, frame.line, function))
        };
        let forward = self.forward_key(stack);
        (roles.library, line(roles.lead), line(roles.caller), forward)
    }

    /// Numbers the holders of blocks by [`GroupBy::Line`]: stacks of one holder have the same number.
    pub fn lines(&self, stacks: impl IntoIterator<Item = StackId>) -> FxHashMap<StackId, u32> {
        let mut known = FxHashMap::default();
        let mut lines = FxHashMap::default();
        for stack in stacks {
            let empty = self.symbols.indexes(stack).is_empty();
            let why = empty.then(|| self.symbols.why_empty(stack));
            let next = known.len() as u32;
            let line =
                *known.entry((why, self.line(stack, &self.roles_of_block(stack)))).or_insert(next);
            lines.insert(stack, line);
        }
        lines
    }

    /// What the stacks of one forward line have in common.
    fn forward_key(&self, stack: StackId) -> impl Hash + Eq + use<'s> {
        let forward = self.symbols.forward_of(stack)?;
        let roles = self.roles(forward);
        let line = |at| self.frame(forward, at).map(|frame| (&frame.file, frame.line));
        Some((line(Some(roles.lead?))?, line(roles.caller)))
    }

    fn group<K: Hash + Eq>(
        &self,
        holdings: &Holdings,
        key: impl Fn(StackId, &FrameRoles) -> K,
    ) -> Vec<Holder> {
        // Stacks without frames are grouped by the reason why they have none.
        let why = |stack| match self.symbols.indexes(stack).is_empty() {
            true => Some(self.symbols.why_empty(stack)),
            false => None,
        };
        let mut all: FxHashMap<_, Group> = FxHashMap::default();
        for (&Owner { device, stack, of_cache, cause }, held) in &holdings.held {
            let roles = if of_cache { self.roles_of_block(stack) } else { self.roles(stack) };
            let key = (device, cause, why(stack), key(stack, &roles));
            let group = all.entry(key).or_default();
            if group.add(stack, *held) {
                (group.roles, group.of_cache) = (roles, of_cache);
            }
        }
        let holder = |((device, cause, ..), group): ((DeviceId, Option<Cause>, _, K), Group)| {
            self.holder(device, cause, None, group)
        };
        shared_out(all.into_iter().map(holder).collect())
    }

    /// Without its share.
    pub(in crate::analysis) fn holder(
        &self,
        device: DeviceId,
        cause: Option<Cause>,
        role: Option<Role>,
        Group { sum, stacks, stack, roles, of_cache, .. }: Group,
    ) -> Holder {
        let brought_back_by = sum.brought_back_by.map(|by| self.named(by));
        Holder {
            bytes: sum.bytes,
            error_bytes: sum.error(),
            count: sum.count,
            paused_bytes: sum.paused,
            unmapped_bytes: sum.unmapped,
            brought_back_by: brought_back_by.filter(|by| by.lead().is_some()),
            share: 0.0,
            device,
            library: self.library_name(&roles).map(str::to_string),
            stacks,
            stack: self.named_by(stack, &roles),
            process: self.process,
            driver_memory: cause,
            role,
            of_cache,
        }
    }
}
