//! Rules out of rows of the tables, for aarch64.
//!
//! A call leaves the address to return to in x30, and a function that calls others keeps it
//! somewhere in its frame. Nothing ties its place to the start of the caller's stack. It may be signed;
//! [`super::rules`] takes the signature away wherever it reads one.

use super::rules::{CfaBase, Rule, SavedRegister};
use super::tables::{Bytes, Row};
use gimli::{AArch64, CfaRule, EhFrame, RegisterRule};

/// `None`: it is of a kind that we do not know.
pub fn rule(row: &Row, _code: usize, _is_signal: bool, _: &EhFrame<Bytes>) -> Option<Rule> {
    let (from, up) = match row.cfa() {
        CfaRule::RegisterAndOffset { register: AArch64::SP, offset } => (CfaBase::Sp, *offset),
        CfaRule::RegisterAndOffset { register: AArch64::X29, offset } => (CfaBase::Bp, *offset),
        _ => return None,
    };
    let saved = match row.register(AArch64::X29) {
        None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => None,
        Some(RegisterRule::Offset(by)) => Some(by),
        _ => return None,
    };
    let link = match row.register(AArch64::X30) {
        None | Some(RegisterRule::SameValue) => None,
        Some(RegisterRule::Offset(by)) => Some(by),
        Some(RegisterRule::Undefined) => return Some(Rule::END),
        _ => return None,
    };
    near_caller(from, up, saved, link).or_else(|| near_base(from, up, saved, link))
}

/// Where the registers lie, from where the caller's stack begins.
fn near_caller(from: CfaBase, up: i64, saved: Option<i64>, link: Option<i64>) -> Option<Rule> {
    let saved = saved.map_or((SavedRegister::InPlace, 0), |by| (SavedRegister::ByCaller, by));
    Rule::new(from, up, link.unwrap_or(Rule::IN_LINK), saved)
}

/// The same from the register that the frame is counted from: in a large frame, whose registers lie at
/// its low end.
fn near_base(from: CfaBase, up: i64, saved: Option<i64>, link: Option<i64>) -> Option<Rule> {
    let (by_base, in_place) = match from {
        CfaBase::Sp => (SavedRegister::BySp, SavedRegister::InPlaceLinkBySp),
        _ => (SavedRegister::ByBp, SavedRegister::InPlaceLinkByBp),
    };
    let saved = saved.map_or((in_place, 0), |by| (by_base, up + by));
    Rule::new(from, up, link.map_or(Rule::IN_LINK, |by| up + by), saved)
}

/// The rule of the code to which a signal's handler returns, where that is the kernel's: it has no
/// tables on new kernels.
///
/// # Safety
/// A handler will return to `at`.
pub unsafe fn signal_return(at: usize) -> Option<Rule> {
    // mov x8, 139; svc 0
    const CODE: [u32; 2] = [0xd280_1168, 0xd400_0001];
    if !at.is_multiple_of(4) {
        return None;
    }
    // SAFETY: as the caller promises: there is code, and all code can be read.
    let code = unsafe { (at as *const [u32; 2]).read() };
    // Of the kernel's structure: 128 bytes say which signal, then comes the context. Its registers x29,
    // x30, sp and pc follow each other.
    let rule = Rule::new(CfaBase::Signal, 560, 568, (SavedRegister::BySp, 544));
    (code == CODE).then_some(rule).flatten()
}
