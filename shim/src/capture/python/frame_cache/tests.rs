//! Against a model: random programs on frames made by hand, at addresses that are used again.

use super::*;
use crate::capture::python::layout::Chain;
use crate::capture::python::walk::OWNED_BY_C;
use proptest::prelude::*;
use std::collections::HashMap;

const DEPTHS: usize = 12;
const FUNCTIONS: usize = 5;
/// Frames with a place of their own, at whatever depth they run. Their code objects are behind those of the functions.
const GENERATORS: usize = 2;
const CODES: usize = FUNCTIONS + GENERATORS;
const OWNED_BY_GENERATOR: u8 = 1;

/// A process's memory, words at fixed addresses.
struct World {
    layout: Layout,
    thread: Box<[u64; 32]>,
    cframe: Box<[u64; 4]>,
    frames: Vec<[u64; 32]>,
    codes: Vec<[u64; 32]>,
    names: Vec<[u64; 8]>,
    tables: Vec<[u64; 16]>,
    depth: usize,
    /// What each frame is, from the outermost: code slot with its life, instruction, owner.
    stack: Vec<(usize, u64, u64, u8)>,
    /// Of each frame that is a generator's: which.
    generators: Vec<Option<usize>>,
    lives: [u64; CODES],
    /// See `freed_codes::all`.
    freed: u64,
}

const TYPE_OF_CODE: usize = 0x7000_0000;

fn at<T>(of: &T) -> usize {
    &raw const *of as usize
}

fn put_word(words: &mut [u64], offset: usize, value: u64) {
    assert_eq!(offset % 8, 0);
    words[offset / 8] = value;
}

fn put_int(words: &mut [u64], offset: usize, value: u32) {
    let shift = (offset % 8) * 8;
    let word = &mut words[offset / 8];
    *word = *word & !(0xffff_ffff << shift) | u64::from(value) << shift;
}

fn put_byte(words: &mut [u64], offset: usize, value: u8) {
    let shift = (offset % 8) * 8;
    let word = &mut words[offset / 8];
    *word = *word & !(0xff << shift) | u64::from(value) << shift;
}

impl World {
    fn new(version: u32, freed: u64) -> World {
        // Never grown: the addresses stay.
        let boxes = |n| vec![[0; 32]; n];
        let mut world = World {
            layout: Layout::of(version, 0).unwrap(),
            thread: Box::new([0; 32]),
            cframe: Box::new([0; 4]),
            frames: boxes(DEPTHS + GENERATORS),
            codes: boxes(CODES),
            names: vec![[0; 8]; CODES],
            tables: vec![[0; 16]; CODES],
            depth: 0,
            stack: Vec::new(),
            generators: Vec::new(),
            lives: [0; CODES],
            freed,
        };
        (0..CODES).for_each(|code| world.replace(code));
        world.link();
        world
    }

    /// The code object in this slot dies and another one takes its place, strings and all.
    fn replace(&mut self, code: usize) {
        if self.stack.iter().any(|frame| frame.0 == code) {
            return;
        }
        self.freed += 2;
        self.lives[code] += 1;
        let life = self.lives[code];
        let (layout, name, table) = (self.layout, &mut self.names[code], &mut self.tables[code]);
        put_word(&mut name[..], 16, 3);
        put_word(&mut name[..], 24, life.wrapping_mul(77));
        put_word(&mut table[..], 16, 16);
        put_word(&mut table[..], 32, life);
        let (name, table) = (at(name) as u64, at(table) as u64);
        let words = &mut self.codes[code][..];
        put_word(words, 8, TYPE_OF_CODE as u64);
        put_word(words, layout.file, name);
        put_word(words, layout.name, name);
        put_word(words, layout.line_table, table);
        put_int(words, layout.first_line, 10);
        if layout.version != 0 {
            put_int(words, layout.version, (life * CODES as u64 + code as u64) as u32);
        }
    }

    /// The index of the place of the frame at this depth.
    fn place(&self, depth: usize) -> usize {
        self.generators[depth].map_or(depth, |generator| DEPTHS + generator)
    }

    fn link(&mut self) {
        let layout = self.layout;
        self.generators.resize(self.stack.len(), None);
        for index in 0..self.stack.len() {
            let (code, _, instruction, owner) = self.stack[index];
            let previous = match index {
                0 => 0,
                _ => at(&self.frames[self.place(index - 1)]) as u64,
            };
            let code = at(&self.codes[code]);
            let place = self.place(index);
            let words = &mut self.frames[place][..];
            put_word(words, layout.previous, previous);
            put_word(words, layout.code, code as u64);
            if layout.chain == Chain::Objects {
                put_int(words, layout.instruction, instruction as u32);
            } else {
                // A marker stands at an instruction that no function has.
                let begin = if owner == OWNED_BY_C { TYPE_OF_CODE } else { code + layout.bytecode };
                put_word(words, layout.instruction, begin as u64 + instruction);
                put_byte(words, layout.owner, owner);
            }
        }
        let top = self.stack.len().checked_sub(1);
        let top = top.map_or(0, |top| at(&self.frames[self.place(top)]) as u64);
        match layout.cframe {
            Some((current, _)) => {
                put_word(&mut self.cframe[..], current, top);
                put_word(&mut self.thread[..], layout.first, at(&*self.cframe) as u64);
            }
            None => put_word(&mut self.thread[..], layout.first, top),
        }
        self.depth = self.stack.len();
    }
}

