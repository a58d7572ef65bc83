//! Names for addresses of one ELF file: its symbol tables and, where there is one, its debug
//! information (functions that were inlined, file and line).
//!
//! Nothing is guessed: an address inside no symbol's size has no name, and a file whose build-id
//! is another than the one in the trace is not asked.

use std::borrow::Cow;
use std::cell::Cell;
use std::io::Read;
use std::path::Path;

use addr2line::LookupResult;
use gimli::{EndianSlice, LittleEndian, SectionId};
use object::{
    CompressionFormat, Object, ObjectSection, ObjectSegment, ObjectSymbol, SegmentFlags, SymbolKind,
};

use super::debug_file::{self, Stripped};
use super::limits::{self, Limit, Spent};
use crate::trace::{Bytes, HostFiles};

/// A function with an address: one of several at an address where functions were inlined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvedFrame {
    /// Demangled.
    pub function: Option<String>,
    pub file: Option<String>,
    pub line: Option<u32>,
}

/// Why a file gives no names.
#[derive(Debug, thiserror::Error)]
pub enum Unnamed {
    #[error("is not there any more, or not on this machine")]
    Missing,
    #[error("cannot be read: {0}")]
    Unreadable(std::io::Error),
    #[error("is no ELF file that can be read: {0}")]
    NotElf(object::Error),
    #[error("{0}")]
    TooMuch(Limit),
    #[error("is another file than the one that was traced (build-id {found}, then {traced})")]
    Changed { found: String, traced: String },
}

/// What a file says of addresses.
#[derive(Clone, Debug, Default)]
pub struct FileNames {
    /// Of each address, innermost first where functions were inlined; none where none is known.
    pub names: Vec<Vec<ResolvedFrame>>,
    /// Why there are no files and lines although the file has debug information.
    pub without_lines: Option<Limit>,
    /// Why addresses have no names although the file was read.
    pub stripped: Option<Stripped>,
}

/// Names for `addresses` of the file (return addresses less 1, less the base). `build_id` empty: not compared.
///
/// The path is one that a trace names. It may lead anywhere through links, as that of a library does, but only to a
/// regular file, of which a limited part is read ([`limits`]).
pub fn names(
    files: &dyn HostFiles,
    path: &Path,
    build_id: &[u8],
    addresses: &[u64],
) -> Result<FileNames, Unnamed> {
    let spent = Spent::begin(files);
    let map = map(files, path)?;
    let file = object::File::parse(&**map).map_err(Unnamed::NotElf)?;
    let found = file.build_id().ok().flatten().unwrap_or_default();
    if !build_id.is_empty() && found != build_id {
        return Err(Unnamed::Changed { found: hex(found), traced: hex(build_id) });
    }
    let mut order: Vec<usize> =
        (0..addresses.len()).filter(|index| is_code(&file, addresses[*index])).collect();
    order.sort_unstable_by_key(|index| addresses[*index]);
    let sorted: Vec<u64> = order.iter().map(|index| addresses[*index]).collect();
    let apart = debug_file::places(path, &file, found);
    let apart = apart.iter().find_map(|place| debug_file_at(files, place, found));
    let apart = apart.as_ref().and_then(|map| object::File::parse(&***map).ok());
    let mut best = vec![None; sorted.len()];
    for file in [Some(&file), apart.as_ref()].into_iter().flatten() {
        symbols(file, &sorted, &mut best, &spent).map_err(Unnamed::TooMuch)?;
    }
    let mut all = vec![Vec::new(); addresses.len()];
    for (place, symbol) in order.iter().zip(&best) {
        if let Some(symbol) = symbol {
            all[*place] = vec![ResolvedFrame {
                function: Some(demangle(symbol.name)),
                ..ResolvedFrame::default()
            }];
        }
    }
    let mut without_lines = None;
    for file in [Some(&file), apart.as_ref()].into_iter().flatten() {
        if let Err(limit) = lines(file, &order, &sorted, &mut all, &spent) {
            without_lines = Some(limit);
        }
    }
    let unnamed = order.iter().any(|place| all[*place].is_empty());
    let stripped = Stripped::of(&file).filter(|_| unnamed && apart.is_none());
    Ok(FileNames { names: all, without_lines, stripped })
}

fn map(files: &dyn HostFiles, path: &Path) -> Result<Box<dyn Bytes>, Unnamed> {
    let map = files.map(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Unnamed::Missing,
        _ => Unnamed::Unreadable(error),
    })?;
    if map.len() as u64 > limits::FILE_BYTES { Err(Unnamed::TooMuch(Limit::File)) } else { Ok(map) }
}

/// Does the file have instructions there? Debug information also describes functions that the
/// linker left out, at addresses near 0.
fn is_code(file: &object::File, address: u64) -> bool {
    file.segments().any(|segment| {
        let SegmentFlags::Elf { p_flags, .. } = segment.flags() else { return false };
        let start = segment.address();
        p_flags.contains(object::elf::PF_X) && address >= start && address - start < segment.size()
    })
}

