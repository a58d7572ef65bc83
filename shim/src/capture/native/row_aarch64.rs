//! Makes rules of rows of the unwind tables, for aarch64.
//!
//! A call leaves the return address in x30, and a function that calls others stores it in its frame, at
//! no fixed distance from the caller's stack. It may be signed; [`super::rules`] strips the signature
//! wherever it reads one.

use super::rules::{CfaBase, Rule, SavedRegister};
use super::tables::{Bytes, Row};
use gimli::{AArch64, CfaRule, EhFrame, RegisterRule};

/// `None`: the row needs something that a rule cannot express.
pub fn rule(row: &Row, _is_signal: bool, _: &EhFrame<Bytes>) -> Option<Rule> {
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

/// Distances of the saved registers from the start of the caller's stack.
fn near_caller(from: CfaBase, up: i64, saved: Option<i64>, link: Option<i64>) -> Option<Rule> {
    let saved = saved.map_or((SavedRegister::InPlace, 0), |by| (SavedRegister::ByCaller, by));
    Rule::new(from, up, link.unwrap_or(Rule::IN_LINK), saved)
}

/// The same from the register that the frame is addressed by, for large frames whose saved registers
/// lie at the low end.
fn near_base(from: CfaBase, up: i64, saved: Option<i64>, link: Option<i64>) -> Option<Rule> {
    let (by_base, in_place) = match from {
        CfaBase::Sp => (SavedRegister::BySp, SavedRegister::InPlaceLinkBySp),
        _ => (SavedRegister::ByBp, SavedRegister::InPlaceLinkByBp),
    };
    let saved = saved.map_or((in_place, 0), |by| (by_base, up + by));
    Rule::new(from, up, link.map_or(Rule::IN_LINK, |by| up + by), saved)
}

/// The rule of the kernel's code to which a signal handler returns. On new kernels it has no tables.
///
/// # Safety
/// A signal handler will return to `at`.
pub unsafe fn signal_return(at: usize) -> Option<Rule> {
    // mov x8, 139; svc 0
    const CODE: [u32; 2] = [0xd280_1168, 0xd400_0001];
    if !at.is_multiple_of(4) {
        return None;
    }
    // SAFETY: a signal handler returns to `at`, so there is code of two instructions at least, and code
    // is readable here.
    let code = unsafe { (at as *const [u32; 2]).read() };
    // The kernel's structure begins with 128 bytes about the signal; the context follows. In it, x29,
    // x30, sp and pc are adjacent.
    let rule = Rule::new(CfaBase::Signal, 560, 568, (SavedRegister::BySp, 544));
    (code == CODE).then_some(rule).flatten()
}
