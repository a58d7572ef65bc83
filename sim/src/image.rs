//! What can be known of a kernel image without a compiler: the names in PTX and in cubins.

use crate::abi::In;
use crate::error::{Done, Error};
use std::collections::{HashMap, HashSet};
use std::ffi::{c_char, c_void};

#[derive(Default)]
pub(crate) struct Image {
    kernels: Vec<String>,
    globals: HashMap<String, u64>,
    /// Bytes of local memory that a thread of a kernel has.
    local: HashMap<String, u64>,
    /// Kernels that call malloc.
    heap: HashSet<String>,
    /// Compressed or unknown: any name may be in it.
    opaque: bool,
}

const ELF: &[u8] = b"\x7fELF";

impl Image {
    /// Reads an image of unknown length, as the driver gets it.
    pub(crate) fn read(image: In<c_void>) -> Done<Image> {
        if image.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let bytes = image.cast::<u8>();
        let first = bytes.list(4)?;
        if first == ELF {
            let length = elf_length(&bytes.list(64)?).ok_or(Error::INVALID_IMAGE)?;
            return Ok(Image::from_bytes(&bytes.list(length)?));
        }
        if is_text(&first) {
            return Ok(Image::from_bytes(image.cast::<c_char>().text()?.as_bytes()));
        }
        Ok(Image::opaque())
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Image {
        if bytes.starts_with(ELF) {
            read_elf(bytes).unwrap_or_else(Image::opaque)
        } else if is_text(bytes) {
            let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
            read_ptx(&String::from_utf8_lossy(&bytes[..end]))
        } else {
            Image::opaque()
        }
    }

    fn opaque() -> Image {
        Image { opaque: true, ..Image::default() }
    }

    pub(crate) fn has_kernel(&self, name: &str) -> bool {
        self.opaque || self.kernels.iter().any(|kernel| kernel == name)
    }

    pub(crate) fn kernels(&self) -> &[String] {
        &self.kernels
    }

    /// Bytes of local memory of a thread of this kernel.
    pub(crate) fn local(&self, kernel: &str) -> u64 {
        self.local.get(kernel).copied().unwrap_or(0)
    }

    pub(crate) fn uses_heap(&self, kernel: &str) -> bool {
        self.heap.contains(kernel)
    }

    /// Bytes of a global variable.
    pub(crate) fn global(&self, name: &str) -> Option<u64> {
        self.globals.get(name).copied()
    }
}

fn is_text(bytes: &[u8]) -> bool {
    let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    matches!(first, Some(b'.' | b'/'))
}

fn number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    let part = bytes.get(at..at.checked_add(length)?)?;
    Some(part.iter().rev().fold(0, |all, &byte| all << 8 | byte as u64))
}

/// The section table stands last in a cubin, or the program headers do.
fn elf_length(head: &[u8]) -> Option<usize> {
    let table = |at: u64, size: u64, count: u64| at.checked_add(size.checked_mul(count)?);
    let sections = table(number(head, 40, 8)?, number(head, 58, 2)?, number(head, 60, 2)?)?;
    let programs = table(number(head, 32, 8)?, number(head, 54, 2)?, number(head, 56, 2)?)?;
    usize::try_from(sections.max(programs)).ok().filter(|&length| length >= 64)
}

struct Section {
    name: u64,
    kind: u64,
    offset: usize,
    size: usize,
    link: usize,
}