/// A file with the same build-id.
fn debug_file_at(files: &dyn HostFiles, place: &Path, build_id: &[u8]) -> Option<Box<dyn Bytes>> {
    let map = map(files, place).ok()?;
    let same = object::File::parse(&**map).ok()?.build_id().ok()? == Some(build_id);
    same.then_some(map)
}

pub(super) fn hex(bytes: &[u8]) -> String {
    match bytes.is_empty() {
        true => "none".to_string(),
        false => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

#[derive(Clone, Copy)]
struct Symbol<'f> {
    size: u64,
    name: &'f str,
}

/// For each of the sorted addresses the smallest symbol that holds it. One pass over the tables:
/// they may have a million entries, the stacks some hundred addresses.
fn symbols<'f>(
    file: &object::File<'f>,
    sorted: &[u64],
    best: &mut [Option<Symbol<'f>>],
    spent: &Spent,
) -> Result<(), Limit> {
    let (Some(&first), Some(&last)) = (sorted.first(), sorted.last()) else { return Ok(()) };
    for (count, symbol) in file.symbols().chain(file.dynamic_symbols()).enumerate() {
        if count > limits::SYMBOLS {
            return Err(Limit::Symbols);
        }
        let (start, size) = (symbol.address(), symbol.size());
        let Some(end) = start.checked_add(size) else { continue };
        if size == 0 || start > last || end <= first || symbol.is_undefined() {
            continue;
        }
        let mut index = sorted.partition_point(|address| *address < start);
        if sorted.get(index).is_none_or(|address| *address >= end)
            || !matches!(symbol.kind(), SymbolKind::Text | SymbolKind::Unknown)
        {
            continue;
        }
        // A name may be as long as the file, and so may be all of them.
        spent.check()?;
        let Ok(name) = symbol.name() else { continue };
        while sorted.get(index).is_some_and(|address| *address < end) {
            if !name.is_empty() && best[index].is_none_or(|known| size < known.size) {
                best[index] = Some(Symbol { size, name });
            }
            index += 1;
        }
    }
    Ok(())
}

/// Adds inlined functions, files and lines from the debug information, if there is any.
fn lines(
    file: &object::File,
    order: &[usize],
    sorted: &[u64],
    all: &mut [Vec<ResolvedFrame>],
    spent: &Spent,
) -> Result<(), Limit> {
    if sorted.is_empty() || file.section_by_name(".debug_info").is_none_or(|it| it.size() == 0) {
        return Ok(());
    }
    let too_much = Cell::new(None);
    let left = Cell::new(limits::DEBUG_BYTES);
    let load = |id: SectionId| -> Result<Cow<[u8]>, gimli::Error> {
        let section = file.section_by_name(id.name());
        let content = section.map(|section| content(&section, &left, spent)).transpose();
        Ok(content
            .unwrap_or_else(|limit| {
                too_much.set(Some(limit));
                None
            })
            .flatten()
            .unwrap_or_default())
    };
    let Ok(sections) = gimli::DwarfSections::load(load) else { return Ok(()) };
    if let Some(limit) = too_much.get() {
        return Err(limit);
    }
    let dwarf = sections.borrow(|section| EndianSlice::new(section, LittleEndian));
    // Each unit takes some hundred bytes as soon as it is opened.
    let mut units = dwarf.units();
    let mut count = 0;
    while let Ok(Some(_)) = units.next() {
        count += 1;
        if count > limits::UNITS {
            return Err(Limit::Units);
        }
    }
    let Ok(context) = addr2line::Context::from_dwarf(dwarf) else { return Ok(()) };
    for (place, address) in order.iter().zip(sorted) {
        spent.check()?;
        let mut frames = match context.find_frames(*address) {
            LookupResult::Output(Ok(frames)) => frames,
            // Split debug information (.dwo) is not followed: the symbol's name stays.
            _ => continue,
        };
        let mut found = Vec::new();
        while let Ok(Some(frame)) = frames.next() {
            spent.check()?;
            let function = frame.function.as_ref().and_then(|name| name.raw_name().ok());
            let location = frame.location.as_ref();
            found.push(ResolvedFrame {
                function: function.map(|name| demangle(&name)),
                file: location.and_then(|at| at.file).map(str::to_string),
                line: location.and_then(|at| at.line).filter(|line| *line > 0),
            });
        }
        let symbol = all[*place].pop().and_then(|name| name.function);
        if let Some(outer) = found.last_mut() {
            // The symbol is the whole function's: it says more than a name in the source.
            outer.function = symbol.or(outer.function.take());
            all[*place] = found;
        } else if let Some(function) = symbol {
            all[*place] =
                vec![ResolvedFrame { function: Some(function), ..ResolvedFrame::default() }];
        }
    }
    Ok(())
}

/// A section's bytes. What is compressed in a way that we cannot read counts as not there. `left`: the bytes of debug
/// information of the file that may still be read.
fn content<'f>(
    section: &impl ObjectSection<'f>,
    left: &Cell<u64>,
    spent: &Spent,
) -> Result<Option<Cow<'f, [u8]>>, Limit> {
    let Ok(compressed) = section.compressed_data() else { return Ok(None) };
    let (packed, plain) = (compressed.data.len() as u64, compressed.uncompressed_size);
    left.set(left.get().checked_sub(plain.max(packed)).ok_or(Limit::Debug)?);
    match compressed.format {
        CompressionFormat::None => Ok(Some(Cow::Borrowed(compressed.data))),
        CompressionFormat::Zlib => {
            if plain > packed.saturating_mul(limits::RATIO).max(limits::SOME_BYTES) {
                return Err(Limit::Ratio);
            }
            spent.unpack(plain)?;
            let mut bytes = Vec::new();
            // The section's header may give fewer bytes than there are.
            let mut unpacked = flate2::read::ZlibDecoder::new(compressed.data).take(plain);
            Ok(unpacked.read_to_end(&mut bytes).is_ok().then_some(Cow::Owned(bytes)))
        }
        _ => Ok(None),
    }
}

