//! Traces that were compressed with gzip. They are unpacked into a temporary file without a name, which is mapped.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::Path;

use vramtrace_format::header::MAGIC;

use crate::files;
use crate::units::size;

const GZIP: [u8; 2] = [0x1f, 0x8b];
/// The extension behind that of a trace.
pub(super) const EXTENSION: &str = "gz";
/// Most bytes of an unpacked trace: a small file may unpack to any size.
const MOST: u64 = 64 << 30;

/// Whether a file is a trace that was compressed with gzip. False for a file that cannot be read.
pub fn is_compressed_trace(path: &Path) -> bool {
    let mut first = [0; MAGIC.len()];
    begin(path, &mut first).is_ok() && first == MAGIC
}

/// The first bytes of what is compressed.
pub(super) fn begin(path: &Path, first: &mut [u8]) -> io::Result<()> {
    flate2::read::MultiGzDecoder::new(files::open(path)?).read_exact(first)
}

/// The unpacked file. `None`: it is not compressed.
pub(super) fn unpacked(file: &File) -> io::Result<Option<File>> {
    let mut first = [0; GZIP.len()];
    match file.read_exact_at(&mut first, 0) {
        Ok(()) if first == GZIP => unpack(file, MOST).map(Some),
        Ok(()) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

fn unpack(mut file: &File, most: u64) -> io::Result<File> {
    file.rewind()?;
    let mut packed = flate2::read::MultiGzDecoder::new(file);
    let plain = tempfile::tempfile()?;
    let mut block = vec![0; 1 << 16];
    let mut at = 0;
    loop {
        let length = fill(&mut packed, &mut block)?;
        if length == 0 {
            break;
        }
        if at + length as u64 > most {
            return Err(io::Error::other(format!("unpacks to more than {}", size(most))));
        }
        // Erased parts take no space here either.
        if block[..length].iter().any(|byte| *byte != 0) {
            plain.write_all_at(&block[..length], at)?;
        }
        at += length as u64;
    }
    plain.set_len(at)?;
    Ok(plain)
}

/// Reads until the block is full, or to the end.
fn fill(from: &mut impl Read, block: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < block.len() {
        match from.read(&mut block[length..]) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write;

    fn packed(plain: &[u8]) -> tempfile::NamedTempFile {
        let mut packed =
            GzEncoder::new(tempfile::NamedTempFile::new().unwrap(), Compression::fast());
        packed.write_all(plain).unwrap();
        packed.finish().unwrap()
    }

    #[test]
    fn is_unpacked_with_its_empty_parts() {
        let mut plain = vec![0; 300_000];
        plain[..8].copy_from_slice(&MAGIC);
        plain[299_999] = 7;
        let file = packed(&plain);
        assert!(is_compressed_trace(file.path()));
        let mut found = Vec::new();
        unpacked(file.as_file()).unwrap().unwrap().read_to_end(&mut found).unwrap();
        assert!(found == plain);
        assert!(unpack(file.as_file(), 299_999).is_err());
    }

    #[test]
    fn other_files_are_left_alone() {
        for plain in [&b"\x80\x04snapshot"[..], b"short"] {
            assert!(!is_compressed_trace(packed(plain).path()));
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(unpacked(file.as_file()).unwrap().is_none());
        file.as_file().write_all_at(&MAGIC, 0).unwrap();
        assert!(unpacked(file.as_file()).unwrap().is_none());
        assert!(!is_compressed_trace(file.path()));
    }
}
