//! Unpacks gzip, up to a limit: a small file may unpack to any size.

use std::io::{self, Read};

use flate2::read::MultiGzDecoder;

use crate::units::size;

/// Maximum number of unpacked bytes for each packed one. Recorded traces have 3 to 15, snapshots of PyTorch 10 to 50.
const MAX_RATIO: u64 = 200;
/// Unpacked bytes that a file of any size may have: the first windows of a short trace are nearly empty.
const SOME_BYTES: u64 = 64 << 20;
/// What is unpacked at once.
const BLOCK: usize = 1 << 16;

/// The first bytes of a file that was compressed with gzip.
pub const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Unpacks `packed`, which has `bytes`. `put` gets block after block with their offsets, and says whether it kept the
/// block: what it keeps is limited. Returns the number of unpacked bytes.
pub fn unpack(
    packed: impl Read,
    bytes: u64,
    mut put: impl FnMut(u64, &[u8]) -> io::Result<bool>,
) -> io::Result<u64> {
    let mut plain = MultiGzDecoder::new(packed);
    let most = bytes.saturating_mul(MAX_RATIO).max(SOME_BYTES);
    let (mut at, mut kept) = (0, 0);
    let mut block = Vec::with_capacity(BLOCK);
    loop {
        block.clear();
        let read = plain.by_ref().take(BLOCK as u64).read_to_end(&mut block);
        let read =
            read.map_err(|error| io::Error::new(error.kind(), format!("not whole gzip: {error}")));
        if block.is_empty() {
            return read.map(|_| at);
        }
        if kept + block.len() as u64 > most {
            return Err(io::Error::other(format!(
                "its {} unpack to more than {}, {MAX_RATIO} times as much: if you trust it, unpack \
                 it yourself (gzip -dk) and give the file that this makes",
                size(bytes),
                size(most)
            )));
        }
        kept += if put(at, &block)? { block.len() as u64 } else { 0 };
        at += block.len() as u64;
        read?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;

    #[test]
    fn what_is_kept_is_limited_by_what_is_packed() {
        let packed = |blocks: u64, byte: u8| {
            let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
            (0..blocks).for_each(|_| packed.write_all(&[byte; BLOCK]).unwrap());
            packed.finish().unwrap()
        };
        let kept = |packed: &[u8]| {
            let mut all = 0;
            let done = unpack(packed, packed.len() as u64, |at, block| {
                let has_data = block[0] != 0;
                all = if has_data { at + block.len() as u64 } else { all };
                Ok(has_data)
            });
            (done.map_err(|error| error.to_string()), all)
        };
        let some = SOME_BYTES / BLOCK as u64;
        assert_eq!(kept(&packed(some, 7)), (Ok(SOME_BYTES), SOME_BYTES));
        assert_eq!(kept(&packed(8 * some, 0)), (Ok(8 * SOME_BYTES), 0));
        // Of 8 times as many bytes that are the same.
        let bomb = packed(8 * some, 7);
        let most = (bomb.len() as u64 * MAX_RATIO).max(SOME_BYTES);
        let (error, all) = kept(&bomb);
        assert!(all <= most && most < 8 * SOME_BYTES, "{all} of {most}");
        let error = error.unwrap_err();
        assert!(error.contains("200 times") && error.contains("gzip -dk"), "{error}");
        let twice = [packed(1, 7), packed(1, 8)].concat();
        assert_eq!(kept(&twice).0, Ok(2 * BLOCK as u64), "several members");
        assert!(kept(&twice[..twice.len() - 1]).0.is_err());
    }
}
