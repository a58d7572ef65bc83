//! The memory of a loaded object: every read is checked against the segments that its program headers
//! name, so that a damaged or unusual table leads to no read outside of them.

use crate::runtime::readable::read_word;
use core::ffi::CStr;

/// Most loaded segments that are checked against. Objects have four or five.
const SEGMENTS: usize = 12;
const PAGE: usize = 4096;
const HEADER: usize = size_of::<libc::Elf64_Ehdr>();
const PROGRAM_HEADER: usize = size_of::<libc::Elf64_Phdr>();

/// Whether an object begins at this address, at which there may be nothing.
pub fn is_header(at: usize) -> bool {
    read_word(at).is_some_and(|word| word.to_ne_bytes().starts_with(b"\x7fELF"))
}

/// The readable segments of an object.
#[derive(Clone, Copy)]
pub struct Image {
    segments: [(usize, usize); SEGMENTS],
    /// A bit for each segment: the program may write to it.
    writable: u16,
    /// The part of it that the loader makes read-only once it has relocated it.
    protected: (usize, usize),
}

impl Image {
    /// The image of a library, or of a position-independent program: its headers lie at its base.
    /// `dynamic` is an address in it.
    ///
    /// # Safety
    /// An object is loaded at this base, and stays loaded.
    pub unsafe fn of_library(base: usize, dynamic: usize) -> Option<Image> {
        // If the object is linked to addresses other than 0, the base is a difference and not the address of a header:
        // a small one where the object lies near those addresses, else an address at which there may be nothing.
        let near = dynamic.checked_sub(base).is_some_and(|distance| distance < 1 << 32);
        if base == 0 || !base.is_multiple_of(PAGE) || !near || !is_header(base) {
            return None;
        }
        // The first page, with the headers.
        let first = Image::of_range(base, base + PAGE);
        let header = first.bytes(base, HEADER)?;
        let table = base.checked_add(u64_at(header, 32)? as usize)?;
        let count = usize::from(u16_at(header, 56)?);
        Some(Image::of_headers(base, first.bytes(table, count.checked_mul(PROGRAM_HEADER)?)?))
    }

    /// The image of the program itself, whose program headers the kernel gives (AT_PHDR).
    pub fn of_program(base: usize) -> Option<Image> {
        // SAFETY: reads what the kernel put beside the environment.
        let (table, count) = unsafe {
            (libc::getauxval(libc::AT_PHDR) as usize, libc::getauxval(libc::AT_PHNUM) as usize)
        };
        let length = count.checked_mul(PROGRAM_HEADER)?;
        if table == 0 {
            return None;
        }
        let table = Image::of_range(table, table.checked_add(length)?).bytes(table, length)?;
        Some(Image::of_headers(base, table))
    }

    /// One readable range.
    pub(super) fn of_range(start: usize, end: usize) -> Image {
        let mut segments = [(0, 0); SEGMENTS];
        segments[0] = (start, end);
        Image { segments, writable: 0, protected: (0, 0) }
    }

    fn of_headers(base: usize, table: &[u8]) -> Image {
        let mut image = Image { segments: [(0, 0); SEGMENTS], writable: 0, protected: (0, 0) };
        let mut count = 0;
        for header in table.chunks_exact(PROGRAM_HEADER) {
            let (Some(kind), Some(flags)) = (u32_at(header, 0), u32_at(header, 4)) else {
                continue;
            };
            let (Some(address), Some(bytes)) = (u64_at(header, 16), u64_at(header, 40)) else {
                continue;
            };
            let start = base.wrapping_add(address as usize);
            let range = (start, start.saturating_add(bytes as usize));
            match kind {
                libc::PT_LOAD if flags & libc::PF_R != 0 && count < SEGMENTS => {
                    image.segments[count] = range;
                    image.writable |= u16::from(flags & libc::PF_W != 0) << count;
                    count += 1;
                }
                libc::PT_GNU_RELRO => image.protected = range,
                _ => {}
            }
        }
        image
    }

    /// Whether these bytes are data that the program may write to.
    pub fn is_data(&self, at: usize, length: usize) -> bool {
        let Some(end) = at.checked_add(length) else { return false };
        let holds = |&(start, past): &(usize, usize)| start <= at && end <= past;
        let Some(segment) = self.segments.iter().position(holds) else { return false };
        // The loader protects whole pages.
        let (start, past) = self.protected;
        self.writable >> segment & 1 != 0 && (end <= start & !(PAGE - 1) || past <= at)
    }

    /// The end of the segment that holds this address.
    fn end(&self, at: usize) -> Option<usize> {
        self.segments.iter().find(|(start, end)| (*start..*end).contains(&at)).map(|(_, end)| *end)
    }

