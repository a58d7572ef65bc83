//! How to get from a function to its caller, for one address: learned once, kept in 16 bytes.
//!
//! Of all registers three are followed: where the code is, where its stack begins, and the frame
//! pointer. A rule that needs another one is not known to us, and the stack is cut there.

/// The registers of a frame. `sp` is the lowest address of its stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    pub ip: usize,
    pub sp: usize,
    pub bp: usize,
}

/// Where a rule leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnwindStep {
    /// `ip` is where the caller goes on after the call.
    Caller(State),
    /// `ip` is the very instruction: a signal came before it.
    Interrupted(State),
    /// A caller, if the code keeps a frame pointer.
    Guessed(State),
    /// There is no caller.
    End,
    /// Unknown.
    Lost,
}

/// From where the caller's stack is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CfaBase {
    Sp,
    Bp,
    /// From the word at that distance from the stack pointer.
    AtSp,
    /// From the word at that distance from the frame pointer.
    AtBp,
    /// As `AtSp`, and that is an interrupted frame, whose address is kept at a distance of `more`
    /// from the stack pointer.
    Signal,
    /// The frame pointer has not moved, if there is one.
    Guess,
    /// There is no caller.
    Nowhere,
    /// Not known.
    Lost,
}

/// Where the caller's frame pointer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SavedRegister {
    InPlace,
    /// At a distance from where the caller's stack begins.
    ByCaller,
    ByBp,
    BySp,
}

/// Zero bytes are an empty one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The address, and above its 47 bits `CfaBase` and `SavedRegister`.
    code: u64,
    up: i32,
    bp: i16,
    more: i16,
}

const ADDRESS: u32 = 48;
const NO_RULE: Rule = Rule { code: 0, up: 0, bp: 0, more: 0 };

impl Rule {
    /// For code without tables.
    pub const FRAME_POINTER: Rule = Rule::plain(CfaBase::Guess);
    pub const END: Rule = Rule::plain(CfaBase::Nowhere);
    pub const LOST: Rule = Rule::plain(CfaBase::Lost);

    const fn plain(from: CfaBase) -> Rule {
        Rule { code: (from as u64) << ADDRESS, ..NO_RULE }
    }

    /// `None`: it does not fit.
    pub fn new(
        from: CfaBase,
        up: i64,
        more: i64,
        (saved, bp): (SavedRegister, i64),
    ) -> Option<Rule> {
        let code = (from as u64) << ADDRESS | (saved as u64) << (ADDRESS + 8);
        let (up, bp) = (i32::try_from(up).ok()?, i16::try_from(bp).ok()?);
        Some(Rule { code, up, bp, more: i16::try_from(more).ok()? })
    }

    fn from(&self) -> u8 {
        (self.code >> ADDRESS) as u8
    }

    fn saved(&self) -> u8 {
        (self.code >> (ADDRESS + 8)) as u8
    }

    /// One frame out. `read`: a word of the stack.
    #[inline(always)]
    pub fn step(&self, at: State, read: &mut impl FnMut(usize) -> Option<usize>) -> UnwindStep {
        let from = self.from();
        let found = match from == CfaBase::Sp as u8 || from == CfaBase::Bp as u8 {
            true => {
                let base = if from == CfaBase::Sp as u8 { at.sp } else { at.bp };
                self.caller(at, base.wrapping_add_signed(self.up as isize), read)
            }
            false => return self.rare(at, read),
        };
        found.unwrap_or(UnwindStep::Lost)
    }

    /// `sp`: the caller's.
    #[inline(always)]
    fn caller(
        &self,
        at: State,
        sp: usize,
        read: &mut impl FnMut(usize) -> Option<usize>,
    ) -> Option<UnwindStep> {
        if sp <= at.sp {
            return None;
        }
        let ip = read(sp - 8)?;
        let saved = self.saved();
        let bp = match saved == SavedRegister::InPlace as u8 {
            true => at.bp,
            false => {
                let base = match saved {
                    saved if saved == SavedRegister::ByCaller as u8 => sp,
                    saved if saved == SavedRegister::ByBp as u8 => at.bp,
                    _ => at.sp,
                };
                read(base.wrapping_add_signed(self.bp.into()))?
            }
        };
        Some(if ip == 0 { UnwindStep::End } else { UnwindStep::Caller(State { ip, sp, bp }) })
    }

