//! Makes rules of rows of the unwind tables, for x86-64.

use super::rules::{CfaBase, Rule, SavedRegister};
use super::tables::{Bytes, Row};
use gimli::{CfaRule, EhFrame, Expression, Operation, RegisterRule, UnwindExpression, X86_64};

/// `None`: the row needs something that a rule cannot express.
pub fn rule(row: &Row, is_signal: bool, frames: &EhFrame<Bytes>) -> Option<Rule> {
    let evaluate = |expression: UnwindExpression<usize>| value(expression.get(frames).ok()?);
    let (from, up, more) = match row.cfa() {
        CfaRule::RegisterAndOffset { register: X86_64::RSP, offset } => (CfaBase::Sp, *offset, 0),
        CfaRule::RegisterAndOffset { register: X86_64::RBP, offset } => (CfaBase::Bp, *offset, 0),
        CfaRule::RegisterAndOffset { .. } => return None,
        CfaRule::Expression(expression) => match evaluate(*expression)? {
            Value::Near(Base::Sp, up) => (CfaBase::Sp, up, 0),
            Value::Near(Base::Bp, up) => (CfaBase::Bp, up, 0),
            Value::At(Base::Sp, up, more) => (CfaBase::AtSp, up, more),
            Value::At(Base::Bp, up, more) => (CfaBase::AtBp, up, more),
        },
    };
    let saved = match row.register(X86_64::RBP) {
        None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => {
            (SavedRegister::InPlace, 0)
        }
        Some(RegisterRule::Offset(by)) => (SavedRegister::ByCaller, by),
        Some(RegisterRule::Expression(expression)) => match evaluate(expression)? {
            Value::Near(Base::Sp, by) => (SavedRegister::BySp, by),
            Value::Near(Base::Bp, by) => (SavedRegister::ByBp, by),
            _ => return None,
        },
        _ => return None,
    };
    match row.register(X86_64::RA) {
        Some(RegisterRule::Offset(-8)) => Rule::new(from, up, more, saved),
        None | Some(RegisterRule::Undefined) => Some(Rule::END),
        Some(RegisterRule::Expression(expression)) if is_signal => {
            match (evaluate(expression)?, from, saved.0) {
                (Value::Near(Base::Sp, place), CfaBase::AtSp, SavedRegister::BySp) if more == 0 => {
                    Rule::new(CfaBase::Signal, up, place, saved)
                }
                _ => None,
            }
        }
        _ => None,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    Sp,
    Bp,
}

/// A value as far as it can be computed in advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    /// A register plus a distance.
    Near(Base, i64),
    /// The word at a register plus the first distance, plus the second distance.
    At(Base, i64, i64),
}

/// `None`: the expression is of another form. Linkage tables, which run no calls, have one of those.
fn value(expression: Expression<Bytes>) -> Option<Value> {
    let encoding = gimli::Encoding { address_size: 8, format: gimli::Format::Dwarf32, version: 4 };
    let mut operations = expression.operations(encoding);
    let mut value = None;
    while let Some(operation) = operations.next().ok()? {
        value = Some(match (operation, value) {
            (Operation::RegisterOffset { register: X86_64::RSP, offset, .. }, None) => {
                Value::Near(Base::Sp, offset)
            }
            (Operation::RegisterOffset { register: X86_64::RBP, offset, .. }, None) => {
                Value::Near(Base::Bp, offset)
            }
            (Operation::Deref { size: 8, space: false, .. }, Some(Value::Near(base, by))) => {
                Value::At(base, by, 0)
            }
            (Operation::PlusConstant { value: more }, Some(Value::At(base, by, 0))) => {
                Value::At(base, by, i64::try_from(more).ok()?)
            }
            _ => return None,
        });
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use gimli::{EndianSlice, LittleEndian};

    fn of(bytes: &'static [u8]) -> Option<Value> {
        value(Expression(EndianSlice::new(bytes, LittleEndian)))
    }

    #[test]
    fn expressions_that_compilers_and_linkers_write() {
        // rbp - 8, dereferenced: a frame that was aligned.
        assert_eq!(of(&[0x76, 0x78, 0x06]), Some(Value::At(Base::Bp, -8, 0)));
        // *(rsp + 16) + 8: code that switched to another stack.
        assert_eq!(of(&[0x77, 16, 0x06, 0x23, 8]), Some(Value::At(Base::Sp, 16, 8)));
    }

    #[test]
    fn others_are_not_guessed() {
        assert_eq!(of(&[0x73, 0]), None, "another register");
        assert_eq!(of(&[0x77, 0, 0x06, 0x06]), None, "two steps through memory");
        assert_eq!(of(&[0x22]), None, "nothing to add");
        assert_eq!(of(&[]), None);
        let linkage = &[0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
        assert_eq!(of(linkage), None, "arithmetic");
    }
}