fn read_elf(bytes: &[u8]) -> Option<Image> {
    let (at, each, count) =
        (number(bytes, 40, 8)? as usize, number(bytes, 58, 2)? as usize, number(bytes, 60, 2)?);
    let names = number(bytes, 62, 2)? as usize;
    let sections: Vec<Section> = (0..count as usize)
        .map(|index| {
            let start = at.checked_add(index.checked_mul(each)?)?;
            Some(Section {
                name: number(bytes, start, 4)?,
                kind: number(bytes, start + 4, 4)?,
                offset: number(bytes, start + 24, 8)? as usize,
                size: number(bytes, start + 32, 8)? as usize,
                link: number(bytes, start + 40, 4)? as usize,
            })
        })
        .collect::<Option<_>>()?;
    let text = |table: &Section, offset: u64| -> Option<String> {
        let start = table.offset.checked_add(offset as usize)?;
        let rest = bytes.get(start..)?;
        let end = rest.iter().position(|&byte| byte == 0)?;
        Some(String::from_utf8_lossy(&rest[..end]).into_owned())
    };
    let mut image = Image::default();
    let name_table = sections.get(names)?;
    for section in &sections {
        if let Some(name) = text(name_table, section.name)
            && let Some(kernel) = name.strip_prefix(".text.")
        {
            image.kernels.push(kernel.to_owned());
        }
        // SHT_SYMTAB: entries of 24 bytes; STT_OBJECT are variables.
        if section.kind == 2 {
            let strings = sections.get(section.link)?;
            for index in 0..section.size / 24 {
                let symbol = section.offset.checked_add(index * 24)?;
                let is_variable = number(bytes, symbol + 4, 1)? & 0xf == 1;
                if is_variable && let Some(name) = text(strings, number(bytes, symbol, 4)?) {
                    image.globals.insert(name, number(bytes, symbol + 16, 8)?);
                }
            }
        }
    }
    Some(image)
}

fn read_ptx(text: &str) -> Image {
    let mut image = Image::default();
    let mut words = text.split(|c: char| c.is_whitespace() || c == '(').peekable();
    while let Some(word) = words.next() {
        if word == ".entry" {
            // Between them there may be more blanks.
            if let Some(name) = words.by_ref().find(|word| !word.is_empty()) {
                image.kernels.push(name.to_owned());
            }
        }
    }
    let mut kernel = None;
    for line in text.lines() {
        if let Some((_, name)) = line.split_once(".entry") {
            let name = name.trim_start().split(|c: char| c.is_whitespace() || c == '(').next();
            kernel = name.filter(|name| !name.is_empty());
        }
        let has = |space: &str| line.split_whitespace().any(|word| word == space);
        if let Some(kernel) = kernel {
            if has(".local") {
                let bytes = line.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
                let bytes = bytes.and_then(|(count, _)| count.parse::<u64>().ok()).unwrap_or(8);
                *image.local.entry(kernel.to_owned()).or_default() += bytes;
            }
            if line.contains("malloc,") {
                image.heap.insert(kernel.to_owned());
            }
        }
        if has(".global") || has(".const") {
            let declared = line.split(['=', ';']).next().unwrap_or("");
            let Some(last) = declared.split_whitespace().last() else { continue };
            let (name, rest) = last.split_once('[').unwrap_or((last, "1]"));
            let count: u64 = rest.trim_end_matches(']').parse().unwrap_or(1);
            let kind = declared.split_whitespace().rev().nth(1).unwrap_or("");
            let bits: u64 = kind.trim_start_matches(['.', 'b', 'u', 's', 'f']).parse().unwrap_or(8);
            image.globals.insert(name.to_owned(), count * bits / 8);
        }
    }
    image
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_ptx() {
        let ptx = b"\n.version 8.0\n.target sm_90\n.visible .global .align 4 .b8 table[16];\n\
            .global .f32 one;\n.visible .entry add(\n.param .u64 p)\n{ ret; }\n.entry  sub ()\n{}\0";
        let image = Image::from_bytes(ptx);
        assert!(image.has_kernel("add") && image.has_kernel("sub") && !image.has_kernel("mul"));
        assert_eq!((image.global("table"), image.global("one")), (Some(16), Some(4)));
        assert_eq!(image.global("none"), None);
        assert_eq!(image.kernels(), ["add", "sub"]);
    }

    #[test]
    fn what_kernels_need_in_ptx() {
        let ptx = b".visible .entry plain(\n)\n{ ret; }\n.visible .entry deep(\n)\n{\n\
            .local .align 8 .b8 __local_depot0[2048];\n\
            call.uni (retval0), malloc, (param0);\n ret; }\0";
        let image = Image::from_bytes(ptx);
        assert_eq!((image.local("plain"), image.local("deep")), (0, 2048));
        assert!(image.uses_heap("deep") && !image.uses_heap("plain"));
    }

    #[test]
    fn damaged_images_do_not_matter() {
        let mut elf = vec![0u8; 128];
        elf[..4].copy_from_slice(ELF);
        for at in 0..128 {
            elf[at] = 0xff;
            let _ = Image::from_bytes(&elf);
        }
        assert!(Image::from_bytes(b"\x50\xed\x55\xba....").has_kernel("any"));
    }
}
