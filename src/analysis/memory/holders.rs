//! Holders of memory: bytes by line, function, library or stack.
//!
//! The library of driver memory is that of the innermost frame that is not plumbing; bindings, the
//! CUDA runtime, and what runs the program's code (IPython, pytest) are plumbing. The library of a PyTorch block is that of the innermost frame outside of
//! PyTorch's allocator and dispatch (its native code, and Python lines that only pass a call on).
//! `x + y` in `train.py` belongs to the program, a line of `transformers` to that package,
//! `torch.optim` to PyTorch; cuBLAS and NCCL are separate. A block's stack with frames of PyTorch
//! alone belongs to PyTorch. The recorder applies the same rules (`shim/src/oom/names.rs`).

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;
use std::hash::Hash;

use rustc_hash::FxHashMap;
use vramtrace_format::{Cause, DeviceId, Header, StackId};

use super::allocator_frames::{self, is_allocator, is_pool};
use super::fold::folds;
use super::holdings::{Held, Holdings};
use super::places::{Layer, Places, is_dispatch};
use crate::analysis::Level;
use crate::analysis::{autograd, engines};
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

/// Memory of one device that stacks with the same line, function, library or frames hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Holder {
    pub device: DeviceId,
    pub bytes: u64,
    pub count: u64,
    /// Bytes whose memory is unmapped and may be mapped again. Not in `bytes`.
    pub paused: u64,
    /// Of `bytes`, physical memory that is mapped nowhere.
    pub unmapped: u64,
    /// The call that brought memory back after it had been unmapped.
    pub brought_back_by: Option<StackId>,
    /// The standard error of `bytes`, where they are estimated from samples of blocks; else 0.
    pub error: u64,
    /// Number of different stacks.
    pub stacks: u64,
    /// The stack with the most bytes. Reports show its frames for all.
    pub stack: StackId,
    /// The library that requested the memory: `cuBLAS`, `PyTorch`, the program's name. `None`: not
    /// known from the stack.
    pub library: Option<String>,
    /// True: blocks of PyTorch's cache. False: driver memory.
    pub of_cache: bool,
    /// What the driver took the memory for. `None`: it was allocated.
    pub cause: Option<Cause>,
    /// Innermost frame outside of frameworks, as an index into the stack's frames.
    pub lead: Option<usize>,
    /// Innermost frame of the program's own tree outside of `lead`, as an index into the frames.
    pub caller: Option<usize>,
}

/// Sum of the holders' bytes on a device.
pub fn bytes_on(holders: &[Holder], device: DeviceId) -> u64 {
    let of_device = holders.iter().filter(|holder| holder.device == device);
    of_device.map(|holder| holder.bytes).fold(0, u64::saturating_add)
}

/// Sum of the bytes that the driver took on a device, of those of the holders.
pub fn driver_bytes_on(holders: &[Holder], device: DeviceId) -> u64 {
    let taken = holders.iter().filter(|holder| holder.device == device && holder.cause.is_some());
    taken.map(|holder| holder.bytes).fold(0, u64::saturating_add)
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
}

/// The frames of one stack that name its holder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameRoles {
    /// Index of the innermost frame outside of frameworks, see [`Holder::lead`].
    pub lead: Option<usize>,
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
        StackClassifier { symbols, layers, libraries, engines, program, titles, torch }
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
        let mut all: FxHashMap<_, (Held, u64, Held, StackId, FrameRoles, bool)> =
            FxHashMap::default();
        let at = |(device, stack): &(DeviceId, StackId)| (*device, *stack);
        let memory = holdings.held.iter().map(|(of, held)| (at(of), held, false, None));
        let blocks = holdings.blocks.iter().map(|(of, held)| (at(of), held, true, None));
        let driver = holdings.driver.iter();
        let driver = driver.map(|((d, s, cause), held)| ((*d, *s), held, false, Some(*cause)));
        for ((device, stack), &held, block, cause) in memory.chain(blocks).chain(driver) {
            let roles = if block { self.roles_of_block(stack) } else { self.roles(stack) };
            let group = all.entry((device, cause, why(stack), key(stack, &roles))).or_insert((
                Held::default(),
                0,
                Held::default(),
                stack,
                roles,
                block,
            ));
            group.0.add(held);
            group.1 += 1;
            // Of equal ones the lowest id, so that the output does not depend on the hash order.
            let larger = held.bytes.cmp(&group.2.bytes).then(group.3.cmp(&stack));
            if group.1 == 1 || larger == Ordering::Greater {
                (group.2, group.3, group.4, group.5) = (held, stack, roles, block);
            }
        }
        let mut holders: Vec<Holder> = all
            .into_iter()
            .map(|((device, cause, ..), (held, stacks, _, stack, roles, of_cache))| Holder {
                device,
                bytes: held.bytes,
                count: held.count,
                paused: held.paused,
                unmapped: held.unmapped,
                brought_back_by: held.brought_back_by,
                error: held.error(),
                stacks,
                stack,
                library: self.library_name(&roles).map(str::to_string),
                of_cache,
                cause,
                lead: roles.lead,
                caller: roles.caller,
            })
            .collect();
        holders.sort_by_key(|holder| {
            let size = Reverse((holder.bytes, holder.paused, holder.count));
            (size, holder.device, holder.stack, holder.cause)
        });
        holders
    }
}
