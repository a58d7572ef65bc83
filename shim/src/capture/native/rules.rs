//! The unwind rule of one code address: how to get from a function to its caller. It is computed once
//! and kept in 16 bytes.
//!
//! Three registers are followed: instruction pointer, stack pointer and frame pointer (rbp, x29); on
//! aarch64 also the innermost frame's x30. Where a rule needs another register, the stack is cut.

/// The registers of a frame, and where a walk begins. `sp` is the lowest address of its stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    pub ip: usize,
    pub sp: usize,
    pub bp: usize,
    /// x30, if the frame has made no call yet. 0: not known.
    #[cfg(target_arch = "aarch64")]
    pub link: usize,
    /// `sp` is only a lower bound, because the previous frame was guessed.
    #[cfg(target_arch = "aarch64")]
    pub is_vague: bool,
}

impl State {
    /// That of the function into which this is inlined. It must not return before the walk has ended.
    #[inline(always)]
    pub fn here() -> State {
        let (ip, sp, bp);
        #[cfg(target_arch = "aarch64")]
        let link;
        // SAFETY: reads registers.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            core::arch::asm!(
                "lea {ip}, [rip]",
                "mov {sp}, rsp",
                "mov {bp}, rbp",
                ip = out(reg) ip,
                sp = out(reg) sp,
                bp = out(reg) bp,
                options(nostack, nomem, preserves_flags),
            );
        }
        // SAFETY: reads registers.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            core::arch::asm!(
                "adr {ip}, .",
                "mov {sp}, sp",
                "mov {bp}, x29",
                "mov {link}, x30",
                ip = out(reg) ip,
                sp = out(reg) sp,
                bp = out(reg) bp,
                link = out(reg) link,
                options(nostack, nomem, preserves_flags),
            );
        }
        State {
            #[cfg(target_arch = "aarch64")]
            link,
            ..State::new(ip, sp, bp)
        }
    }

    /// The state of a frame that has made a call.
    #[inline(always)]
    pub fn new(ip: usize, sp: usize, bp: usize) -> State {
        State {
            ip,
            sp,
            bp,
            #[cfg(target_arch = "aarch64")]
            link: 0,
            #[cfg(target_arch = "aarch64")]
            is_vague: false,
        }
    }
}

/// A return address without its signature (pointer authentication).
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub fn unsigned(address: usize) -> usize {
    let plain;
    // SAFETY: `xpaclri`, which changes x30 alone; older processors do nothing.
    unsafe {
        core::arch::asm!("hint 7", inout("x30") address => plain,
            options(nomem, nostack, preserves_flags));
    }
    plain
}

/// The result of applying a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnwindStep {
    /// `ip` is the return address in the caller.
    Caller(State),
    /// `ip` is the next instruction of code that a signal interrupted.
    Interrupted(State),
    /// A caller, if the code keeps a frame pointer.
    Guessed(State),
    /// There is no caller.
    End,
    /// Unknown.
    Lost,
}

/// The base from which the start of the caller's stack (the CFA) is computed.
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
    /// By the frame pointer, assuming that the code keeps one.
    Guess,
    /// There is no caller.
    Nowhere,
    /// Not known.
    Lost,
}

/// Where the caller's frame pointer is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SavedRegister {
    InPlace,
    /// At a distance from the start of the caller's stack.
    ByCaller,
    /// On aarch64, here and below, the return address is at a distance from that register too.
    ByBp,
    BySp,
    #[cfg(target_arch = "aarch64")]
    InPlaceLinkByBp,
    #[cfg(target_arch = "aarch64")]
    InPlaceLinkBySp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Rule {
    /// The address that it is kept for, of 47 bits.
    code: u32,
    code_high: u16,
    pub from: CfaBase,
    saved: SavedRegister,
    up: i32,
    /// In units of [`UNIT`], as `more`.
    bp: i16,
    /// On aarch64 also the place of the return address: see [`SavedRegister`].
    more: i16,
}

const _: () = assert!(size_of::<Rule>() == 16);

/// On aarch64 the registers of the caller lie at the low end of the frame, in whole words: distances in
/// words reach over frames of 256 KiB.
const UNIT: i64 = 1 << UNIT_BITS;
const UNIT_BITS: u32 = if cfg!(target_arch = "aarch64") { 3 } else { 0 };

/// `None`: the distance does not fit.
fn in_units(by: i64) -> Option<i16> {
    let units = i16::try_from(by >> UNIT_BITS).ok()?;
    (i64::from(units) << UNIT_BITS == by).then_some(units)
}

fn away(base: usize, units: i16) -> usize {
    base.wrapping_add_signed((i64::from(units) * UNIT) as isize)
}

impl Rule {
    /// The rule for code without unwind tables.
    pub const FRAME_POINTER: Rule = Rule::plain(CfaBase::Guess);
    pub const END: Rule = Rule::plain(CfaBase::Nowhere);
    pub const LOST: Rule = Rule::plain(CfaBase::Lost);