/// A name as people write it: without the parameters and the hash that linkers need.
pub fn demangle(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    if name.starts_with("_Z") || name.starts_with("__Z") {
        let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
        let symbol = cpp_demangle::Symbol::new(name).ok();
        if let Some(text) = symbol.and_then(|it| it.demangle_with_options(&options).ok()) {
            return text;
        }
    }
    name.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{TestFiles, in_repository};

    #[test]
    fn names_of_two_languages_are_demangled() {
        assert_eq!(
            demangle("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE"),
            "core::fmt::Write::write_fmt"
        );
        assert_eq!(
            demangle("_ZN3c104cuda20CUDACachingAllocator9raw_allocEm"),
            "c10::cuda::CUDACachingAllocator::raw_alloc"
        );
        assert_eq!(demangle("_RNvCs1234_7mycrate3foo"), "mycrate::foo");
        assert_eq!(demangle("cuMemAlloc_v2"), "cuMemAlloc_v2");
        assert_eq!(demangle("_Z"), "_Z");
    }

    #[inline(never)]
    fn a_function_of_this_test(seed: u64) -> u64 {
        std::hint::black_box(seed).rotate_left(7) ^ 0x5eed
    }

    /// Where this program is loaded: what its own addresses are in the file.
    fn own_base() -> u64 {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let own = std::env::current_exe().unwrap();
        let first = maps.lines().find(|line| line.ends_with(own.to_str().unwrap())).unwrap();
        u64::from_str_radix(first.split('-').next().unwrap(), 16).unwrap()
    }

    #[test]
    fn this_program_knows_its_own_functions_files_and_lines() {
        let own = std::env::current_exe().unwrap();
        let function = a_function_of_this_test as fn(u64) -> u64 as usize as u64;
        let at = function - own_base() + 1;
        // Out of order, twice the same, and one in no function.
        let found = names(&TestFiles, &own, &[], &[at, 1, at]).unwrap().names;
        let name = found[0].last().expect("a name");
        let function = name.function.as_deref().unwrap();
        assert!(function.ends_with("native::tests::a_function_of_this_test"), "{function}");
        assert!(name.file.as_deref().unwrap().ends_with("src/symbols/native.rs"), "{name:?}");
        assert!(name.line.is_some_and(|line| line > 200), "{name:?}");
        assert_eq!(found[2], found[0]);
        assert_eq!(found[1], []);
    }

    #[test]
    fn another_build_a_missing_file_and_no_elf_are_reported() {
        let why =
            |path: &Path, build_id: &[u8]| names(&TestFiles, path, build_id, &[1]).unwrap_err();
        let changed = why(&std::env::current_exe().unwrap(), &[1, 2, 3]);
        assert!(matches!(&changed, Unnamed::Changed { traced, .. } if traced == "010203"));
        assert!(matches!(why(Path::new("/nowhere/libgone.so"), &[]), Unnamed::Missing));
        let maps = why(Path::new("/proc/self/maps"), &[]);
        assert!(matches!(maps, Unnamed::NotElf(_) | Unnamed::Unreadable(_)), "{maps}");
        assert!(matches!(why(Path::new("/"), &[]), Unnamed::Unreadable(_)));
        assert!(matches!(why(&in_repository("README.md"), &[]), Unnamed::NotElf(_)));
    }

    /// Its functions are known from .dynsym alone where it is stripped.
    #[test]
    fn a_library_of_the_system_is_named() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        // libc-2.31.so where glibc is older than 2.34.
        let is_libc = |line: &&str| line.contains("/libc.so") || line.contains("/libc-2.");
        let base = maps.lines().find(is_libc).expect("a libc");
        let path = &base[base.find('/').unwrap()..];
        let base = u64::from_str_radix(base.split('-').next().unwrap(), 16).unwrap();
        let at = libc::gnu_get_libc_version as *const () as u64 - base + 1;
        let found = names(&TestFiles, Path::new(path), &[], &[at]).unwrap().names;
        let function = found[0].last().and_then(|name| name.function.as_deref()).unwrap();
        assert!(function == "gnu_get_libc_version", "{function}");
    }
}
