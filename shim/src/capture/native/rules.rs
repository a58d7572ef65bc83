//! What unwinding past an address comes to, learned once.
//!
//! The unwinder's own answers cost a look into tables of the library, or at best into its small
//! cache, which leaves out some functions that every call from Python goes through. Nearly all
//! rules are plain: the caller's stack begins at a fixed distance from the stack pointer or from
//! the frame pointer, and the caller's frame pointer is where it was or in a fixed place. Which
//! distances these are is found by asking the unwinder twice, each time with made-up registers and
//! a made-up stack. A rule that looks at anything else gives itself away and is not learned.

/// Registers on which unwinding depends; the unwinder keeps no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    pub ip: u64,
    pub sp: u64,
    pub bp: u64,
}

/// Zero bytes are an empty one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    /// Where the call is; 0: empty.
    code: u64,
    /// Bytes from the base up to where the caller's stack begins; the lowest bit: the base is the
    /// frame pointer.
    up: i32,
    /// Bytes from there to the caller's frame pointer; 0: it is still in its register.
    bp: i32,
}

const EMPTY: Rule = Rule { code: 0, up: 0, bp: 0 };
const BY_FRAME: i32 = 1;

const BITS: u32 = 12;

pub struct Rules(Box<[Rule]>);

impl Default for Rules {
    fn default() -> Rules {
        Rules(vec![EMPTY; 1 << BITS].into())
    }
}

fn slot(code: u64) -> usize {
    (code.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - BITS)) as usize
}

impl Rules {
    pub fn forget(&mut self) {
        self.0.fill(EMPTY);
    }

    /// The caller's registers. `None`: not known, or not to be had this way. `read`: a word of the
    /// stack.
    #[inline(always)]
    pub fn unwind(
        &self,
        code: u64,
        at: State,
        read: &mut impl FnMut(u64) -> Result<u64, ()>,
    ) -> Option<State> {
        let rule = &self.0[slot(code)];
        if rule.code != code {
            return None;
        }
        rule.apply(at, read)
    }

    /// Finds the rule that led from one state to the next. `ask`: the unwinder, with any registers
    /// and any stack.
    #[cold]
    pub fn learn(
        &mut self,
        code: u64,
        (from, to): (State, State),
        mut read: impl FnMut(u64) -> Result<u64, ()>,
        ask: impl FnMut(State, &mut dyn FnMut(u64) -> Result<u64, ()>) -> Option<State>,
    ) {
        if let Some(rule) = found(code, from.ip, ask)
            && rule.apply(from, &mut read) == Some(to)
        {
            self.0[slot(code)] = rule;
        }
    }
}

impl Rule {
    #[inline(always)]
    fn apply(&self, at: State, read: &mut impl FnMut(u64) -> Result<u64, ()>) -> Option<State> {
        let base = if self.up & BY_FRAME != 0 { at.bp } else { at.sp };
        let sp = base.wrapping_add_signed(i64::from(self.up & !BY_FRAME));
        if sp <= at.sp {
            return None;
        }
        let ip = read(sp - 8).ok()?;
        let bp = match self.bp {
            0 => at.bp,
            place => read(sp.wrapping_add_signed(i64::from(place))).ok()?,
        };
        (ip != 0).then_some(State { ip, sp, bp })
    }
}

/// A made-up stack: each word holds its own address and `more`, so that what was read from it
/// shows where.
struct Trial {
    sp: u64,
    bp: u64,
    more: u64,
}

/// No distance between them is in both.
const TRIALS: [Trial; 2] = [
    Trial { sp: 0x10_0000_0000, bp: 0x20_0000_0000, more: 0x100_0000_0000 },
    Trial { sp: 0x10_4000_0000, bp: 0x24_0000_0000, more: 0x700_0000_0000 },
];

