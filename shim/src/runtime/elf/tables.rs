//! The tables of a loaded object for look-ups by name, and its relocations.

use super::image::Image;
use core::ffi::CStr;
use libc::{Elf64_Rela, Elf64_Sym};

/// Most entries of a dynamic section that are read. Objects have about 30.
const ENTRIES: usize = 1024;

const DT_NULL: u64 = 0;
const DT_PLTRELSZ: u64 = 2;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_SONAME: u64 = 14;
const DT_JMPREL: u64 = 23;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
/// Relocation types that store the address of a symbol: absolute, GLOB_DAT, JUMP_SLOT.
const BY_SYMBOL: [u32; 3] = match cfg!(target_arch = "aarch64") {
    true => [257, 1025, 1026],
    false => [1, 6, 7],
};
const STT_NOTYPE: u8 = 0;
const STT_OBJECT: u8 = 1;
const STT_FUNC: u8 = 2;

/// Addresses of the tables. 0: there is none.
#[derive(Clone, Copy)]
pub struct Tables {
    pub image: Image,
    hash: usize,
    symbols: usize,
    strings: usize,
    soname: Option<usize>,
    /// Address and size in bytes of the relocations of calls, and of all others.
    relocations: [(usize, usize); 2],
}

fn is_defined(symbol: &Elf64_Sym) -> bool {
    symbol.st_shndx != 0
}

/// Defined, and code. Not an indirect function, whose value is the address of its resolver.
pub fn is_function(symbol: &Elf64_Sym) -> bool {
    is_defined(symbol) && matches!(symbol.st_info & 15, STT_NOTYPE | STT_FUNC)
}

/// Defined, and code or data that has one address for all threads.
pub fn is_in_memory(symbol: &Elf64_Sym) -> bool {
    is_function(symbol) || is_defined(symbol) && symbol.st_info & 15 == STT_OBJECT
}

impl Tables {
    pub fn of(image: Image, dynamic: usize) -> Option<Tables> {
        let (mut hash, mut symbols, mut strings, mut soname) = (0, 0, 0, None);
        let mut relocations = [(0, 0); 2];
        for [tag, value] in image.list::<[u64; 2]>(dynamic, ENTRIES) {
            let value = value as usize;
            match tag {
                DT_NULL => break,
                DT_GNU_HASH => hash = value,
                DT_SYMTAB => symbols = value,
                DT_STRTAB => strings = value,
                DT_SONAME => soname = Some(value),
                DT_JMPREL => relocations[0].0 = value,
                DT_PLTRELSZ => relocations[0].1 = value,
                DT_RELA => relocations[1].0 = value,
                DT_RELASZ => relocations[1].1 = value,
                _ => {}
            }
        }
        // The loader relocates these addresses in place, except for the vdso.
        let usable = hash != 0 && symbols != 0 && strings != 0 && hash >= image.base;
        usable.then_some(Tables { image, hash, symbols, strings, soname, relocations })
    }

    pub fn soname(&self) -> Option<&'static CStr> {
        let text = self.image.rest(self.strings.checked_add(self.soname?)?)?;
        CStr::from_bytes_until_nul(text).ok()
    }

    fn symbol_at(&self, index: usize) -> Option<Elf64_Sym> {
        let distance = index.checked_mul(size_of::<Elf64_Sym>())?;
        self.image.get(self.symbols.checked_add(distance)?)
    }

    /// Address and size of the symbol that is defined under this name.
    pub fn symbol(&self, name: &[u8], fits: impl Fn(&Elf64_Sym) -> bool) -> Option<(usize, usize)> {
        let wanted = hash(name);
        let [buckets, first, bloom_words, shift] = self.image.get::<[u32; 4]>(self.hash)?;
        if buckets == 0 || bloom_words == 0 {
            return None;
        }
        let bloom = self.hash + 16;
        let word: u64 = self.image.get(bloom + 8 * ((wanted / 64) % bloom_words) as usize)?;
        let mask = (1 << (wanted % 64)) | (1 << (wanted.checked_shr(shift).unwrap_or(0) % 64));
        if word & mask != mask {
            return None;
        }
        let heads = bloom.checked_add(8 * bloom_words as usize)?;
        let chain = heads.checked_add(4 * buckets as usize)?;
        let mut index: u32 = self.image.get(heads + 4 * (wanted % buckets) as usize)?;
        loop {
            let distance = 4 * index.checked_sub(first)? as usize;
            let entry: u32 = self.image.get(chain.checked_add(distance)?)?;
            if entry | 1 == wanted | 1 {
                let symbol = self.symbol_at(index as usize)?;
                let at = self.strings.checked_add(symbol.st_name as usize)?;
                // With its NUL.
                let text = self.image.bytes(at, name.len() + 1);
                if text.is_some_and(|text| text.strip_prefix(name) == Some(&[0])) && fits(&symbol) {
                    let address = self.image.base.wrapping_add(symbol.st_value as usize);
                    return Some((address, symbol.st_size as usize));
                }
            }
            if entry & 1 != 0 {
                return None;
            }
            index = index.checked_add(1)?;
        }
    }

    /// Addresses in other objects that the loader has written into this one.
    pub fn references(self) -> impl Iterator<Item = usize> {
        let entries = self.relocations.into_iter().flat_map(move |(at, bytes)| {
            self.image.list::<Elf64_Rela>(at, bytes / size_of::<Elf64_Rela>())
        });
        entries.filter_map(move |entry| {
            let (kind, symbol) = (entry.r_info as u32, (entry.r_info >> 32) as usize);
            let foreign = BY_SYMBOL.contains(&kind) && !is_defined(&self.symbol_at(symbol)?);
            let place = self.image.base.wrapping_add(entry.r_offset as usize);
            foreign.then(|| self.image.word(place)).flatten()
        })
    }
}

/// The hash of DT_GNU_HASH.
fn hash(name: &[u8]) -> u32 {
    name.iter().fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(*byte as u32))
}
