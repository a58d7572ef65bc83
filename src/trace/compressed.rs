//! Traces that were compressed with gzip. They are unpacked into a temporary file without a name, which is mapped.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::Path;

use vramtrace_format::header::MAGIC;

use crate::files::{self, GZIP};

/// The extension behind that of a trace.
pub(super) const EXTENSION: &str = "gz";

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
pub(super) fn unpacked(mut file: &File) -> io::Result<Option<File>> {
    let mut first = [0; GZIP.len()];
    match file.read_exact_at(&mut first, 0) {
        Ok(()) if first == GZIP => {}
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
        _ => return Ok(None),
    }
    file.rewind()?;
    let plain = tempfile::tempfile()?;
    let length = files::unpack(file, file.metadata()?.len(), |at, block| {
        // Erased parts take no space here either.
        let has_data = block.iter().any(|byte| *byte != 0);
        if has_data {
            plain.write_all_at(block, at)?;
        }
        Ok(has_data)
    })?;
    plain.set_len(length)?;
    Ok(Some(plain))
}

#[cfg(test)]
mod tests {
    use super::super::open::{open, open_of};
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

    #[test]
    fn the_trace_of_a_user_is_neither_compressed_nor_of_another_nor_reached_through_a_link() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        // SAFETY: has no arguments and always succeeds.
        let me = unsafe { libc::geteuid() };
        crate::testing::training().write(&at("trace"));
        let plain = std::fs::read(at("trace")).unwrap();
        std::fs::copy(packed(&plain).path(), at("packed")).unwrap();
        std::os::unix::fs::symlink("trace", at("link")).unwrap();
        for name in ["trace", "packed", "link"] {
            assert!(open(&at(name)).is_ok(), "{name}");
        }
        assert!(open_of(me, &at("trace")).is_ok());
        let why = |user, name| open_of(user, &at(name)).unwrap_err().to_string();
        assert!(why(me + 1, "trace").contains("another user"), "{}", why(me + 1, "trace"));
        assert!(why(me, "packed").contains("not a vramtrace trace"), "{}", why(me, "packed"));
        assert!(why(me, "link").contains("symbolic links"), "{}", why(me, "link"));
        assert!(why(me, "no\0name").contains("NUL"), "{}", why(me, "no\0name"));
        assert!(why(me, "/proc/self/maps").contains("of the kernel"));
    }
}
