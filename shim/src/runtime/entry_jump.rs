//! Where the first instructions of a function lead, if another library replaced them by a jump.
//!
//! Such a library (funchook, UCX, Frida) writes a jump over the beginning of a function. The jump leads to the library's
//! own function, often through a piece of generated code nearby, since a short jump does not reach further. The library
//! calls the rest of the function through a copy of the instructions that it replaced.
//!
//! Code that other threads may be writing is read as memory that may not be there; what is read in between is at worst
//! no jump, or one that leads nowhere.

use crate::runtime::readable::read_word;

/// Most jumps in a row that are followed.
const HOPS: usize = 4;
/// The longest form of a jump, and a mark for indirect calls before it; in whole words.
const LONGEST: usize = 24;
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Jump {
    To(usize),
    /// To the address that is stored at this one.
    Through(usize),
}

/// Whether code that begins with these bytes may be such a jump. No function of this library begins so.
#[inline]
pub fn may_be_jump(code: [u8; 8]) -> bool {
    let code = if code[..4] == ENDBR64 { &code[4..] } else { &code[..] };
    let begins = matches!(
        code,
        [0xe9 | 0xeb | 0x68, ..] | [0xff, 0x25, ..] | [0x48, 0xb8, ..] | [0x49, 0xba | 0xbb, ..]
    );
    cfg!(target_arch = "x86_64") && begins
}

/// Where the code at `at` jumps to. Jumps are followed until one leads to an address that `is_end` accepts, or to code
/// that is no jump. `None`: the code at `at` is no jump.
pub fn destination(at: usize, is_end: impl Fn(usize) -> bool) -> Option<usize> {
    let mut reached = jump(at)?;
    for _ in 1..HOPS {
        if is_end(reached) {
            break;
        }
        let Some(next) = jump(reached) else { break };
        reached = next;
    }
    Some(reached)
}

fn jump(at: usize) -> Option<usize> {
    let mut code = [0u8; LONGEST];
    for (n, word) in code.chunks_exact_mut(8).enumerate() {
        match at.checked_add(8 * n).and_then(read_word) {
            Some(read) => word.copy_from_slice(&read.to_ne_bytes()),
            // The page ends here.
            None if n > 0 => break,
            None => return None,
        }
    }
    match decode(&code, at)? {
        Jump::To(address) => Some(address),
        Jump::Through(pointer) => read_word(pointer).map(|address| address as usize),
    }
}

/// The jump that code at this address is.
fn decode(code: &[u8; LONGEST], at: usize) -> Option<Jump> {
    let (code, at) = match code.strip_prefix(&ENDBR64) {
        Some(rest) => (rest, at.wrapping_add(ENDBR64.len())),
        None => (&code[..], at),
    };
    let near = |length: usize, distance: i32| {
        at.wrapping_add(length).wrapping_add_signed(distance as isize)
    };
    Some(match *code {
        [0xe9, a, b, c, d, ..] => Jump::To(near(5, i32::from_le_bytes([a, b, c, d]))),
        [0xeb, a, ..] => Jump::To(near(2, i32::from(a as i8))),
        // jmp [rip + distance]
        [0xff, 0x25, a, b, c, d, ..] => Jump::Through(near(6, i32::from_le_bytes([a, b, c, d]))),
        // mov rax, address; jmp rax. Or r10, or r11.
        [0x48, 0xb8, a, b, c, d, e, f, g, h, 0xff, 0xe0, ..]
        | [0x49, 0xba, a, b, c, d, e, f, g, h, 0x41, 0xff, 0xe2, ..]
        | [0x49, 0xbb, a, b, c, d, e, f, g, h, 0x41, 0xff, 0xe3, ..] => {
            Jump::To(u64::from_le_bytes([a, b, c, d, e, f, g, h]) as usize)
        }
        // push low; ret
        [0x68, a, b, c, d, 0xc3, ..] => {
            Jump::To(i32::from_le_bytes([a, b, c, d]) as isize as usize)
        }
        // push low; mov dword [rsp + 4], high; ret
        [0x68, a, b, c, d, 0xc7, 0x44, 0x24, 0x04, e, f, g, h, 0xc3, ..] => {
            Jump::To(u64::from_le_bytes([a, b, c, d, e, f, g, h]) as usize)
        }
        _ => return None,
    })
}

