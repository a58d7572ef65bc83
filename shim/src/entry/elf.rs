//! Symbols by walking the loaded objects' own tables.
//!
//! We own `dlsym`, so nothing here may call it: the real one, and the driver's functions behind
//! our exports of the same names, are found in the GNU hash tables of their objects.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ops::ControlFlow;
use libc::{dl_phdr_info, size_t};

/// A loaded object, valid during the visit.
pub struct Object<'a> {
    info: &'a dl_phdr_info,
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

/// Visits the objects in load order until `visit` breaks.
pub fn objects<B>(mut visit: impl FnMut(&Object) -> ControlFlow<B>) -> Option<B> {
    struct State<'a, B> {
        visit: &'a mut dyn FnMut(&Object) -> ControlFlow<B>,
        broke: Option<B>,
    }
    unsafe extern "C" fn step<B>(info: *mut dl_phdr_info, _: size_t, data: *mut c_void) -> c_int {
        let state = unsafe { &mut *data.cast::<State<B>>() };
        let object = unsafe { Object::new(&*info) };
        match (state.visit)(&object) {
            ControlFlow::Continue(()) => 0,
            ControlFlow::Break(value) => {
                state.broke = Some(value);
                1
            }
        }
    }
    let mut state = State { visit: &mut visit, broke: None };
    unsafe { libc::dl_iterate_phdr(Some(step::<B>), (&raw mut state).cast()) };
    state.broke
}

impl Object<'_> {
    unsafe fn new(info: &dl_phdr_info) -> Object<'_> {
        let tables = unsafe { Tables::of(info) };
        Object { info, tables }
    }

    fn headers(&self) -> &[libc::Elf64_Phdr] {
        if self.info.dlpi_phdr.is_null() {
            return &[];
        }
        unsafe { core::slice::from_raw_parts(self.info.dlpi_phdr, self.info.dlpi_phnum as usize) }
    }

    /// First and one past last address of its segments.
    pub fn range(&self) -> (usize, usize) {
        let base = self.info.dlpi_addr as usize;
        let loads = || self.headers().iter().filter(|header| header.p_type == libc::PT_LOAD);
        let start = loads().map(|h| h.p_vaddr as usize).min().unwrap_or(0);
        let end = loads().map(|h| (h.p_vaddr + h.p_memsz) as usize).max().unwrap_or(0);
        (base + start, base + end)
    }

    pub fn contains(&self, address: usize) -> bool {
        let (start, end) = self.range();
        (start..end).contains(&address)
    }

    /// Path as it was loaded; empty for the program itself.
    pub fn path(&self) -> &CStr {
        if self.info.dlpi_name.is_null() {
            return c"";
        }
        unsafe { CStr::from_ptr(self.info.dlpi_name) }
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

    /// Address of the function that it defines under this name.
    pub fn function(&self, name: &[u8]) -> Option<usize> {
        unsafe { self.tables?.function(name) }
    }
}

impl Tables {
    unsafe fn of(info: &dl_phdr_info) -> Option<Tables> {
        let base = info.dlpi_addr as usize;
        if info.dlpi_phdr.is_null() {
            return None;
        }
        let headers =
            unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize) };
        let dynamic = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
        let mut entry = (base + dynamic.p_vaddr as usize) as *const Dynamic;
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
        if hash == 0 || symbols == 0 || strings == 0 {
            return None;
        }
        // The loader adds the base to these in place, but not for the vdso.
        if base != 0 && hash < base {
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
                    if text.to_bytes() == name && is_function(symbol) {
                        return Some(self.base + symbol.st_value as usize);
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

/// Defined, and code: an indirect function's value is its chooser, not itself.
fn is_function(symbol: &libc::Elf64_Sym) -> bool {
    symbol.st_shndx != 0 && matches!(symbol.st_info & 15, STT_NOTYPE | STT_FUNC)
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
const DT_SONAME: i64 = 14;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const STT_NOTYPE: u8 = 0;
const STT_FUNC: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_the_loader_finds() {
        // Through the linker, not through dlsym: the test binary's own reference.
        let expected = libc::getppid as *const () as usize;
        let found = objects(|object| match object.function(b"getppid") {
            Some(address) if object.contains(expected) => ControlFlow::Break(address),
            _ => ControlFlow::Continue(()),
        });
        assert_eq!(found, Some(expected));
    }

    #[test]
    fn does_not_find_what_is_not_there() {
        let found = objects(|object| match object.function(b"no_such_function_anywhere") {
            Some(address) => ControlFlow::Break(address),
            None => ControlFlow::Continue(()),
        });
        assert_eq!(found, None);
    }
}
