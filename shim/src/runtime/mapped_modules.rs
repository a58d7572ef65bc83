//! Finds the program or library that contains an address, without a lock.
//!
//! `_dl_find_object` does not wait: neither for a thread in `dlopen` (which may wait for a lock that
//! the caller holds), nor, in a forked child, for one that no longer exists. So it can be called
//! anywhere; `dl_iterate_phdr` and `dladdr` cannot. Where the C library lacks it (glibc below 2.35),
//! [`loaded_objects`] takes its place.

use crate::runtime::elf::{self, Image, Object};
use crate::runtime::fallible::TryPush;
use crate::runtime::loaded_objects;
pub use crate::runtime::loaded_objects::{Entry as Loaded, generation, unloaded};
use crate::runtime::loader;
use crate::runtime::readable::read_word;
use std::ffi::c_void;

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
    Library(&'a Loaded, &'a Image),
    /// Generated code at this address, which belongs to no library.
    Made(usize),
}

/// Whether objects can be looked up with this C library.
pub fn can_ask() -> bool {
    loader::find_object().is_some() || loaded_objects::can_ask()
}

impl Loaded {
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

    /// Its headers are at `start`, except where there are gaps between the object's segments: newer C
    /// libraries (2.41, and older ones with its fixes) then give the segment of code alone. lld leaves such gaps.
    ///
    /// # Safety
    /// As for [`Loaded::object`].
    pub unsafe fn image(&self) -> Image {
        // SAFETY: the caller's contract.
        let base = unsafe { self.object() }.base();
        let first = if base == 0 { elf::program_page() } else { base };
        let pages = [Some(self.start), Some(first).filter(|first| *first < self.start)];
        // SAFETY: the object is loaded there.
        let image = pages.into_iter().flatten().find_map(|page| unsafe { Image::at(page, base) });
        image.unwrap_or(Image::unknown(base))
    }

    /// The unwind sections of the object.
    pub fn unwind_data(&self, image: &Image) -> Option<UnwindData> {
        let index = image.rest(self.eh_frame_hdr)?;
        // The pointer to .eh_frame: signed 4 bytes, relative to itself.
        if index.get(1) != Some(&0x1b) {
            return None;
        }
        let distance = i32::from_ne_bytes(index.get(4..8)?.try_into().ok()?);
        let frames = (self.eh_frame_hdr + 4).checked_add_signed(distance as isize)?;
        Some(UnwindData { index, frames: image.rest(frames)? })
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

impl Image {
    /// The mark that distinguishes this library from another one at the same addresses; `None`: it has
    /// no build id.
    pub fn mark(&self) -> Option<Mark> {
        let value = u64::from_ne_bytes(*self.build_id.first_chunk()?);
        Some(Mark { at: self.build_id.as_ptr() as usize, value })
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
        let code = libc::getppid as *const () as usize & !4095;
        let part = Loaded { start: code, end: code + 4096, ..whole };
        // SAFETY: the C library stays.
        let ids = unsafe { [whole.image().build_id, part.image().build_id] };
        assert!(!ids[0].is_empty() && ids[0] == ids[1]);
    }

    #[test]
    fn our_own_and_the_c_library() {
        let ours = holding(holding as *const () as usize).unwrap();
        let theirs = holding(libc::getppid as *const () as usize).unwrap();
        assert_ne!(ours, theirs);
        assert!(holding(16).is_none());
        // SAFETY: both stay.
        let (image, object) = unsafe { (theirs.image(), theirs.object()) };
        assert!(object.is_named("libc.so"));
        let path = theirs.path_read_carefully();
        assert_eq!(path.as_deref(), object.path().to_str().ok());
        assert_eq!(Loaded { link_map: 0, ..theirs }.path_read_carefully(), None);
        assert!(image.build_id.len() >= 8);
        let data = theirs.unwind_data(&image).unwrap();
        assert_eq!(data.index[0], 1, "version of .eh_frame_hdr");
        let mark = image.mark().unwrap();
        assert_eq!(mark.at, image.build_id.as_ptr() as usize);
        // SAFETY: both stay.
        assert!(unsafe { mark.is_there() && !Mark { value: !mark.value, ..mark }.is_there() });
        assert!(data.frames.len() > 100);
    }
}
