//! The source line of an instruction of a Python code object.
//!
//! There are three encodings: pairs of address step and line step up to 3.9 (`co_lnotab`); pairs of range length and
//! line step, with a value for "no line", in 3.10 (`co_linetable`); entries of variable length from 3.11 on.

/// The line of the instruction at byte offset `lasti`; a negative `lasti` gives `first_line`. `None`: the instruction
/// has no line, or is beyond the table. `minor`: the Y of Python 3.Y. Never panics; a corrupt table gives a wrong line
/// or none.
pub fn line(minor: u8, first_line: i32, table: &[u8], lasti: i32) -> Option<u32> {
    // The function has not started: its definition line.
    let Ok(at) = u64::try_from(lasti) else { return u32::try_from(first_line).ok() };
    let line = match minor {
        ..=9 => Some(line_3_9(first_line.into(), table, at)),
        10 => line_3_10(first_line.into(), table, at),
        _ => line_3_11(first_line.into(), table, at),
    };
    line.and_then(|line| u32::try_from(line).ok())
}

/// Up to 3.9: (u8 address step, i8 line step).
fn line_3_9(mut line: i64, table: &[u8], at: u64) -> i64 {
    let mut address = 0;
    for pair in table.chunks_exact(2) {
        address += u64::from(pair[0]);
        if address > at {
            break;
        }
        line += i64::from(pair[1] as i8);
    }
    line
}

/// 3.10: (u8 length in bytes, i8 line step). A step of -128: the range has no line.
fn line_3_10(mut line: i64, table: &[u8], at: u64) -> Option<i64> {
    const NO_LINE: i8 = -128;
    let mut end = 0;
    for pair in table.chunks_exact(2) {
        let step = pair[1] as i8;
        end += u64::from(pair[0]);
        if step != NO_LINE {
            line += i64::from(step);
        }
        if end > at {
            return (step != NO_LINE).then_some(line);
        }
    }
    None
}

/// From 3.11 on: a byte with form and length (in units of 2 bytes), then the bytes of the form.
fn line_3_11(mut line: i64, table: &[u8], at: u64) -> Option<i64> {
    let mut rest = table;
    let mut end = 0;
    while let Some((&head, after)) = rest.split_first() {
        rest = after;
        let form = head >> 3 & 15;
        end += (u64::from(head & 7) + 1) * 2;
        match form {
            NO_LINE => {}
            LONG => {
                line = line.saturating_add(signed(&mut rest));
                for _end_line_and_columns in 0..3 {
                    unsigned(&mut rest);
                }
            }
            NO_COLUMNS => line = line.saturating_add(signed(&mut rest)),
            10..=12 => {
                line += i64::from(form - 10);
                rest = rest.get(2..).unwrap_or_default();
            }
            _ => rest = rest.get(1..).unwrap_or_default(),
        }
        if end > at {
            return (form != NO_LINE).then_some(line);
        }
    }
    None
}

// Forms of an entry. Forms 0 to 9 have no line step and 1 byte; 10 to 12 have line steps 0 to 2 and 2 bytes.
const NO_LINE: u8 = 15;
const LONG: u8 = 14;
const NO_COLUMNS: u8 = 13;

/// A variable-length integer: six bits in each byte, the lowest first. Bit 6: another byte follows.
fn unsigned(rest: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0u64, 0);
    while let Some((&byte, after)) = rest.split_first() {
        *rest = after;
        // A line number has fewer bits. A corrupt table may have any number of bytes.
        if shift < 60 {
            value |= u64::from(byte & 63) << shift;
        }
        shift += 6;
        if byte & 64 == 0 {
            break;
        }
    }
    value
}

/// As [`unsigned`], with the sign in the lowest bit.
fn signed(rest: &mut &[u8]) -> i64 {
    let value = unsigned(rest);
    let size = (value >> 1) as i64;
    if value & 1 != 0 { -size } else { size }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn before_the_first_instruction_it_is_the_line_of_the_definition() {
        for minor in 8..=14 {
            assert_eq!(line(minor, 7, &[], -1), Some(7));
        }
    }

    #[test]
    fn each_encoding_by_hand() {
        // 0..4 line 10, 4..10 line 12, then line 11.
        let steps = [4, 2, 6, 255];
        assert_eq!([0, 3, 4, 9, 10, 99].map(|at| line(9, 10, &steps, at)), {
            [10, 10, 12, 12, 11, 11].map(Some)
        });
        // 0..4 line 10, 4..6 none, 6..8 line 9.
        let ranges = [4, 0, 2, 128, 2, 255];
        let found = [0, 4, 6, 8].map(|at| line(10, 10, &ranges, at));
        assert_eq!(found, [Some(10), None, Some(9), None]);
        // 0..4 +1 with columns, 4..6 none, 6..22 -3 without columns, 22..24 +70 in long form.
        let entries = [
            0x80 | 11 << 3 | 1,
            0,
            0,
            0x80 | 15 << 3,
            0x80 | 13 << 3 | 7,
            3 << 1 | 1,
            0x80 | 14 << 3,
            64 | (140 & 63),
            140 >> 6,
            0,
            1,
            2,
        ];
        let found = [0, 4, 6, 21, 22, 24].map(|at| line(11, 10, &entries, at));
        assert_eq!(found, [Some(11), None, Some(8), Some(8), Some(78), None]);
    }

    proptest! {
        #[test]
        fn any_table_is_taken(
            minor in 6..20u8,
            first in any::<i32>(),
            table in proptest::collection::vec(any::<u8>(), 0..200),
            at in any::<i32>(),
        ) {
            let _ = line(minor, first, &table, at);
        }
    }
}