fn found(
    code: u64,
    ip: u64,
    mut ask: impl FnMut(State, &mut dyn FnMut(u64) -> Result<u64, ()>) -> Option<State>,
) -> Option<Rule> {
    let mut rules = TRIALS.map(|Trial { sp, bp, more }| {
        let mut reads = [0; 2];
        let mut count = 0;
        let mut read = |address: u64| {
            if let Some(place) = reads.get_mut(count) {
                *place = address;
            }
            count += 1;
            Ok(address.wrapping_add(more))
        };
        let to = ask(State { ip, sp, bp }, &mut read)?;
        // The caller's frame pointer, less where its stack begins.
        let place = match to.bp == bp {
            true => 0,
            false => i32::try_from(to.bp.wrapping_sub(more).wrapping_sub(to.sp) as i64).ok()?,
        };
        let saved = to.sp.wrapping_add_signed(place.into());
        let known = |address: &u64| *address == to.sp - 8 || place != 0 && *address == saved;
        let plain = to.ip == (to.sp - 8).wrapping_add(more)
            && count <= reads.len()
            && reads[..count].iter().all(known);
        let up = |base: u64| i32::try_from(to.sp.wrapping_sub(base) as i64).ok();
        let up = up(sp).or(up(bp).map(|up| up | BY_FRAME))?;
        (plain && up & 6 == 0).then_some(Rule { code, up, bp: place })
    });
    let [one, other] = &mut rules;
    (one == other).then(|| one.take()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    type Read<'a> = &'a mut dyn FnMut(u64) -> Result<u64, ()>;

    fn learned(ask: impl FnMut(State, Read) -> Option<State>) -> Option<(i32, i32)> {
        found(77, 78, ask).map(|rule| (rule.up, rule.bp))
    }

    #[test]
    fn plain_rules_are_learned() {
        let by_stack = |at: State, read: Read| {
            Some(State { ip: read(at.sp + 40).ok()?, sp: at.sp + 48, bp: at.bp })
        };
        assert_eq!(learned(by_stack), Some((48, 0)));
        let with_saved = |at: State, read: Read| {
            let bp = read(at.sp + 16).ok()?;
            Some(State { ip: read(at.sp + 40).ok()?, sp: at.sp + 48, bp })
        };
        assert_eq!(learned(with_saved), Some((48, -32)));
        let by_frame = |at: State, read: Read| {
            let bp = read(at.bp).ok()?;
            Some(State { ip: read(at.bp + 8).ok()?, sp: at.bp + 16, bp })
        };
        assert_eq!(learned(by_frame), Some((16 | BY_FRAME, -16)));
    }

    #[test]
    fn others_give_themselves_away() {
        let through_memory = |at: State, read: Read| {
            let sp = read(at.bp - 8).ok()?;
            Some(State { ip: read(sp - 8).ok()?, sp, bp: read(at.bp).ok()? })
        };
        assert_eq!(learned(through_memory), None);
        let aligned = |at: State, read: Read| {
            let sp = (at.sp + at.bp) / 2;
            Some(State { ip: read(sp - 8).ok()?, sp, bp: at.bp })
        };
        assert_eq!(learned(aligned), None);
        let elsewhere = |at: State, read: Read| {
            Some(State { ip: read(at.sp).ok()?, sp: at.sp + 16, bp: at.bp })
        };
        assert_eq!(learned(elsewhere), None, "the return address is in another place");
        let looks_around = |at: State, read: Read| {
            read(at.sp + 8).ok()?;
            Some(State { ip: read(at.sp).ok()?, sp: at.sp + 8, bp: at.bp })
        };
        assert_eq!(learned(looks_around), None);
        assert_eq!(learned(|_, _| None), None, "a stack's end");
    }

    #[test]
    fn a_rule_is_tried_on_the_frame_that_it_comes_from() {
        let ask =
            |at: State, read: Read| Some(State { ip: read(at.sp).ok()?, sp: at.sp + 8, bp: at.bp });
        let from = State { ip: 5, sp: 1000, bp: 7 };
        let to = State { ip: 9, sp: 1008, bp: 7 };
        let mut rules = Rules::default();
        rules.learn(4, (from, State { sp: 1016, ..to }), |_| Ok(9), ask);
        assert_eq!(rules.unwind(4, from, &mut |_| Ok(9)), None);
        rules.learn(4, (from, to), |_| Ok(9), ask);
        assert_eq!(rules.unwind(4, from, &mut |_| Ok(9)), Some(to));
        assert_eq!(rules.unwind(4, from, &mut |_| Err(())), None);
        assert_eq!(rules.unwind(4, from, &mut |_| Ok(0)), None, "a stack's end");
        rules.forget();
        assert_eq!(rules.unwind(4, from, &mut |_| Ok(9)), None);
    }
}