    /// Value of `more`: the return address is in x30.
    #[cfg(target_arch = "aarch64")]
    pub const IN_LINK: i64 = i16::MIN as i64 * UNIT;

    const fn plain(from: CfaBase) -> Rule {
        let saved = SavedRegister::InPlace;
        Rule { code: 0, code_high: 0, from, saved, up: 0, bp: 0, more: 0 }
    }

    /// `None`: the distance does not fit.
    pub fn new(
        from: CfaBase,
        up: i64,
        more: i64,
        (saved, bp): (SavedRegister, i64),
    ) -> Option<Rule> {
        let up = i32::try_from(up).ok()?;
        Some(Rule { saved, up, bp: in_units(bp)?, more: in_units(more)?, ..Rule::plain(from) })
    }

    /// Whether a step depends on the frame pointer. (It hands it on if it has not changed it.)
    pub fn uses_bp(&self) -> bool {
        #[cfg(target_arch = "x86_64")]
        let by_bp = self.saved == SavedRegister::ByBp;
        #[cfg(target_arch = "aarch64")]
        let by_bp = matches!(self.saved, SavedRegister::ByBp | SavedRegister::InPlaceLinkByBp);
        by_bp || matches!(self.from, CfaBase::Bp | CfaBase::AtBp | CfaBase::Guess)
    }

    /// Whether the return address is in a register.
    pub fn uses_link(&self) -> bool {
        #[cfg(target_arch = "aarch64")]
        return i64::from(self.more) * UNIT == Rule::IN_LINK;
        #[cfg(target_arch = "x86_64")]
        false
    }

    /// One frame out. `read`: a word of the stack.
    #[inline(always)]
    pub fn step(&self, at: State, read: &mut impl FnMut(usize) -> Option<usize>) -> UnwindStep {
        let base = match self.from {
            CfaBase::Sp => at.sp,
            CfaBase::Bp => at.bp,
            _ => return self.apply_uncommon(at, read).unwrap_or(UnwindStep::Lost),
        };
        let caller = self.caller(at, base.wrapping_add_signed(self.up as isize), read);
        caller.unwrap_or(UnwindStep::Lost)
    }

