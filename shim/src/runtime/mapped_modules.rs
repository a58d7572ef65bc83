//! Finds the program or library that contains an address, without a lock.
//!
//! `_dl_find_object` does not wait: neither for a thread in `dlopen` (which may wait for a lock that
//! the caller holds), nor, in a forked child, for one that no longer exists. So it can be called
//! anywhere; `dl_iterate_phdr` and `dladdr` cannot. Where the C library lacks it (glibc below 2.35),
//! [`loaded_objects`] takes its place.

use crate::runtime::elf::{self, Object};
use crate::runtime::fallible::TryPush;
use crate::runtime::loaded_objects;
pub use crate::runtime::loaded_objects::{Entry as Loaded, generation, unloaded};
use crate::runtime::loader;
use crate::runtime::readable::read_word;
use std::ffi::c_void;
use std::ops::Range;

/// The C library's structure of this name.
#[derive(Default)]
#[repr(C)]
struct DlFindObject {
    flags: u64,
    map_start: usize,
    map_end: usize,
    link_map: usize,
    eh_frame_hdr: usize,
    reserved: [u64; 7],
}

/// The object that contains this address. `None`: generated code, or no address of code.
#[inline]
pub fn holding(address: usize) -> Option<Loaded> {
    let Some(find) = loader::find_object() else {
        return loaded_objects::holding(address);
    };
    let mut found = DlFindObject::default();
    // SAFETY: the answer has room; the function accepts any address.
    let answer = unsafe { find(address as *mut c_void, (&raw mut found).cast()) };
    let DlFindObject { map_start: start, map_end: end, link_map, eh_frame_hdr, .. } = found;
    let plausible = answer == 0 && link_map != 0 && (start..end).contains(&address);
    plausible.then_some(Loaded { start, end, link_map, eh_frame_hdr })
}

/// Code that a walk finds for the first time.
pub enum Seen<'a> {
    Library(&'a Loaded, &'a Headers),
    /// Generated code at this address, which belongs to no library.
    Made(usize),
}

/// Looks up the loader's variables. It may wait for a lock of the loader: for the start of the process.
pub fn prepare() {
    loaded_objects::can_ask();
}

/// Whether objects can be looked up with this C library.
pub fn can_ask() -> bool {
    loader::find_object().is_some() || loaded_objects::can_ask()
}

/// The values that are read from an object's headers.
#[derive(Clone, Debug, Default)]
pub struct Headers {
    /// The difference between addresses in memory and in the file.
    pub base: usize,
    /// A slice of the mapping.
    pub build_id: &'static [u8],
    /// The address ranges of the loaded segments.
    segments: Vec<Range<usize>>,
}

impl Loaded {
    /// A range without a library.
    pub fn nobody(start: usize, end: usize) -> Loaded {
        Loaded { start, end, link_map: 0, eh_frame_hdr: 0 }
    }

    /// The object, for look-ups of its symbols.
    ///
    /// # Safety
    /// The library is still loaded: one of its functions is on this thread's stack.
    pub unsafe fn object(&self) -> Object {
        // SAFETY: the loader's record of a library that is still loaded (see above).
        unsafe { Object::of_handle(self.link_map as *mut c_void) }
    }

    /// Whether it was loaded at the start: it is never unloaded.
    pub fn is_of_the_start(&self) -> bool {
        elf::is_of_the_start(self.link_map as *const c_void)
    }

    /// The path as it was loaded, of an object that another thread may be unloading: the loader's record is read as memory
    /// that may not be there. Empty for the program itself. `None`: it cannot be read, or is no text.
    pub fn path_read_carefully(&self) -> Option<String> {
        const PATH: usize = size_of::<usize>();
        const LONGEST: usize = 4096;
        let mut at = read_word(self.link_map.checked_add(PATH)?)? as usize;
        let mut path: Vec<u8> = Vec::new();
        while path.len() < LONGEST {
            let word = read_word(at)?.to_ne_bytes();
            let text = word.split(|byte| *byte == 0).next()?;
            for byte in text {
                path.try_push(*byte).ok()?;
            }
            if text.len() < word.len() {
                return String::from_utf8(path).ok();
            }
            at += word.len();
        }
        None
    }

    /// # Safety
    /// As for [`Loaded::object`].
    pub unsafe fn headers(&self) -> Headers {
        // SAFETY: a library is loaded at this address (see above).
        let base = unsafe { self.object() }.base();
        let mut headers = Headers { base, ..Headers::default() };
        let Some(first) = self.first_page(base) else { return headers };
        // SAFETY: the first page of the object, which begins with this header.
        let header = unsafe { &*(first as *const libc::Elf64_Ehdr) };
        let length = usize::from(header.e_phnum) * size_of::<libc::Elf64_Phdr>();
        let table = first.saturating_add(header.e_phoff as usize);
        if table.saturating_add(length) > first + 4096 || !table.is_multiple_of(8) {
            return headers;
        }
        // SAFETY: inside that page.
        let table = unsafe {
            std::slice::from_raw_parts(table as *const libc::Elf64_Phdr, header.e_phnum.into())
        };
        for segment in table.iter().filter(|segment| segment.p_type == libc::PT_LOAD) {
            let start = headers.base.wrapping_add(segment.p_vaddr as usize);
            #[allow(clippy::disallowed_methods)] // a few for each library
            headers.segments.push(start..start.saturating_add(segment.p_memsz as usize));
        }
        for notes in table.iter().filter(|segment| segment.p_type == libc::PT_NOTE) {
            let start = headers.base.wrapping_add(notes.p_vaddr as usize);
            if let Some(bytes) = headers.bytes(start, notes.p_memsz as usize)
                && let Some(id) = build_id(bytes)
            {
                headers.build_id = id;
                break;
            }
        }
        headers
    }