    /// Bytes that are not written any more.
    pub fn bytes(&self, at: usize, length: usize) -> Option<&'static [u8]> {
        let end = at.checked_add(length)?;
        if length == 0 {
            return Some(&[]);
        }
        // SAFETY: the range lies in one readable segment, and the object stays loaded (a condition of
        // `of_library`; the program itself always does).
        (end <= self.end(at)?)
            .then(|| unsafe { core::slice::from_raw_parts(at as *const u8, length) })
    }

    /// A table of `count` entries of `entry` bytes.
    pub fn table(&self, at: usize, count: usize, entry: usize) -> Option<&'static [u8]> {
        self.bytes(at, count.checked_mul(entry)?)
    }

    /// A text with its NUL.
    pub fn text(&self, at: usize) -> Option<&'static CStr> {
        let bytes = self.bytes(at, self.end(at)?.checked_sub(at)?)?;
        CStr::from_bytes_until_nul(bytes).ok()
    }

    /// A word that the loader may be writing.
    pub fn word(&self, at: usize) -> Option<usize> {
        if !at.is_multiple_of(size_of::<usize>())
            || at.checked_add(size_of::<usize>())? > self.end(at)?
        {
            return None;
        }
        // SAFETY: the word lies in a readable segment of an object that stays loaded, and is aligned.
        Some(unsafe { (at as *const usize).read_volatile() })
    }
}

pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_end_where_segments_do() {
        let memory: Vec<u64> = (0..8).collect();
        let start = memory.as_ptr() as usize;
        let image = Image::of_range(start, start + 64);
        assert_eq!(image.bytes(start + 8, 8).and_then(|word| u64_at(word, 0)), Some(1));
        assert_eq!(image.word(start + 56), Some(7));
        assert_eq!(image.table(start, 8, 8).map(<[u8]>::len), Some(64));
        for (at, length) in
            [(start, 65), (start + 60, 8), (start - 1, 1), (start + 64, 1), (usize::MAX, 8)]
        {
            assert_eq!(image.bytes(at, length), None);
        }
        assert_eq!(image.word(start + 60), None);
        assert_eq!(image.word(start + 64), None);
        assert_eq!(image.table(start, usize::MAX, 8), None);
        assert_eq!(image.text(start + 1).map(CStr::to_bytes), Some(&b""[..]));
        let all = [u64::from_ne_bytes(*b"abcdefgh"); 8];
        let at = all.as_ptr() as usize;
        assert_eq!(Image::of_range(at, at + 64).text(at), None, "no NUL in the segment");
    }

    #[test]
    fn headers_of_any_bytes() {
        let whole = [0xffu8; PROGRAM_HEADER * 20];
        let image = Image::of_headers(usize::MAX, &whole);
        assert!(image.segments.iter().all(|segment| *segment == (0, 0)));
        let mut load = [0u8; PROGRAM_HEADER];
        load[0] = 1;
        load[4] = 4;
        load[40..48].copy_from_slice(&u64::MAX.to_ne_bytes());
        let image = Image::of_headers(4096, &load.repeat(20));
        assert_eq!(image.segments, [(4096, usize::MAX); SEGMENTS]);
        assert!(!image.is_data(4096, 8));
        // SAFETY: both are refused before anything is read.
        assert!(unsafe {
            Image::of_library(0, 1).is_none() && Image::of_library(4096, 1).is_none()
        });
    }
    #[test]
    fn data_is_what_stays_writable() {
        let header = |kind: u32, flags: u32, start: u64, bytes: u64| {
            let mut header = [0u8; PROGRAM_HEADER];
            header[..4].copy_from_slice(&kind.to_ne_bytes());
            header[4..8].copy_from_slice(&flags.to_ne_bytes());
            header[16..24].copy_from_slice(&start.to_ne_bytes());
            header[40..48].copy_from_slice(&bytes.to_ne_bytes());
            header
        };
        let (read, write) = (libc::PF_R, libc::PF_R | libc::PF_W);
        let headers = [
            header(libc::PT_LOAD, read, 0, 0x2000),
            header(libc::PT_LOAD, write, 0x2100, 0x3000),
            header(libc::PT_GNU_RELRO, read, 0x2100, 0xf00),
        ];
        let image = Image::of_headers(0x10000, headers.as_flattened());
        for (at, length, is_data) in [
            (0x11000, 8, false),
            (0x12100, 8, false),
            (0x12ff8, 8, false),
            (0x12ffc, 8, false),
            (0x13000, 8, true),
            (0x150f8, 8, true),
            (0x150fc, 8, false),
            (0x20000, 8, false),
            (usize::MAX, 8, false),
        ] {
            assert_eq!(image.is_data(at, length), is_data, "{at:x}");
        }
    }
}
