//! Makes rules of rows of the unwind tables, for x86-64.

use super::rules::{CfaBase, Rule, SavedRegister};
use super::tables::{Bytes, Row};
use gimli::{CfaRule, EhFrame, Expression, Operation, RegisterRule, UnwindExpression, X86_64};

/// `None`: the row needs something that a rule cannot express.
pub fn rule(row: &Row, code: usize, is_signal: bool, frames: &EhFrame<Bytes>) -> Option<Rule> {
    let evaluate = |expression: UnwindExpression<usize>| value(expression.get(frames).ok()?, code);
    let (from, up, more) = match row.cfa() {
        CfaRule::RegisterAndOffset { register: X86_64::RSP, offset } => (CfaBase::Sp, *offset, 0),
        CfaRule::RegisterAndOffset { register: X86_64::RBP, offset } => (CfaBase::Bp, *offset, 0),
        CfaRule::RegisterAndOffset { .. } => return None,
        CfaRule::Expression(expression) => match evaluate(*expression)? {
            Value::Near(Base::Sp, up) => (CfaBase::Sp, up, 0),
            Value::Near(Base::Bp, up) => (CfaBase::Bp, up, 0),
            Value::At(Base::Sp, up, more) => (CfaBase::AtSp, up, more),
            Value::At(Base::Bp, up, more) => (CfaBase::AtBp, up, more),
            Value::Number(_) => return None,
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
    Number(i64),
    /// A register plus a distance.
    Near(Base, i64),
    /// The word at a register plus the first distance, plus the second distance.
    At(Base, i64, i64),
}

impl Value {
    fn plus(self, more: i64) -> Option<Value> {
        Some(match self {
            Value::Number(number) => Value::Number(number.checked_add(more)?),
            Value::Near(base, by) => Value::Near(base, by.checked_add(more)?),
            Value::At(base, by, then) => Value::At(base, by, then.checked_add(more)?),
        })
    }
}

fn value(expression: Expression<Bytes>, code: usize) -> Option<Value> {
    let encoding = gimli::Encoding { address_size: 8, format: gimli::Format::Dwarf32, version: 4 };
    let mut operations = expression.operations(encoding);
    let mut stack = [Value::Number(0); 8];
    let mut depth = 0;
    while let Some(operation) = operations.next().ok()? {
        let mut pop = || {
            depth = usize::checked_sub(depth, 1)?;
            Some(stack[depth])
        };
        let result = match operation {
            Operation::RegisterOffset { register: X86_64::RSP, offset, .. } => {
                Value::Near(Base::Sp, offset)
            }
            Operation::RegisterOffset { register: X86_64::RBP, offset, .. } => {
                Value::Near(Base::Bp, offset)
            }
            Operation::RegisterOffset { register: X86_64::RA, offset, .. } => {
                Value::Number(code as i64).plus(offset)?
            }
            Operation::UnsignedConstant { value } => Value::Number(i64::try_from(value).ok()?),
            Operation::SignedConstant { value } => Value::Number(value),
            Operation::PlusConstant { value } => pop()?.plus(i64::try_from(value).ok()?)?,
            Operation::Deref { size: 8, space: false, .. } => match pop()? {
                Value::Near(base, by) => Value::At(base, by, 0),
                _ => return None,
            },
            Operation::Plus => match (pop()?, pop()?) {
                (Value::Number(number), other) | (other, Value::Number(number)) => {
                    other.plus(number)?
                }
                _ => return None,
            },
            _ => {
                let (Value::Number(b), Value::Number(a)) = (pop()?, pop()?) else { return None };
                Value::Number(match operation {
                    Operation::And => a & b,
                    Operation::Minus => a.checked_sub(b)?,
                    Operation::Shl => a.checked_shl(u32::try_from(b).ok()?)?,
                    Operation::Ge => (a >= b).into(),
                    Operation::Gt => (a > b).into(),
                    Operation::Le => (a <= b).into(),
                    Operation::Lt => (a < b).into(),
                    _ => return None,
                })
            }
        };
        *stack.get_mut(depth)? = result;
        depth += 1;
    }
    depth.checked_sub(1).map(|last| stack[last])
}

#[cfg(test)]
mod tests {
    use super::*;
    use gimli::{EndianSlice, LittleEndian};

    fn of(bytes: &'static [u8], code: usize) -> Option<Value> {
        value(Expression(EndianSlice::new(bytes, LittleEndian)), code)
    }

    #[test]
    fn expressions_that_compilers_and_linkers_write() {
        // rbp - 8, dereferenced: a frame that was aligned.
        assert_eq!(of(&[0x76, 0x78, 0x06], 0), Some(Value::At(Base::Bp, -8, 0)));
        // *(rsp + 16) + 8: code that switched to another stack.
        assert_eq!(of(&[0x77, 16, 0x06, 0x23, 8], 0), Some(Value::At(Base::Sp, 16, 8)));
        // A linkage table's: 8 bytes more from the 11th byte of an entry on.
        let linkage = &[0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
        assert_eq!(of(linkage, 0x1000), Some(Value::Near(Base::Sp, 8)));
        assert_eq!(of(linkage, 0x100a), Some(Value::Near(Base::Sp, 8)));
        assert_eq!(of(linkage, 0x100b), Some(Value::Near(Base::Sp, 16)));
    }

    #[test]
    fn others_are_not_guessed() {
        assert_eq!(of(&[0x73, 0], 0), None, "another register");
        assert_eq!(of(&[0x77, 0, 0x06, 0x06], 0), None, "two steps through memory");
        assert_eq!(of(&[0x22], 0), None, "nothing to add");
        assert_eq!(of(&[], 0), None);
        assert_eq!(of(&[0x30; 40], 0), None, "too deep");
    }
}
