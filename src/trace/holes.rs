//! The data ranges of a sparse file. A trace of weeks consists mostly of holes: erased event windows. They
//! are skipped, because reading a mapped hole costs a page fault and a page of cache.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

/// The holes of a file are read where less than 1 / SPARSE of it is on the disk. For other files there is
/// little to gain.
const SPARSE: u64 = 2;

/// Maximum number of ranges of a file, each for a window of 256 KiB at least: more than any trace has.
const MAX_RANGES: usize = 1 << 20;

/// The byte ranges with data, in ascending order. The whole file where it is not sparse, or where its file
/// system does not support SEEK_HOLE.
pub(super) fn data_ranges(file: &File) -> io::Result<Vec<Range<u64>>> {
    let meta = file.metadata()?;
    let (len, on_disk) = (meta.len(), meta.blocks() * 512);
    let whole = || Ok(Vec::from([Range { start: 0, end: len }]));
    if on_disk > len / SPARSE {
        return whole();
    }
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < len {
        let start = match seek(file, at, libc::SEEK_DATA) {
            Ok(start) => start,
            // No data after this offset.
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => break,
            Err(_) => return whole(),
        };
        let Ok(end) = seek(file, start, libc::SEEK_HOLE) else { return whole() };
        if end <= start {
            return whole();
        }
        ranges.push(start..end.min(len));
        if ranges.len() > MAX_RANGES {
            return Err(io::Error::other(format!("has more than {MAX_RANGES} ranges of data")));
        }
        at = end;
    }
    Ok(ranges)
}

fn seek(file: &File, at: u64, whence: libc::c_int) -> io::Result<u64> {
    let at = libc::off64_t::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the descriptor is open; the call touches no memory.
    let found = unsafe { libc::lseek64(file.as_raw_fd(), at, whence) };
    u64::try_from(found).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn every_byte_that_was_written_is_in_a_range() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 << 20).unwrap();
        let places = [0u64, 9 << 20, (40 << 20) + 123, (64 << 20) - 1];
        for at in places {
            file.write_all_at(b"x", at).unwrap();
        }
        let ranges = data_ranges(&file).unwrap();
        for at in places {
            assert!(ranges.iter().any(|range| range.contains(&at)), "{at} in {ranges:?}");
        }
        assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "{ranges:?}");
    }

    #[test]
    fn a_file_without_holes_is_one_range() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[1; 10_000], 0).unwrap();
        assert_eq!(data_ranges(&file).unwrap(), [Range { start: 0, end: 10_000 }]);
    }
}
