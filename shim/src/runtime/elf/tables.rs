//! The tables of a loaded object for look-ups by name, and its relocations.

use super::image::{Image, u16_at, u32_at, u64_at};
use core::ffi::CStr;

const SYMBOL: usize = size_of::<libc::Elf64_Sym>();
const RELOCATION: usize = size_of::<libc::Elf64_Rela>();
const DYNAMIC: usize = 16;
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
    base: usize,
    hash: usize,
    symbols: usize,
    strings: usize,
    soname: Option<usize>,
    /// Address and size in bytes of the relocations of calls, and of all others.
    relocations: [(usize, usize); 2],
}

/// An entry of the symbol table, as in the file.
#[derive(Clone, Copy)]
pub struct Symbol {
    name: u32,
    info: u8,
    section: u16,
    value: u64,
    size: u64,
}

impl Symbol {
    fn is_defined(&self) -> bool {
        self.section != 0
    }

    /// Defined, and code. Not an indirect function, whose value is the address of its resolver.
    pub fn is_function(&self) -> bool {
        self.is_defined() && matches!(self.info & 15, STT_NOTYPE | STT_FUNC)
    }

    /// Defined, and code or data that has one address for all threads.
    pub fn is_in_memory(&self) -> bool {
        self.is_defined() && matches!(self.info & 15, STT_NOTYPE | STT_OBJECT | STT_FUNC)
    }
}

impl Tables {
    pub fn of(image: Image, base: usize, dynamic: usize) -> Option<Tables> {
        let (mut hash, mut symbols, mut strings, mut soname) = (0, 0, 0, None);
        let mut relocations = [(0, 0); 2];
        for index in 0..ENTRIES {
            let entry = image.bytes(dynamic + index * DYNAMIC, DYNAMIC)?;
            let (tag, value) = (u64_at(entry, 0)?, u64_at(entry, 8)? as usize);
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
        let usable = hash != 0 && symbols != 0 && strings != 0 && hash >= base;
        usable.then_some(Tables { image, base, hash, symbols, strings, soname, relocations })
    }

    pub fn soname(&self) -> Option<&'static CStr> {
        self.image.text(self.strings.checked_add(self.soname?)?)
    }

    fn symbol_at(&self, index: usize) -> Option<Symbol> {
        let at = self.symbols.checked_add(index.checked_mul(SYMBOL)?)?;
        let bytes = self.image.bytes(at, SYMBOL)?;
        Some(Symbol {
            name: u32_at(bytes, 0)?,
            info: *bytes.get(4)?,
            section: u16_at(bytes, 6)?,
            value: u64_at(bytes, 8)?,
            size: u64_at(bytes, 16)?,
        })
    }

    /// Address and size of the symbol that is defined under this name.
    pub fn symbol(&self, name: &[u8], fits: impl Fn(&Symbol) -> bool) -> Option<(usize, usize)> {
        let wanted = hash(name);
        let head = self.image.bytes(self.hash, 16)?;
        let (buckets, first) = (u32_at(head, 0)?, u32_at(head, 4)?);
        let (bloom_words, shift) = (u32_at(head, 8)?, u32_at(head, 12)?);
        if buckets == 0 || bloom_words == 0 {
            return None;
        }
        let bloom = self.image.table(self.hash + 16, bloom_words as usize, 8)?;
        let word = u64_at(bloom, 8 * ((wanted / 64) % bloom_words) as usize)?;
        let mask = (1 << (wanted % 64)) | (1 << (wanted.checked_shr(shift).unwrap_or(0) % 64));
        if word & mask != mask {
            return None;
        }
        let heads = self.hash + 16 + bloom.len();
        let chain = heads.checked_add((buckets as usize).checked_mul(4)?)?;
        let word = |at: usize| u32_at(self.image.bytes(at, 4)?, 0);
        let mut index = word(heads + 4 * (wanted % buckets) as usize)?;
        loop {
            let entry = word(chain.checked_add(4 * index.checked_sub(first)? as usize)?)?;
            if entry | 1 == wanted | 1 {
                let symbol = self.symbol_at(index as usize)?;
                let at = self.strings.checked_add(symbol.name as usize)?;
                // With its NUL.
                let text = self.image.bytes(at, name.len() + 1);
                if text.is_some_and(|text| text.strip_prefix(name) == Some(&[0])) && fits(&symbol) {
                    let address = self.base.wrapping_add(symbol.value as usize);
                    return Some((address, symbol.size as usize));
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
        let list = move |(at, bytes): (usize, usize)| {
            self.image.table(at, bytes / RELOCATION, RELOCATION).unwrap_or(&[])
        };
        let entries =
            self.relocations.into_iter().flat_map(move |part| list(part).chunks_exact(RELOCATION));
        entries.filter_map(move |entry| {
            let (at, info) = (u64_at(entry, 0)?, u64_at(entry, 8)?);
            let (kind, symbol) = (info as u32, (info >> 32) as usize);
            let names_one = BY_SYMBOL.contains(&kind);
            let foreign = names_one && !self.symbol_at(symbol)?.is_defined();
            foreign.then(|| self.image.word(self.base.wrapping_add(at as usize))).flatten()
        })
    }
}

/// The hash of DT_GNU_HASH.
fn hash(name: &[u8]) -> u32 {
    name.iter().fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(*byte as u32))
}
