//! The memory of a loaded object: every read is checked against the segments that its program headers
//! name, so that a damaged or unusual table leads to no read outside of them.

use crate::runtime::readable::read_word;
use libc::{Elf64_Ehdr, Elf64_Phdr};

/// Most loaded segments that are checked against. Objects have four or five.
const SEGMENTS: usize = 12;
const PAGE: usize = 4096;

/// The page with the headers of a program that is not relocated: the kernel gives their address.
pub fn program_page() -> usize {
    // SAFETY: reads a word that the kernel gave the process at its start.
    let headers = unsafe { libc::getauxval(libc::AT_PHDR) } as usize;
    headers & !(PAGE - 1)
}

/// What is read of an object.
///
/// # Safety
/// Any bytes are a value of it.
pub unsafe trait Plain: Copy {}

// SAFETY: numbers.
unsafe impl Plain for u32 {}
// SAFETY: numbers.
unsafe impl Plain for u64 {}
// SAFETY: of numbers.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}
// SAFETY: numbers.
unsafe impl Plain for Elf64_Ehdr {}
// SAFETY: numbers.
unsafe impl Plain for Elf64_Phdr {}
// SAFETY: numbers.
unsafe impl Plain for libc::Elf64_Sym {}
// SAFETY: numbers.
unsafe impl Plain for libc::Elf64_Rela {}

/// The readable segments of an object.
#[derive(Clone, Copy, Debug)]
pub struct Image {
    /// The difference between addresses in memory and in the file.
    pub base: usize,
    /// Empty: it has none.
    pub build_id: &'static [u8],
    segments: [(usize, usize); SEGMENTS],
    /// A bit for each segment: the program may write to it.
    writable: u16,
    /// The part of it that the loader makes read-only once it has relocated it.
    protected: (usize, usize),
}

impl Image {
    /// Of an object whose headers cannot be read.
    pub fn unknown(base: usize) -> Image {
        let segments = [(0, 0); SEGMENTS];
        Image { base, build_id: &[], segments, writable: 0, protected: (0, 0) }
    }

    /// The image of the object whose headers are in this page. `None`: there are none.
    ///
    /// # Safety
    /// If so, an object with this base is loaded there, and stays loaded.
    pub unsafe fn at(page: usize, base: usize) -> Option<Image> {
        let is_header = |word: u64| word.to_ne_bytes().starts_with(b"\x7fELF");
        if !page.is_multiple_of(PAGE) || !read_word(page).is_some_and(is_header) {
            return None;
        }
        let first = Image::of_range(page, page + PAGE);
        let header: Elf64_Ehdr = first.get(page)?;
        let table = page.checked_add(header.e_phoff as usize)?;
        Some(Image::of_headers(base, first.list(table, header.e_phnum.into())))
    }

    /// One readable range.
    pub(super) fn of_range(start: usize, end: usize) -> Image {
        let mut image = Image::unknown(0);
        image.segments[0] = (start, end);
        image
    }

    fn of_headers(base: usize, headers: impl Iterator<Item = Elf64_Phdr> + Clone) -> Image {
        let mut image = Image::unknown(base);
        let range = |header: &Elf64_Phdr| {
            let start = base.wrapping_add(header.p_vaddr as usize);
            (start, start.saturating_add(header.p_memsz as usize))
        };
        let mut count = 0;
        for header in headers.clone() {
            match header.p_type {
                libc::PT_LOAD if header.p_flags & libc::PF_R != 0 && count < SEGMENTS => {
                    image.segments[count] = range(&header);
                    image.writable |= u16::from(header.p_flags & libc::PF_W != 0) << count;
                    count += 1;
                }
                libc::PT_GNU_RELRO => image.protected = range(&header),
                _ => {}
            }
        }
        let mut notes = headers.filter(|header| header.p_type == libc::PT_NOTE);
        let id = |header| image.bytes(range(&header).0, header.p_memsz as usize).and_then(build_id);
        Image { build_id: notes.find_map(id).unwrap_or_default(), ..image }
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

    /// Bytes from here to the end of the segment that are in memory.
    fn length(&self, at: usize) -> Option<usize> {
        let (_, end) = self.segments.iter().find(|(start, end)| (*start..*end).contains(&at))?;
        Some((end - at).min(isize::MAX as usize))
    }

    /// The bytes of a segment from here to its end. They are not written any more.
    pub fn rest(&self, at: usize) -> Option<&'static [u8]> {
        let length = self.length(at)?;
        // SAFETY: the range lies in one readable segment, and the object stays loaded (a condition of `at`).
        Some(unsafe { core::slice::from_raw_parts(at as *const u8, length) })
    }

