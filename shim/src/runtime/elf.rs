//! Symbols by reading the loaded objects' own tables.
//!
//! We own `dlsym`, so nothing here may call it: the real one, and the driver's functions behind
//! our exports of the same names, are found in the GNU hash tables of their objects.
//!
//! An object is found by an address in it, by its handle, or in the loader's list. NOT by
//! `dl_iterate_phdr`: its lock is one that the C library does not renew in a forked child, and a
//! child whose parent had another thread in there would wait for ever.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;

/// The loader's record of an object; its address is also the object's `dlopen` handle.
#[repr(C)]
struct LinkMap {
    base: usize,
    path: *const c_char,
    dynamic: *const Dynamic,
    next: *mut LinkMap,
    previous: *mut LinkMap,
}

unsafe extern "C" {
    fn dladdr1(
        address: *const c_void,
        info: *mut libc::Dl_info,
        extra: *mut *mut LinkMap,
        flags: c_int,
    ) -> c_int;
}
const RTLD_DL_LINKMAP: c_int = 2;

/// A loaded object.
#[derive(Clone, Copy)]
pub struct Object {
    map: *const LinkMap,
    tables: Option<Tables>,
}

/// What a look-up by name needs.
#[derive(Clone, Copy)]
struct Tables {
    base: usize,
    hash: *const u32,
    symbols: *const libc::Elf64_Sym,
    strings: *const c_char,
    soname: Option<usize>,
}

/// The object in which an address lies.
pub fn object_at(address: usize) -> Option<Object> {
    let mut info = unsafe { core::mem::zeroed() };
    let mut map: *mut LinkMap = null_mut();
    let found = unsafe { dladdr1(address as *const c_void, &mut info, &mut map, RTLD_DL_LINKMAP) };
    if found == 0 || map.is_null() { None } else { unsafe { Some(Object::new(map)) } }
}

impl Object {
    unsafe fn new(map: *const LinkMap) -> Object {
        Object { map, tables: unsafe { Tables::of((*map).base, (*map).dynamic) } }
    }

    unsafe fn linked(map: *const LinkMap) -> Option<Object> {
        (!map.is_null()).then(|| unsafe { Object::new(map) })
    }

    /// # Safety
    /// The handle is one that [`Object::handle`] or `dlopen` gave, of an object that stays loaded.
    pub unsafe fn of_handle(handle: *mut c_void) -> Object {
        unsafe { Object::new(handle.cast()) }
    }

    /// As `dlopen` gives it (without its reference).
    pub fn handle(&self) -> *mut c_void {
        self.map.cast_mut().cast()
    }

    /// What the loader added to the addresses of the file.
    pub fn base(&self) -> usize {
        unsafe { (*self.map).base }
    }

    /// Address and size of the function or variable that it defines under this name.
    pub fn symbol(&self, name: &[u8]) -> Option<(usize, usize)> {
        unsafe { self.tables?.symbol(name, is_in_memory) }
    }

    pub fn contains(&self, address: usize) -> bool {
        object_at(address).is_some_and(|other| other.map == self.map)
    }

    /// Path as it was loaded; empty for the program itself.
    pub fn path(&self) -> &CStr {
        unsafe {
            match (*self.map).path.is_null() {
                true => c"",
                false => CStr::from_ptr((*self.map).path),
            }
        }
    }

    pub fn soname(&self) -> Option<&CStr> {
        let tables = self.tables?;
        unsafe { Some(CStr::from_ptr(tables.strings.add(tables.soname?))) }
    }

    /// Whether the path's last part or the soname starts so.
    pub fn is_named(&self, start: &str) -> bool {
        let path = self.path().to_bytes();
        let last = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        last.starts_with(start.as_bytes())
            || self.soname().is_some_and(|name| name.to_bytes().starts_with(start.as_bytes()))
    }

    /// Addresses in other objects that the loader has put into this one: what it uses of them.
    /// The object is not unloaded meanwhile.
    pub fn references(&self) -> impl Iterator<Item = usize> {
        let (base, slots) = unsafe { ((*self.map).base, Slots::of((*self.map).dynamic)) };
        let symbols = self.tables.map(|tables| tables.symbols);
        let entries = slots.parts.into_iter().flatten();
        entries.filter_map(move |entry| {
            let (kind, symbol) = (entry.r_info as u32, (entry.r_info >> 32) as usize);
            if !matches!(kind, R_X86_64_64 | R_X86_64_GLOB_DAT | R_X86_64_JUMP_SLOT) {
                return None;
            }
            // SAFETY: as the object's own tables say; the loader has been there.
            unsafe {
                let foreign = (*symbols?.add(symbol)).st_shndx == 0;
                foreign.then(|| ((base + entry.r_offset as usize) as *const usize).read_volatile())
            }
        })
    }

