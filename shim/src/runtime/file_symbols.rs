//! Names of functions from the symbol table of a file (.symtab), which is not loaded with the program: the table that is
//! loaded (.dynsym) has only what other objects may use, and of most programs nothing.
//!
//! The file is read in a task, once for all addresses, and no more of it than a limit permits. It must be the file that was
//! loaded: its build id is compared, where there is one.

use crate::runtime::errno;
use crate::runtime::fallible::list_of;
use crate::runtime::mapped_modules::build_id;
use crate::runtime::private_table::{self, Opened};
use crate::runtime::system;
use std::ffi::CString;
use std::time::{Duration, Instant};

/// Time for one file. A table of a million symbols takes some 20 ms from the page cache.
const MOST_TIME: Duration = Duration::from_millis(100);
/// Bytes that are read at once.
const CHUNK: usize = 64 << 10;
/// Longest name. What is longer is cut: it is shortened for people anyway.
const NAME: usize = 512;
/// Sections of a file. Programs have some forty.
const SECTIONS: usize = 4096;
/// Bytes of notes, among which the build id is.
const NOTES: usize = 4096;

const SECTION: usize = 64;
const PROGRAM_HEADER: usize = 56;
const SYMBOL: usize = 24;
const SHT_SYMTAB: u32 = 2;
const SHT_DYNSYM: u32 = 11;
const STT_FUNC: u8 = 2;

/// A function whose size contains the address.
#[derive(Clone, Copy)]
struct Best {
    name: u32,
    size: u64,
}

/// For each address in the file (of an instruction, less the base of the object) the name as the linker has it. `left`:
/// bytes that may still be read. An empty list: nothing is known, for whatever reason.
pub fn names(path: &str, id: &[u8], addresses: &[u64], left: &mut u64) -> Vec<Option<String>> {
    let Ok(path) = CString::new(path) else { return Vec::new() };
    let found = private_table::run(|table| {
        let file = table.open_followed(&path).ok()?;
        File { file: &file, left, began: Instant::now() }.names(id, addresses)
    });
    found.ok().flatten().unwrap_or_default()
}

struct File<'f> {
    file: &'f Opened<'f>,
    left: &'f mut u64,
    began: Instant,
}