#[derive(Clone, Debug)]
enum Step {
    Call {
        code: usize,
        instruction: u64,
        marker: bool,
    },
    Return(usize),
    Resume {
        generator: usize,
        instruction: u64,
    },
    Go {
        up: usize,
        instruction: u64,
    },
    Replace(usize),
    /// The innermost function returns, dies, and one like it is called from the same place.
    Again,
    Allocate,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..FUNCTIONS, 0..3u64, prop::bool::weighted(0.1))
            .prop_map(|(code, instruction, marker)| Step::Call { code, instruction, marker }),
        2 => (1..4usize).prop_map(Step::Return),
        2 => (0..GENERATORS, 0..2u64)
            .prop_map(|(generator, instruction)| Step::Resume { generator, instruction }),
        2 => (0..3usize, 0..3u64).prop_map(|(up, instruction)| Step::Go { up, instruction }),
        1 => (0..CODES).prop_map(Step::Replace),
        1 => Just(Step::Again),
        4 => Just(Step::Allocate),
    ]
}

/// `counted`: frees of code objects are.
fn run(
    version: u32,
    counted: bool,
    steps: &[Step],
    quick: &mut FrameCache,
) -> Result<(), TestCaseError> {
    let mut world = World::new(version, counted.into());
    let mut fingerprints: HashMap<Vec<(usize, u64, u64, u8)>, u64> = HashMap::new();
    let mut stacks: HashMap<u64, Vec<(usize, u64, u64, u8)>> = HashMap::new();
    for step in steps {
        match *step {
            Step::Call { code, instruction, marker } if world.stack.len() < DEPTHS => {
                let marks = marker && world.layout.chain == Chain::Markers;
                let frame = match marks {
                    true => (0, 0, 0, OWNED_BY_C),
                    false => (code, world.lives[code], instruction, 0),
                };
                world.stack.push(frame);
            }
            Step::Return(count) => {
                let left = world.stack.len().saturating_sub(count);
                world.stack.truncate(left);
            }
            Step::Resume { generator, instruction }
                if world.stack.len() < DEPTHS && !world.generators.contains(&Some(generator)) =>
            {
                let owner = match world.layout.chain {
                    Chain::Objects => 0,
                    _ => OWNED_BY_GENERATOR,
                };
                let code = FUNCTIONS + generator;
                world.stack.push((code, world.lives[code], instruction, owner));
                world.generators.push(Some(generator));
            }
            // Only the innermost frames run on without a return.
            Step::Go { up: 0, instruction } => {
                if let Some(frame) = world.stack.last_mut().filter(|frame| frame.3 == 0) {
                    frame.2 = instruction;
                }
            }
            Step::Go { up, instruction } => {
                let left = world.stack.len().saturating_sub(up);
                world.stack.truncate(left);
                if let Some(frame) = world.stack.last_mut().filter(|frame| frame.3 == 0) {
                    frame.2 = instruction;
                }
            }
            Step::Replace(code) => world.replace(code),
            Step::Again => {
                if let Some((code, _, instruction, 0)) = world.stack.pop() {
                    world.generators.pop();
                    world.replace(code);
                    world.stack.push((code, world.lives[code], instruction, 0));
                }
            }
            _ => {}
        }
        world.link();
        if matches!(step, Step::Allocate) {
            let thread = at(&*world.thread);
            let found = quick.fingerprint(&world.layout, TYPE_OF_CODE, thread, 64, world.freed);
            let functions = world.stack.iter().filter(|frame| frame.3 < OWNED_BY_C).count();
            prop_assert_eq!(found.is_some(), functions != 0);
            let Some(found) = found else { continue };
            let key = world.stack.clone();
            prop_assert_eq!(*fingerprints.entry(key.clone()).or_insert(found), found);
            prop_assert_eq!(stacks.entry(found).or_insert(key.clone()), &key);
        }
    }
    Ok(())
}

fn fresh() -> Box<FrameCache> {
    Box::new(FrameCache {
        len: 0,
        freed: 0,
        seen: [Seen::default(); PLACES],
        sums: [Known::default(); PLACES],
        indices: [0; 256],
        changed: [0; PLACES],
        recent: [Recent::default(); RECENT],
    })
}

proptest! {
    #[test]
    fn equal_stacks_and_no_others_have_equal_prints(
        steps in prop::collection::vec(step(), 1..200),
        version in prop::sample::select(vec![0x0308_12f0u32, 0x030a_0df0, 0x030b_07f0, 0x030c_01f0]),
        counted in prop::bool::ANY,
    ) {
        run(version, counted, &steps, &mut fresh())?;
    }
}

#[test]
fn a_deeper_stack_than_is_kept_is_another_matter() {
    let mut world = World::new(0x030c_01f0, 1);
    world.stack = vec![(0, 1, 1, 0); 10];
    world.link();
    let mut quick = fresh();
    let thread = at(&*world.thread);
    assert_eq!(quick.fingerprint(&world.layout, TYPE_OF_CODE, thread, 9, 1), None);
    let whole = quick.fingerprint(&world.layout, TYPE_OF_CODE, thread, 10, 1).unwrap();
    assert_eq!(quick.fingerprint(&world.layout, TYPE_OF_CODE, thread, 10, 1), Some(whole));
    assert_eq!(quick.fingerprint(&world.layout, TYPE_OF_CODE, thread, 9, 1), None);
    assert_eq!(quick.fingerprint(&world.layout, TYPE_OF_CODE, thread, 10, 1), Some(whole));
}