#[cfg(all(test, target_arch = "x86_64", not(loom)))]
mod tests {
    use super::*;

    fn padded(code: &[u8]) -> [u8; LONGEST] {
        let mut all = [0xcc; LONGEST];
        all[..code.len()].copy_from_slice(code);
        all
    }

    #[test]
    fn forms_of_a_jump() {
        const AT: usize = 0x7f00_1000;
        const FAR: u64 = 0x7fff_1234_5678;
        let far = FAR.to_le_bytes();
        let [low, high] = [[far[0], far[1], far[2], far[3]], [far[4], far[5], far[6], far[7]]];
        let to = |address: u64| Some(Jump::To(address as usize));
        for (code, jump) in [
            (vec![0xe9, 0x10, 0, 0, 0], to(0x7f00_1015)),
            (vec![0xe9, 0xfb, 0xff, 0xff, 0xff], to(0x7f00_1000)),
            (vec![0xeb, 0xfe], to(0x7f00_1000)),
            (vec![0xff, 0x25, 0, 0, 0, 0], Some(Jump::Through(0x7f00_1006))),
            ([&[0x48, 0xb8][..], &far, &[0xff, 0xe0]].concat(), to(FAR)),
            ([&[0x49, 0xba][..], &far, &[0x41, 0xff, 0xe2]].concat(), to(FAR)),
            ([&[0x49, 0xbb][..], &far, &[0x41, 0xff, 0xe3]].concat(), to(FAR)),
            ([&[0x68][..], &[0, 0x10, 0, 0x40, 0xc3]].concat(), to(0x4000_1000)),
            ([&[0x68][..], &low, &[0xc7, 0x44, 0x24, 4], &high, &[0xc3]].concat(), to(FAR)),
            // Constants that are not jumped to, a breakpoint, and how functions begin.
            ([&[0x48, 0xb8][..], &far, &[0xc3]].concat(), None),
            (vec![0xcc], None),
            (vec![0x55, 0x48, 0x89, 0xe5], None),
            (vec![0x48, 0x8b, 0x05, 0, 0, 0, 0], None),
            (vec![0xe8, 0, 0, 0, 0], None),
        ] {
            assert_eq!(decode(&padded(&code), AT), jump, "{code:x?}");
            let marked = padded(&[&ENDBR64[..], &code].concat());
            assert_eq!(decode(&marked, AT - 4), jump, "{code:x?} after endbr64");
            for code in [padded(&code), marked] {
                let first = code[..8].try_into().unwrap();
                assert!(jump.is_none() || may_be_jump(first), "{code:x?}");
            }
        }
        assert!(!may_be_jump([0xcc; 8]) && !may_be_jump([0x55; 8]));
    }

    /// As funchook does it: a short jump to generated code, which jumps to the library's function.
    #[test]
    fn jumps_in_a_row_end_at_code_or_where_nothing_can_be_read() {
        let page = crate::runtime::hash_table::pages(8192).unwrap() as usize;
        let put = |at: usize, code: &[u8]| {
            // SAFETY: our own pages.
            unsafe { (at as *mut u8).copy_from(code.as_ptr(), code.len()) };
        };
        let far = |address: usize| {
            [&[0xff, 0x25, 0, 0, 0, 0][..], &(address as u64).to_le_bytes()].concat()
        };
        put(page, &[0xe9, 0xfb, 0, 0, 0]);
        put(page + 0x100, &far(page + 0x200));
        put(page + 0x200, &[0x55]);
        assert_eq!(destination(page, |_| false), Some(page + 0x200));
        assert_eq!(destination(page, |at| at == page + 0x100), Some(page + 0x100));
        assert_eq!(destination(page + 0x200, |_| false), None);
        // To itself, to nowhere, and at the end of what can be read.
        put(page + 0x300, &[0xeb, 0xfe]);
        assert_eq!(destination(page + 0x300, |_| false), Some(page + 0x300));
        put(page + 0x400, &far(16));
        assert_eq!(destination(page + 0x400, |_| false), Some(16));
        // SAFETY: our own page.
        unsafe { libc::mprotect((page + 4096) as *mut libc::c_void, 4096, libc::PROT_NONE) };
        put(page + 4088, &[0xe9, 0, 0, 0, 0]);
        assert_eq!(destination(page + 4088, |_| false), Some(page + 4093));
        assert_eq!(destination(page + 4096, |_| false), None);
    }
}
