//! From a thread's state to its Python frames. A thread's own frames change only on that thread, so
//! that it can read them without the interpreter's lock. Frames of other threads are never read.

use super::code;
use super::layout::{Chain, IS_ENTRY, Layout, ThreadBytecode};
use super::memory::Memory;
use crate::capture::fingerprint::mix;
use std::sync::atomic::{Ordering, fence};

#[derive(Clone, Copy, Debug, Default)]
pub struct Frame {
    /// Address of the code object.
    pub code: usize,
    pub identity: u64,
    /// Byte offset of the instruction.
    pub last_instruction: i32,
}

/// Frames that one interpreter's loop runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// The first one's index, the innermost.
    pub first: usize,
    /// An address on the C stack inside the loop's function.
    pub entry: usize,
}

/// Most frames that a walk visits, kept or not. Outer ones are not recorded.
const MOST: usize = 1 << 16;
const OWNED_BY_GENERATOR: u8 = 1;
pub(super) const OWNED_BY_C: u8 = 3;

pub struct Frames<'a> {
    pub frames: &'a mut [Frame],
    pub groups: &'a mut [Group],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Walked {
    pub frames: usize,
    pub groups: usize,
    pub cut: bool,
}

/// `None`: a value was not as expected.
#[inline]
pub fn walk(
    memory: &impl Memory,
    layout: &Layout,
    code_type: usize,
    thread: usize,
    out: Frames<'_>,
) -> Option<Walked> {
    let mut state =
        State { memory, layout, code_type, out, walked: Walked::default(), begun: 0, file: (0, 0) };
    state.all(thread)?;
    Some(state.walked)
}

/// Whether this interpreter frame (3.11 on) has begun to run. `last`: byte offset of its last
/// instruction.
#[inline(always)]
pub(super) fn has_begun(
    memory: &impl Memory,
    layout: &Layout,
    code: usize,
    last: isize,
    owner: u8,
) -> Option<bool> {
    let traceable = memory.int(code + layout.first_traceable)? as isize;
    Some(owner == OWNED_BY_GENERATOR || last >= 2 * traceable)
}

/// Where the bytecode begins that this frame of an interpreter's (3.11 on) runs.
#[inline(always)]
fn bytecode(memory: &impl Memory, layout: &Layout, frame: usize, code: usize) -> Option<usize> {
    match layout.thread_bytecode {
        None => Some(code + layout.bytecode),
        Some(place) => thread_bytecode(memory, place, frame, code),
    }
}

/// The array of copies grows when another thread first runs this code: then a longer array takes the
/// place of the old one, which is freed once no thread uses it. A thread that is inside CUDA counts as
/// one that does not. So the array is read between two reads of its address: if they agree it was not
/// freed before it was read.
fn thread_bytecode(
    memory: &impl Memory,
    place: ThreadBytecode,
    frame: usize,
    code: usize,
) -> Option<usize> {
    const TRIES: usize = 4;
    let index = usize::try_from(memory.int(frame + place.index)?).ok()?;
    for _ in 0..TRIES {
        let copies = memory.word(code + place.copies)?;
        // An array of a shorter length may end where memory ends.
        let bytecode = match index < memory.word(copies)? {
            true => Some(memory.word(copies.checked_add(8 * (index + 1))?)?),
            false => None,
        };
        fence(Ordering::Acquire);
        if memory.word(code + place.copies)? == copies {
            return bytecode;
        }
    }
    None
}

struct State<'a, M> {
    memory: &'a M,
    layout: &'a Layout,
    code_type: usize,
    out: Frames<'a>,
    walked: Walked,
    /// Index at which the current group begins.
    begun: usize,
    /// See [`code::identity`].
    file: (usize, u64),
}