    /// Address of the function that it defines under this name.
    pub fn function(&self, name: &[u8]) -> Option<usize> {
        unsafe { self.tables?.function(name) }
    }
}

/// The handle of the program itself: the first in the loader's list.
pub fn first_object() -> usize {
    #[repr(C)]
    struct Debug {
        version: c_int,
        first: *mut LinkMap,
    }
    unsafe extern "C" {
        /// The loader's, for debuggers.
        static _r_debug: Debug;
    }
    // SAFETY: set before the program starts.
    unsafe { (&raw const _r_debug.first).read_volatile() as usize }
}

/// What the loader added to the addresses of the object with this handle, and the handle of the next
/// one. `None`: there is no such object.
///
/// # Safety
/// 0, or a handle of an object that is in the loader's list meanwhile.
pub unsafe fn link(handle: usize) -> Option<(usize, usize)> {
    // SAFETY: as the caller promises.
    let map = unsafe { (handle as *const LinkMap).as_ref() }?;
    Some((map.base, map.next as usize))
}

/// This library itself, from the loader's list of all: no lock, so that a hook may ask.
fn own() -> Option<Object> {
    unsafe extern "C" {
        /// Each object has its own; this is ours.
        static _DYNAMIC: Dynamic;
    }
    // SAFETY: links of the loader's; we are among the objects of the start, or at least stay.
    unsafe {
        let next = |map: &*mut LinkMap| (!(**map).next.is_null()).then_some((**map).next);
        let first = first_object() as *mut LinkMap;
        let mut all = std::iter::successors((!first.is_null()).then_some(first), next);
        let ours = all.find(|map| core::ptr::eq((**map).dynamic, &raw const _DYNAMIC));
        ours.map(|map| Object::new(map)).or_else(|| object_at(own as *const () as usize))
    }
}

/// The function of this name in the first object behind us, in load order; failing that, in one
/// before us.
///
/// The loader's list is read as it stands. Only objects of the start are looked at: they stay as
/// long as the process, and only the last of them is linked to something new later. A sanitizer's
/// runtime asks us before its own `dl_iterate_phdr` works, so that one is not called.
pub fn behind_us(name: &[u8]) -> Option<usize> {
    let own = own()?;
    // SAFETY: links of the loader's, of objects that stay.
    let previous = |object: &Object| unsafe { Object::linked((*object.map).previous) };
    let before = std::iter::successors(previous(&own), previous);
    let mut in_order = behind_object(&own).chain(before);
    in_order.find_map(|object| object.function(name))
}

/// The function of this name in the first object of the start behind the one that holds the address.
pub fn behind(address: usize, name: &[u8]) -> Option<usize> {
    let object = object_at(address)?;
    behind_object(&object).find_map(|object| object.function(name))
}

/// Address and size of the variable of this name in the first object of the start behind us.
pub fn variable_of_start(name: &[u8]) -> Option<(usize, usize)> {
    behind_object(&own()?).find_map(|object| object.symbol(name))
}

/// The C library's own function of this name, whoever stands in front of it.
pub fn of_c_library(name: &[u8]) -> Option<usize> {
    let library = behind_object(&own()?).find(|object| object.is_named("libc.so."))?;
    library.function(name)
}

/// The objects of the start behind this one, in load order: up to the C library and the loader.
fn behind_object(object: &Object) -> impl Iterator<Item = Object> + use<> {
    // SAFETY: links of the loader's, of objects that stay.
    let next = |object: &Object| unsafe { Object::linked((*object.map).next) };
    let (mut library, mut loader) = (false, false);
    std::iter::successors(next(object), next).take_while(move |object| {
        let last = library && loader;
        library |= object.is_named("libc.so.");
        loader |= object.is_named("ld-linux");
        !last
    })
}

impl Tables {
    unsafe fn of(base: usize, dynamic: *const Dynamic) -> Option<Tables> {
        if dynamic.is_null() {
            return None;
        }
        let mut entry = dynamic;
        let (mut hash, mut symbols, mut strings, mut soname) = (0, 0, 0, None);
        unsafe {
            while (*entry).tag != DT_NULL {
                let value = (*entry).value as usize;
                match (*entry).tag {
                    DT_GNU_HASH => hash = value,
                    DT_SYMTAB => symbols = value,
                    DT_STRTAB => strings = value,
                    DT_SONAME => soname = Some(value),
                    _ => {}
                }
                entry = entry.add(1);
            }
        }
        // The loader adds the base to these in place, but not for the vdso.
        if hash == 0 || symbols == 0 || strings == 0 || hash < base {
            return None;
        }
        Some(Tables {
            base,
            hash: hash as *const u32,
            symbols: symbols as *const libc::Elf64_Sym,
            strings: strings as *const c_char,
            soname,
        })
    }

    unsafe fn function(&self, name: &[u8]) -> Option<usize> {
        unsafe { Some(self.symbol(name, is_function)?.0) }
    }

