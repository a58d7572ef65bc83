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
        None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => {
            (SavedRegister::InPlace, 0)
        }
        Some(RegisterRule::Offset(by)) => (SavedRegister::ByCaller, by),
        _ => return None,
    };
    match row.register(AArch64::X30) {
        None | Some(RegisterRule::SameValue) => Rule::new(from, up, Rule::IN_LINK, saved),
        Some(RegisterRule::Offset(by)) => Rule::new(from, up, by, saved),
        Some(RegisterRule::Undefined) => Some(Rule::END),
        _ => None,
    }
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