impl<M: Memory> State<'_, M> {
    #[inline(always)]
    fn all(&mut self, thread: usize) -> Option<()> {
        let (memory, layout) = (self.memory, self.layout);
        // What marks the current group in the C stack, up to 3.11.
        let (mut entry, mut frame) = layout.first_frame(memory, thread)?;
        for _ in 0..MOST {
            if frame == 0 {
                return Some(());
            }
            let has_enough = match layout.chain {
                Chain::Objects => !self.object(frame)?,
                Chain::Entries => {
                    self.frame(frame)?;
                    let has_entry = memory.byte(frame + IS_ENTRY)? != 0;
                    let has_enough = has_entry && self.close(entry);
                    if has_entry && !has_enough {
                        entry = memory.word(entry + layout.cframe?.1)?;
                    }
                    has_enough
                }
                Chain::Markers if memory.byte(frame + layout.owner)? >= OWNED_BY_C => {
                    self.close(frame)
                }
                Chain::Markers => {
                    self.frame(frame)?;
                    false
                }
            };
            if has_enough {
                return Some(());
            }
            frame = memory.word(frame + layout.previous)?;
        }
        // There are more frames: those that were kept are the innermost, and the last group has no entry.
        self.walked.cut = true;
        Some(())
    }

    /// A frame object (up to 3.10). False: there is no room for more.
    fn object(&mut self, frame: usize) -> Option<bool> {
        let code = self.memory.word(frame + self.layout.code)?;
        let last = self.memory.int(frame + self.layout.instruction)?;
        let unit = if self.layout.minor == 10 { 2 } else { 1 };
        if !self.is_code(code)? {
            return None;
        }
        self.keep(code, last.checked_mul(unit)?)
    }

    /// An interpreter's frame (3.11 on).
    #[inline(always)]
    fn frame(&mut self, frame: usize) -> Option<()> {
        let layout = self.layout;
        let word = self.memory.word(frame + layout.code)?;
        let Some(code) = layout.object(word) else { return Some(()) };
        if !self.is_code(code)? {
            return Some(());
        }
        let instruction = self.memory.word(frame + layout.instruction)?;
        let bytecode = bytecode(self.memory, layout, frame, code)?;
        let last = instruction.wrapping_sub(bytecode) as isize;
        let owner = self.memory.byte(frame + layout.owner)?;
        if !has_begun(self.memory, layout, code, last, owner)? {
            return Some(());
        }
        let last = i32::try_from(last).ok().filter(|last| *last >= -2)?;
        self.keep(code, last).map(drop)
    }

    #[inline(always)]
    fn is_code(&self, code: usize) -> Option<bool> {
        Some(self.memory.word(code + self.layout.objects.object_type)? == self.code_type)
    }

    /// False: there is no room for more.
    #[inline(always)]
    fn keep(&mut self, code: usize, last_instruction: i32) -> Option<bool> {
        let Some(place) = self.out.frames.get_mut(self.walked.frames) else {
            self.walked.cut = true;
            return Some(false);
        };
        let identity = code::identity(self.memory, self.layout, code, &mut self.file)?;
        *place = Frame { code, identity, last_instruction };
        self.walked.frames += 1;
        Some(true)
    }

    /// Ends the current group, whose loop has `entry` in its C stack frame. True: no more frames are
    /// needed.
    #[inline(always)]
    fn close(&mut self, entry: usize) -> bool {
        if self.walked.frames > self.begun {
            let group = Group { first: self.begun, entry };
            if let Some(place) = self.out.groups.get_mut(self.walked.groups) {
                *place = group;
                self.walked.groups += 1;
            }
            self.begun = self.walked.frames;
        }
        self.walked.cut
    }
}

/// The fingerprint of frames. Each frame is multiplied independently, by a number of its position, so
/// that the products need not be computed one after the other.
#[inline]
pub fn fingerprint(frames: &[Frame]) -> u64 {
    let place = |at: usize| (at as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let one = |(at, frame): (usize, &Frame)| {
        mix(place(at), frame.identity ^ (frame.last_instruction as u32 as u64) << 17)
    };
    let all = frames.iter().enumerate().map(one).fold(0, |all, one| all ^ one);
    all ^ frames.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::python::memory::Plain;
    use std::cell::Cell;

    const PLACE: ThreadBytecode = ThreadBytecode { copies: 8, index: 4 };

    fn address<T>(of: &T) -> usize {
        &raw const *of as usize
    }

    #[test]
    fn each_thread_has_a_copy_of_the_bytecode() {
        let copies = [3usize, 0x1000, 0x2000, 0x3000];
        let code = [0usize, address(&copies)];
        for (index, expected) in [(0, Some(0x1000)), (2, Some(0x3000)), (3, None), (-1, None)] {
            let frame = [0i32, index];
            assert_eq!(thread_bytecode(&Plain, PLACE, address(&frame), address(&code)), expected);
        }
    }

    /// Memory in which every read within one object is granted.
    struct Within<'a>(&'a [usize; 4], &'a [usize; 2], &'a [i32; 2]);

    impl Memory for Within<'_> {
        fn read<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
            let within = |start: usize, bytes: usize| start <= at && at + N <= start + bytes;
            let granted = within(address(self.0), size_of_val(self.0))
                || within(address(self.1), size_of_val(self.1))
                || within(address(self.2), size_of_val(self.2));
            assert!(granted, "a read past the end of its object");
            Plain.read(at)
        }
    }

    #[test]
    fn a_shorter_array_is_not_read_past_its_end() {
        let copies = [3usize, 0x1000, 0x2000, 0x3000];
        let (code, frame) = ([0usize, address(&copies)], [0i32, 3]);
        let memory = Within(&copies, &code, &frame);
        assert_eq!(thread_bytecode(&memory, PLACE, address(&frame), address(&code)), None);
    }

    /// Replaces the array as soon as its length was read, so many times.
    struct Replacing<'a> {
        code: &'a [Cell<usize>; 2],
        arrays: &'a [[usize; 2]],
        left: Cell<usize>,
    }

    impl Memory for Replacing<'_> {
        fn read<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
            let value = Plain.read(at);
            if self.arrays.iter().any(|array| address(array) == at) && self.left.get() > 0 {
                self.left.set(self.left.get() - 1);
                self.code[1].set(address(&self.arrays[self.left.get()]));
            }
            value
        }
    }

    #[test]
    fn an_array_that_is_replaced_is_read_again() {
        let arrays: Vec<[usize; 2]> = (0..8).map(|n| [1, 0x1000 * (n + 1)]).collect();
        let frame = [0i32, 0];
        for (times, expected) in
            [(0, Some(0x8000)), (1, Some(0x1000)), (3, Some(0x1000)), (4, None)]
        {
            let code = [Cell::new(0), Cell::new(address(&arrays[7]))];
            let memory = Replacing { code: &code, arrays: &arrays, left: Cell::new(times) };
            let found = thread_bytecode(&memory, PLACE, address(&frame), address(&code));
            assert_eq!(found, expected, "replaced {times} times");
        }
    }
}