    unsafe fn symbol(
        &self,
        name: &[u8],
        fits: impl Fn(&libc::Elf64_Sym) -> bool,
    ) -> Option<(usize, usize)> {
        let wanted = hash(name);
        unsafe {
            let buckets = *self.hash;
            let first = *self.hash.add(1);
            let bloom_words = *self.hash.add(2);
            let shift = *self.hash.add(3);
            if buckets == 0 || bloom_words == 0 {
                return None;
            }
            let bloom = self.hash.add(4).cast::<u64>();
            let word = bloom.add((wanted / 64) as usize % bloom_words as usize).read_unaligned();
            let mask = (1 << (wanted % 64)) | (1 << ((wanted >> shift) % 64));
            if word & mask != mask {
                return None;
            }
            let heads = bloom.add(bloom_words as usize).cast::<u32>();
            let chain = heads.add(buckets as usize);
            let mut index = *heads.add((wanted % buckets) as usize);
            if index < first {
                return None;
            }
            loop {
                let entry = *chain.add((index - first) as usize);
                if entry | 1 == wanted | 1 {
                    let symbol = &*self.symbols.add(index as usize);
                    let text = CStr::from_ptr(self.strings.add(symbol.st_name as usize));
                    if text.to_bytes() == name && fits(symbol) {
                        let address = self.base + symbol.st_value as usize;
                        return Some((address, symbol.st_size as usize));
                    }
                }
                if entry & 1 != 0 {
                    return None;
                }
                index += 1;
            }
        }
    }
}

/// Where the loader puts addresses into an object: two lists.
struct Slots {
    parts: [&'static [libc::Elf64_Rela]; 2],
}

impl Slots {
    unsafe fn of(dynamic: *const Dynamic) -> Slots {
        let (mut all, mut calls) = ((0, 0), (0, 0));
        let mut entry = dynamic;
        unsafe {
            while !entry.is_null() && (*entry).tag != DT_NULL {
                let value = (*entry).value as usize;
                match (*entry).tag {
                    DT_RELA => all.0 = value,
                    DT_RELASZ => all.1 = value,
                    DT_JMPREL => calls.0 = value,
                    DT_PLTRELSZ => calls.1 = value,
                    _ => {}
                }
                entry = entry.add(1);
            }
        }
        let list = |(at, bytes): (usize, usize)| match at {
            0 => &[][..],
            // SAFETY: a table of the object, which stays.
            _ => unsafe {
                let count = bytes / size_of::<libc::Elf64_Rela>();
                core::slice::from_raw_parts(at as *const libc::Elf64_Rela, count)
            },
        };
        Slots { parts: [list(calls), list(all)] }
    }
}

/// Defined, and code: an indirect function's value is its chooser, not itself.
fn is_function(symbol: &libc::Elf64_Sym) -> bool {
    symbol.st_shndx != 0 && matches!(symbol.st_info & 15, STT_NOTYPE | STT_FUNC)
}

/// Defined, and code or data that has one address for all threads.
fn is_in_memory(symbol: &libc::Elf64_Sym) -> bool {
    symbol.st_shndx != 0 && matches!(symbol.st_info & 15, STT_NOTYPE | STT_OBJECT | STT_FUNC)
}

/// The hash of DT_GNU_HASH.
fn hash(name: &[u8]) -> u32 {
    name.iter().fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(*byte as u32))
}

#[repr(C)]
struct Dynamic {
    tag: i64,
    value: u64,
}

const DT_NULL: i64 = 0;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_PLTRELSZ: i64 = 2;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_SONAME: i64 = 14;
const DT_JMPREL: i64 = 23;
const R_X86_64_64: u32 = 1;
const R_X86_64_GLOB_DAT: u32 = 6;
const R_X86_64_JUMP_SLOT: u32 = 7;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const STT_NOTYPE: u8 = 0;
const STT_OBJECT: u8 = 1;
const STT_FUNC: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_the_linker_found() {
        // Not through dlsym: the test binary's own references.
        let getppid = libc::getppid as *const () as usize;
        let object = object_at(getppid).unwrap();
        assert!(object.is_named("libc.so"));
        assert!(object.contains(libc::getpid as *const () as usize));
        assert!(!object.contains(object_at as *const () as usize));
        assert_eq!(object.function(b"getppid"), Some(getppid));
        assert_eq!(object.function(b"no_such_function_anywhere"), None);
        assert_eq!(behind_us(b"getppid"), Some(getppid));
        assert!(own().is_some_and(|own| own.contains(object_at as *const () as usize)));
        let again = unsafe { Object::of_handle(object.handle()) };
        assert_eq!(again.function(b"getppid"), Some(getppid));
    }

    #[test]
    fn an_address_of_nobody() {
        assert!(object_at(16).is_none());
        assert_eq!(behind_us(b"no_such_function_anywhere"), None);
    }
}