    /// Bytes that are not written any more.
    pub fn bytes(&self, at: usize, length: usize) -> Option<&'static [u8]> {
        self.rest(at)?.get(..length)
    }

    pub fn get<T: Plain>(&self, at: usize) -> Option<T> {
        let bytes = self.bytes(at, size_of::<T>())?;
        // SAFETY: as many bytes, and any are a value.
        Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
    }

    /// So many values from here on, as far as they lie in one segment.
    pub fn list<T: Plain>(
        &self,
        at: usize,
        count: usize,
    ) -> impl Iterator<Item = T> + Clone + use<T> {
        let image = *self;
        (0..count).map_while(move |n| image.get(at.checked_add(n * size_of::<T>())?))
    }

    /// A word that the loader may be writing.
    pub fn word(&self, at: usize) -> Option<usize> {
        let is_whole =
            self.length(at)? >= size_of::<usize>() && at.is_multiple_of(align_of::<usize>());
        // SAFETY: the word lies in a readable segment of an object that stays loaded, and is aligned.
        is_whole.then(|| unsafe { (at as *const usize).read_volatile() })
    }
}

/// The build id in a note segment.
fn build_id(mut notes: &[u8]) -> Option<&[u8]> {
    const NT_GNU_BUILD_ID: u32 = 3;
    loop {
        let word = |at: usize| Some(u32::from_ne_bytes(notes.get(at..at + 4)?.try_into().ok()?));
        let (name_len, len, kind) = (word(0)? as usize, word(4)? as usize, word(8)?);
        let name = notes.get(12..12 + name_len)?;
        let at = 12 + name_len.next_multiple_of(4);
        let content = notes.get(at..at.checked_add(len)?)?;
        if kind == NT_GNU_BUILD_ID && name == b"GNU\0" {
            return Some(content);
        }
        notes = notes.get(at + len.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_end_where_segments_do() {
        let memory: Vec<u64> = (0..8).collect();
        let start = memory.as_ptr() as usize;
        let image = Image::of_range(start, start + 64);
        assert_eq!((image.get(start + 8), image.word(start + 56)), (Some(1u64), Some(7)));
        assert_eq!(image.list::<u64>(start, 100).count(), 8);
        for (at, length) in
            [(start, 65), (start + 60, 8), (start - 1, 1), (start + 64, 1), (usize::MAX, 8)]
        {
            assert_eq!(image.bytes(at, length), None);
        }
        assert_eq!([60, 64].map(|at| image.word(start + at)), [None; 2]);
        assert_eq!(image.list::<u64>(usize::MAX, usize::MAX).count(), 0);
    }

    fn header(kind: u32, flags: u32, start: u64, bytes: u64) -> Elf64_Phdr {
        // SAFETY: numbers.
        let none = unsafe { core::mem::zeroed() };
        Elf64_Phdr { p_type: kind, p_flags: flags, p_vaddr: start, p_memsz: bytes, ..none }
    }

    #[test]
    fn headers_of_any_bytes() {
        let most = header(u32::MAX, u32::MAX, u64::MAX, u64::MAX);
        let image = Image::of_headers(usize::MAX, core::iter::repeat_n(most, 20));
        assert!(image.segments.iter().all(|segment| *segment == (0, 0)));
        let load = header(libc::PT_LOAD, libc::PF_R, 0, u64::MAX);
        let image = Image::of_headers(4096, core::iter::repeat_n(load, 20));
        assert_eq!(image.segments, [(4096, usize::MAX); SEGMENTS]);
        assert!(!image.is_data(4096, 8));
        // SAFETY: there is no object.
        assert!(unsafe { Image::at(0, 0).is_none() && Image::at(4096, 4096).is_none() });
    }

    #[test]
    fn data_is_what_stays_writable() {
        let (read, write) = (libc::PF_R, libc::PF_R | libc::PF_W);
        let headers = [
            header(libc::PT_LOAD, read, 0, 0x2000),
            header(libc::PT_LOAD, write, 0x2100, 0x3000),
            header(libc::PT_GNU_RELRO, read, 0x2100, 0xf00),
        ];
        let image = Image::of_headers(0x10000, headers.into_iter());
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

    #[test]
    fn the_build_id_among_notes() {
        let note = |name: &[u8], kind: u32, content: &[u8]| {
            let mut note = Vec::new();
            note.extend((name.len() as u32).to_ne_bytes());
            note.extend((content.len() as u32).to_ne_bytes());
            note.extend(kind.to_ne_bytes());
            note.extend(name);
            note.resize(note.len().next_multiple_of(4), 0);
            note.extend(content);
            note.resize(note.len().next_multiple_of(4), 0);
            note
        };
        let all = [note(b"GNU\0", 1, b"abc"), note(b"GNU\0", 3, b"12345")].concat();
        assert_eq!(build_id(&all), Some(&b"12345"[..]));
        assert_eq!(build_id(&all[..20]), None);
        assert_eq!(build_id(&note(b"X\0", 3, b"1")), None);
        assert_eq!(build_id(&[0xff; 40]), None);
    }
}