    /// The page with the ELF header. It is at `start`, except where there are gaps between the object's
    /// segments: newer C libraries (2.41, and older ones with its fixes) then give the segment of code
    /// alone. lld leaves such gaps.
    fn first_page(&self, base: usize) -> Option<usize> {
        if elf::is_header(self.start) {
            return Some(self.start);
        }
        // The kernel gives the address of the headers of a program that is not relocated.
        let first = match base {
            // SAFETY: reads a word that the kernel gave the process at its start.
            0 => (unsafe { libc::getauxval(libc::AT_PHDR) }) as usize & !4095,
            base => base,
        };
        (first < self.start && elf::is_header(first)).then_some(first)
    }

    /// The unwind sections of the object.
    pub fn unwind_data(&self, headers: &Headers) -> Option<UnwindData> {
        let start = self.eh_frame_hdr;
        let whole = headers.bytes(start, 0)?;
        // The pointer to .eh_frame: signed 4 bytes, relative to itself.
        if whole.get(1) != Some(&0x1b) {
            return None;
        }
        let distance = i32::from_ne_bytes(whole.get(4..8)?.try_into().ok()?);
        let frames = (start + 4).checked_add_signed(distance as isize)?;
        Some(UnwindData { index: headers.bytes(start, 0)?, frames: headers.bytes(frames, 0)? })
    }
}

/// A word of a library, such as the beginning of its build-id, by which it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    pub at: usize,
    pub value: u64,
}

impl Mark {
    /// As [`Mark::is_there`] at addresses that may be unmapped now. A system call.
    pub fn is_read(&self) -> bool {
        read_word(self.at) == Some(self.value)
    }

    /// # Safety
    /// A library is loaded at the addresses of the one that the mark was made of.
    pub unsafe fn is_there(&self) -> bool {
        // SAFETY: a library is loaded at this address (see above).
        unsafe { (self.at as *const u64).read_unaligned() == self.value }
    }
}

impl Headers {
    /// The mark that distinguishes this library from another one at the same addresses; `None`: it has
    /// no build id.
    pub fn mark(&self) -> Option<Mark> {
        let value = u64::from_ne_bytes(self.build_id.get(..8)?.try_into().ok()?);
        Some(Mark { at: self.build_id.as_ptr() as usize, value })
    }

    /// Bytes of a loaded segment; a length of 0 means up to its end.
    fn bytes(&self, start: usize, length: usize) -> Option<&'static [u8]> {
        let segment = self.segments.iter().find(|segment| segment.contains(&start))?;
        let most = segment.end - start;
        let length = if length == 0 { most } else { length };
        // SAFETY: inside a mapped segment of a library with a function on this thread's stack, so it
        // stays loaded meanwhile.
        (length <= most).then(|| unsafe { std::slice::from_raw_parts(start as *const u8, length) })
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

/// Addresses of the sections. They may be read only while the library is known to be loaded.
#[derive(Clone, Copy)]
pub struct UnwindData {
    pub index: &'static [u8],
    pub frames: &'static [u8],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_found_from_the_segment_of_code() {
        let whole = holding(libc::getppid as *const () as usize).unwrap();
        // SAFETY: the C library stays.
        let (base, headers) = unsafe { (whole.object().base(), whole.headers()) };
        let code = libc::getppid as *const () as usize & !4095;
        let part = Loaded { start: code, end: code + 4096, ..whole };
        assert_eq!(part.first_page(base), whole.first_page(base));
        // SAFETY: a part of the C library, which stays loaded.
        assert_eq!(unsafe { part.headers() }.build_id, headers.build_id);
        assert!(part.first_page(code).is_none(), "not before it");
        // The first page of a program that is linked to fixed addresses.
        let ours = holding(holding as *const () as usize).unwrap();
        let last = Loaded { start: ours.end & !4095, ..ours };
        // SAFETY: this program stays.
        assert_eq!(last.first_page(0), unsafe { ours.first_page(ours.object().base()) });
    }

    #[test]
    fn our_own_and_the_c_library() {
        let ours = holding(holding as *const () as usize).unwrap();
        let theirs = holding(libc::getppid as *const () as usize).unwrap();
        assert_ne!(ours, theirs);
        assert!(holding(16).is_none());
        // SAFETY: both stay.
        let (headers, object) = unsafe { (theirs.headers(), theirs.object()) };
        assert!(object.is_named("libc.so"));
        let path = theirs.path_read_carefully();
        assert_eq!(path.as_deref(), object.path().to_str().ok());
        assert_eq!(Loaded::nobody(0, 1).path_read_carefully(), None);
        assert!(headers.build_id.len() >= 8, "{headers:?}");
        let data = theirs.unwind_data(&headers).unwrap();
        assert_eq!(data.index[0], 1, "version of .eh_frame_hdr");
        let mark = headers.mark().unwrap();
        assert_eq!(mark.at, headers.build_id.as_ptr() as usize);
        // SAFETY: both stay.
        assert!(unsafe { mark.is_there() && !Mark { value: !mark.value, ..mark }.is_there() });
        assert!(data.frames.len() > 100);
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