impl File<'_> {
    fn names(&mut self, id: &[u8], addresses: &[u64]) -> Option<Vec<Option<String>>> {
        if !is_regular(self.file) {
            return None;
        }
        let header = self.read(0, 64)?;
        let of_64_bits = header.starts_with(b"\x7fELF\x02\x01");
        if !of_64_bits || !id.is_empty() && self.id(&header)? != id {
            return None;
        }
        let (sections, count) = (u64_at(&header, 40)?, usize::from(u16_at(&header, 60)?));
        if count > SECTIONS || usize::from(u16_at(&header, 58)?) != SECTION {
            return None;
        }
        let sections = self.read(sections, count * SECTION)?;
        let section =
            |kind| sections.chunks_exact(SECTION).find(|section| u32_at(section, 4) == Some(kind));
        let symbols = section(SHT_SYMTAB).or_else(|| section(SHT_DYNSYM))?;
        let texts = sections.chunks_exact(SECTION).nth(u32_at(symbols, 40)? as usize)?;
        let best = self.search(u64_at(symbols, 24)?, u64_at(symbols, 32)?, addresses)?;
        let (texts, length) = (u64_at(texts, 24)?, u64_at(texts, 32)?);
        let mut name = |best: Option<Best>| {
            let at = u64::from(best?.name);
            let most = length.checked_sub(at)?.min(NAME as u64) as usize;
            let bytes = self.read(texts.checked_add(at)?, most)?;
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            let text = String::from_utf8_lossy(&bytes[..end]);
            (!text.is_empty()).then(|| text.into_owned())
        };
        list_of(best.len(), best.into_iter().map(&mut name)).ok()
    }

    /// The build id of the file.
    fn id(&mut self, header: &[u8]) -> Option<Vec<u8>> {
        let (at, count) = (u64_at(header, 32)?, usize::from(u16_at(header, 56)?));
        let headers = self.read(at, count.min(64) * PROGRAM_HEADER)?;
        let notes = headers
            .chunks_exact(PROGRAM_HEADER)
            .filter(|header| u32_at(header, 0) == Some(libc::PT_NOTE));
        for note in notes {
            let length = u64_at(note, 32)?.min(NOTES as u64) as usize;
            let bytes = self.read(u64_at(note, 8)?, length)?;
            if let Some(id) = build_id(&bytes) {
                return list_of(id.len(), id.iter().copied()).ok();
            }
        }
        None
    }

    /// The smallest function at each address, in one pass over the table.
    fn search(&mut self, start: u64, bytes: u64, addresses: &[u64]) -> Option<Vec<Option<Best>>> {
        let mut best = list_of(addresses.len(), addresses.iter().map(|_| None::<Best>)).ok()?;
        let mut done = 0;
        while done < bytes {
            let length = (bytes - done).min((CHUNK / SYMBOL * SYMBOL) as u64) as usize;
            let chunk = self.read(start.checked_add(done)?, length)?;
            for symbol in chunk.chunks_exact(SYMBOL) {
                let (value, size) = (u64_at(symbol, 8)?, u64_at(symbol, 16)?);
                let function = symbol[4] & 15 == STT_FUNC && u16_at(symbol, 6)? != 0;
                if !function || size == 0 {
                    continue;
                }
                for (address, best) in addresses.iter().zip(&mut best) {
                    let inside = address.checked_sub(value).is_some_and(|from| from < size);
                    if inside && best.is_none_or(|known| size < known.size) {
                        *best = Some(Best { name: u32_at(symbol, 0)?, size });
                    }
                }
            }
            done += length as u64;
        }
        Some(best)
    }

    /// So many bytes, or nothing: past a limit too.
    fn read(&mut self, at: u64, length: usize) -> Option<Vec<u8>> {
        *self.left = self.left.checked_sub(length as u64)?;
        if self.began.elapsed() > MOST_TIME {
            return None;
        }
        let mut bytes = list_of(length, std::iter::repeat_n(0u8, length)).ok()?;
        let mut done = 0;
        while done < length {
            let rest = &mut bytes[done..];
            let from = i64::try_from(at.checked_add(done as u64)?).ok()?;
            // SAFETY: the rest of our own bytes.
            let got =
                unsafe { system::pread(self.file.number(), rest.as_mut_ptr(), rest.len(), from) };
            match usize::try_from(got) {
                Ok(0) => return None,
                Ok(got) => done += got,
                Err(_) if errno::get() == libc::EINTR => {}
                Err(_) => return None,
            }
        }
        Some(bytes)
    }
}

fn is_regular(file: &Opened) -> bool {
    // SAFETY: a structure of numbers.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    system::fstat(file.number(), &mut stat) == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFREG
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[inline(never)]
    extern "C" fn named_in_this_file(seed: u64) -> u64 {
        std::hint::black_box(seed).rotate_left(7) ^ 0x5eed
    }

    fn own() -> (String, u64) {
        let path = std::env::current_exe().unwrap().to_str().unwrap().to_string();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let first = maps.lines().find(|line| line.ends_with(&path)).unwrap();
        (path.clone(), u64::from_str_radix(first.split('-').next().unwrap(), 16).unwrap())
    }

    #[test]
    #[cfg_attr(sanitized, ignore = "takes longer than a file may, in such a build")]
    #[cfg_attr(miri, ignore = "reads a program of the machine")]
    fn a_function_of_this_program_has_its_name() {
        let (path, base) = own();
        let at = named_in_this_file as extern "C" fn(u64) -> u64 as usize as u64 - base + 1;
        let mut left = 1 << 30;
        let found = names(&path, &[], &[at, 1], &mut left);
        assert!(found[0].as_deref().unwrap().contains("named_in_this_file"), "{found:?}");
        assert_eq!((found.len(), &found[1], left < 1 << 30), (2, &None, true));
    }

    #[test]
    #[cfg_attr(miri, ignore = "reads a program of the machine")]
    fn another_build_a_limit_and_what_is_no_program_give_nothing() {
        let (path, _) = own();
        assert!(names(&path, &[1, 2, 3], &[1], &mut (1 << 30)).is_empty(), "another build");
        assert!(names(&path, &[], &[1], &mut 4096).is_empty(), "the limit");
        for path in ["/nowhere", "/", "/proc/self/maps", "/dev/zero", "/etc/passwd", "a\0b"] {
            assert!(names(path, &[], &[1], &mut (1 << 30)).is_empty(), "{path}");
        }
    }
}