    #[inline(never)]
    fn rare(&self, at: State, read: &mut impl FnMut(usize) -> Option<usize>) -> UnwindStep {
        let is = |from: CfaBase| self.from() == from as u8;
        let away = |base: usize, by: i16| base.wrapping_add_signed(by.into());
        let mut word = |base: usize| read(base.wrapping_add_signed(self.up as isize));
        let found = if is(CfaBase::AtSp) || is(CfaBase::AtBp) {
            let base = if is(CfaBase::AtSp) { at.sp } else { at.bp };
            word(base).and_then(|sp| self.caller(at, away(sp, self.more), read))
        } else if is(CfaBase::Signal) {
            word(at.sp).and_then(|sp| {
                let ip = read(away(at.sp, self.more))?;
                let bp = read(away(at.sp, self.bp))?;
                (ip != 0).then_some(UnwindStep::Interrupted(State { ip, sp, bp }))
            })
        } else if is(CfaBase::Guess) {
            // Two words: the caller's frame pointer, and where it goes on.
            match at.bp {
                0 => Some(UnwindStep::End),
                bp if bp < at.sp || bp % 8 != 0 => None,
                bp => read(bp).zip(read(bp + 8)).map(|(saved, ip)| match ip {
                    0 => UnwindStep::End,
                    _ => UnwindStep::Guessed(State { ip, sp: bp + 16, bp: saved }),
                }),
            }
        } else if is(CfaBase::Nowhere) {
            Some(UnwindStep::End)
        } else {
            None
        };
        found.unwrap_or(UnwindStep::Lost)
    }
}

const BITS: u32 = 12;

/// Rules by address; of two that want one place the later one stays.
pub struct Rules(Box<[Rule]>);

impl Default for Rules {
    fn default() -> Rules {
        Rules(vec![NO_RULE; 1 << BITS].into())
    }
}

fn slot(code: usize) -> usize {
    ((code as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - BITS)) as usize
}

impl Rules {
    pub fn forget(&mut self) {
        self.0.fill(NO_RULE);
    }

    #[inline(always)]
    pub fn get(&self, code: usize) -> Option<Rule> {
        let rule = self.0[slot(code)];
        (rule.code << (64 - ADDRESS) == (code as u64) << (64 - ADDRESS)).then_some(rule)
    }

    pub fn put(&mut self, code: usize, rule: Rule) {
        let address = code as u64 & ((1 << ADDRESS) - 1);
        self.0[slot(code)] = Rule { code: rule.code | address, ..rule };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: State = State { ip: 5, sp: 1000, bp: 1104 };
    const SAME: (SavedRegister, i64) = (SavedRegister::InPlace, 0);

    /// Each word of the stack is its address and 10,000.
    fn step(rule: Option<Rule>) -> UnwindStep {
        rule.unwrap().step(AT, &mut |at| (1000..2000).contains(&at).then_some(at + 10_000))
    }

    fn caller(ip: usize, sp: usize, bp: usize) -> UnwindStep {
        UnwindStep::Caller(State { ip: 10_000 + ip, sp, bp })
    }

    #[test]
    fn plain_ones() {
        assert_eq!(step(Rule::new(CfaBase::Sp, 48, 0, SAME)), caller(1040, 1048, 1104));
        let saved = (SavedRegister::ByCaller, -16);
        assert_eq!(step(Rule::new(CfaBase::Sp, 48, 0, saved)), caller(1040, 1048, 11_032));
        assert_eq!(step(Rule::new(CfaBase::Bp, 16, 0, saved)), caller(1112, 1120, 11_104));
        assert_eq!(
            step(Rule::new(CfaBase::Sp, 0, 0, SAME)),
            UnwindStep::Lost,
            "does not get ahead"
        );
        assert_eq!(step(Rule::new(CfaBase::Sp, 2000, 0, SAME)), UnwindStep::Lost, "off the stack");
        assert_eq!(Rule::new(CfaBase::Sp, 1 << 40, 0, SAME), None);
    }

    #[test]
    fn rare_ones() {
        let through = Rule::new(CfaBase::AtBp, -8, -10_000, (SavedRegister::ByBp, 0));
        assert_eq!(step(through), caller(1088, 1096, 11_104));
        let signal = Rule::new(CfaBase::Signal, 160, 168, (SavedRegister::BySp, 120));
        let state = State { ip: 11_168, sp: 11_160, bp: 11_120 };
        assert_eq!(step(signal), UnwindStep::Interrupted(state));
        let guessed = State { ip: 11_112, sp: 1120, bp: 11_104 };
        assert_eq!(step(Some(Rule::FRAME_POINTER)), UnwindStep::Guessed(guessed));
        assert_eq!(step(Some(Rule::END)), UnwindStep::End);
        assert_eq!(step(Some(Rule::LOST)), UnwindStep::Lost);
    }

    #[test]
    fn kept_by_address() {
        let mut rules = Rules::default();
        assert_eq!(rules.get(0x7fff_1234_5678), None);
        rules.put(0x7fff_1234_5678, Rule::END);
        assert_eq!(rules.get(0x7fff_1234_5678).unwrap().from(), CfaBase::Nowhere as u8);
        assert_eq!(rules.get(0x7fff_1234_5679), None);
        rules.forget();
        assert_eq!(rules.get(0x7fff_1234_5678), None);
    }
}