    /// The return address. `sp`: the caller's stack pointer.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn return_address(
        &self,
        at: State,
        sp: usize,
        read: &mut impl FnMut(usize) -> Option<usize>,
    ) -> Option<usize> {
        if sp <= at.sp { None } else { read(sp - 8) }
    }

    #[cfg(target_arch = "aarch64")]
    #[inline(always)]
    fn return_address(
        &self,
        at: State,
        sp: usize,
        read: &mut impl FnMut(usize) -> Option<usize>,
    ) -> Option<usize> {
        if self.uses_link() {
            // Only the innermost frame may be empty.
            return (sp >= at.sp && at.link != 0).then(|| unsigned(at.link));
        }
        let from_vague = at.is_vague && self.from == CfaBase::Sp;
        if sp <= at.sp || from_vague {
            return None;
        }
        let base = match self.saved {
            SavedRegister::ByBp | SavedRegister::InPlaceLinkByBp => at.bp,
            SavedRegister::BySp | SavedRegister::InPlaceLinkBySp => at.sp,
            _ => sp,
        };
        read(away(base, self.more)).map(unsigned)
    }

    /// `sp`: the caller's.
    #[inline(always)]
    fn caller(
        &self,
        at: State,
        sp: usize,
        read: &mut impl FnMut(usize) -> Option<usize>,
    ) -> Option<UnwindStep> {
        let ip = self.return_address(at, sp, read)?;
        let base = match self.saved {
            SavedRegister::ByCaller => Some(sp),
            SavedRegister::ByBp => Some(at.bp),
            SavedRegister::BySp => Some(at.sp),
            _ => None,
        };
        let bp = match base {
            Some(base) => read(away(base, self.bp))?,
            None => at.bp,
        };
        Some(if ip == 0 { UnwindStep::End } else { UnwindStep::Caller(State::new(ip, sp, bp)) })
    }

    /// Applies a rule of an uncommon form.
    #[inline(never)]
    fn apply_uncommon(
        &self,
        at: State,
        read: &mut impl FnMut(usize) -> Option<usize>,
    ) -> Option<UnwindStep> {
        #[cfg(target_arch = "aarch64")]
        if at.is_vague && self.from == CfaBase::Signal {
            return None;
        }
        let base = if self.from == CfaBase::AtBp { at.bp } else { at.sp };
        let place = base.wrapping_add_signed(self.up as isize);
        match self.from {
            CfaBase::AtSp | CfaBase::AtBp => {
                let sp = read(place)?;
                self.caller(at, away(sp, self.more), read)
            }
            CfaBase::Signal => {
                let (sp, ip) = (read(place)?, read(away(at.sp, self.more))?);
                let saved = away(at.sp, self.bp);
                #[allow(unused_mut)]
                let mut state = State::new(ip, sp, read(saved)?);
                #[cfg(target_arch = "aarch64")]
                {
                    // The registers stand in order: x29, x30.
                    state.link = read(saved + 8)?;
                }
                (ip != 0).then_some(UnwindStep::Interrupted(state))
            }
            // Two words: the caller's frame pointer, and the return address.
            CfaBase::Guess => match at.bp {
                0 => Some(UnwindStep::End),
                bp if bp < at.sp || bp % 8 != 0 => None,
                bp => read(bp).zip(read(bp + 8)).map(|(saved, ip)| guessed(ip, bp + 16, saved)),
            },
            CfaBase::Nowhere => Some(UnwindStep::End),
            CfaBase::Sp | CfaBase::Bp | CfaBase::Lost => None,
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn guessed(ip: usize, sp: usize, bp: usize) -> UnwindStep {
    if ip == 0 { UnwindStep::End } else { UnwindStep::Guessed(State::new(ip, sp, bp)) }
}

/// The two words may lie anywhere in the frame: the stack of the caller begins there or further up.
#[cfg(target_arch = "aarch64")]
fn guessed(ip: usize, sp: usize, bp: usize) -> UnwindStep {
    let caller = State { is_vague: true, ..State::new(unsigned(ip), sp, bp) };
    if ip == 0 { UnwindStep::End } else { UnwindStep::Guessed(caller) }
}

const BITS: u32 = 12;

/// Rules by address; of two that want one place the later one stays.
pub struct Rules(Box<[Rule]>);

/// The code at address 0 has none.
const NO_RULE: Rule = Rule::LOST;

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
        let is_its = rule.code == code as u32 && rule.code_high == (code >> 32) as u16;
        is_its.then_some(rule)
    }

    pub fn put(&mut self, code: usize, rule: Rule) {
        self.0[slot(code)] = Rule { code: code as u32, code_high: (code >> 32) as u16, ..rule };
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
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
    fn rules_for_signals_saved_stack_pointers_and_guesses() {
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
        assert_eq!(rules.get(0x7fff_1234_5678).unwrap().from, CfaBase::Nowhere);
        assert_eq!(rules.get(0x7fff_1234_5679), None);
        rules.forget();
        assert_eq!(rules.get(0x7fff_1234_5678), None);
    }
}

#[cfg(all(test, target_arch = "aarch64"))]
mod tests_aarch64 {
    use super::*;

    const AT: State = State { ip: 5, sp: 1000, bp: 1104, link: 0, is_vague: false };
    const SAVED: (SavedRegister, i64) = (SavedRegister::ByCaller, -48);

    /// Each word of the stack is its address and 10,000.
    fn step(rule: Option<Rule>, at: State) -> UnwindStep {
        rule.unwrap().step(at, &mut |at| (1000..2000).contains(&at).then_some(at + 10_000))
    }

    fn caller(ip: usize, sp: usize, bp: usize) -> UnwindStep {
        UnwindStep::Caller(State::new(10_000 + ip, sp, bp))
    }

    #[test]
    fn the_address_is_anywhere_in_the_frame() {
        let rule = Rule::new(CfaBase::Sp, 48, -40, SAVED);
        assert_eq!(step(rule, AT), caller(1008, 1048, 11_000));
        let rule = Rule::new(CfaBase::Bp, 64, -56, SAVED);
        assert_eq!(step(rule, AT), caller(1112, 1168, 11_120));
        assert_eq!(step(Rule::new(CfaBase::Sp, 0, -8, SAVED), AT), UnwindStep::Lost);
    }

    #[test]
    fn the_innermost_frame_may_keep_nothing() {
        let leaf = Rule::new(CfaBase::Sp, 0, Rule::IN_LINK, (SavedRegister::InPlace, 0));
        let at = State { link: 77, ..AT };
        assert_eq!(step(leaf, at), UnwindStep::Caller(State::new(77, 1000, 1104)));
        assert_eq!(step(leaf, AT), UnwindStep::Lost, "not known any more");
    }

    #[test]
    fn after_a_guess_the_stack_pointer_is_not_known() {
        let UnwindStep::Guessed(state) = step(Some(Rule::FRAME_POINTER), AT) else { panic!() };
        assert_eq!((state.ip, state.sp, state.bp, state.is_vague), (11_112, 1120, 11_104, true));
        assert_eq!(step(Rule::new(CfaBase::Sp, 48, -40, SAVED), state), UnwindStep::Lost);
        let near = State { bp: 1200, ..state };
        let rule = Rule::new(CfaBase::Bp, 64, -56, SAVED);
        assert_eq!(step(rule, near), caller(1208, 1264, 11_216));
    }

    #[test]
    fn a_signal_gives_all_registers_back() {
        let signal = Rule::new(CfaBase::Signal, 560, 568, (SavedRegister::BySp, 544));
        let state = State { link: 11_552, ..State::new(11_568, 11_560, 11_544) };
        assert_eq!(step(signal, AT), UnwindStep::Interrupted(state));
    }

    #[test]
    fn signatures_are_taken_away() {
        assert_eq!(unsigned(0xffff_8000_1234), 0xffff_8000_1234);
    }
}
