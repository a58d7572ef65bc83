//! Cells of notebooks, by the file names that Python has for their code.

/// What people read in place of such a file's name: `cell [12]`, or `cell 3418003132` where its name says a hash of
/// its text alone. `None`: the file is no cell.
pub fn shown(file: &str) -> Option<String> {
    if let Some(rest) = file.strip_prefix("<ipython-input-") {
        let number = rest.split('-').next()?;
        return number.parse().ok().map(numbered);
    }
    hash(file).map(|hash| format!("cell {hash}"))
}

/// The name of a cell by its number in the notebook.
pub fn numbered(number: u32) -> String {
    format!("cell [{number}]")
}

/// The hash in the name that ipykernel gives a cell: `/tmp/ipykernel_77/3418003132.py`. `None`: no such name.
pub fn hash(file: &str) -> Option<u32> {
    let (directory, name) = file.rsplit_once('/')?;
    let of_kernel = directory.rsplit('/').next()?.strip_prefix("ipykernel_")?;
    of_kernel.parse::<u32>().ok()?;
    name.strip_suffix(".py")?.parse().ok()
}

/// The hash that ipykernel makes of a cell's text: MurmurHash2 of 32 bits, with its seed.
pub fn hash_of(text: &str) -> u32 {
    const M: u32 = 0x5bd1_e995;
    const SEED: u32 = 0xc70f_6907;
    let mut hash = SEED ^ text.len() as u32;
    let mut words = text.as_bytes().chunks_exact(4);
    for word in &mut words {
        let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ (word ^ word >> 24).wrapping_mul(M);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        let bytes = rest.iter().rev().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
        hash = (hash ^ bytes).wrapping_mul(M);
    }
    hash = (hash ^ hash >> 13).wrapping_mul(M);
    hash ^ hash >> 15
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_by_the_names_of_their_files() {
        for (file, wanted) in [
            ("<ipython-input-12-0f3a>", Some("cell [12]")),
            ("/tmp/ipykernel_77/3418003132.py", Some("cell 3418003132")),
            ("/var/tmp/me/ipykernel_4711/7.py", Some("cell 7")),
            ("/tmp/ipykernel_77/helper.py", None),
            ("/home/me/ipykernel_fork/7.py", None),
            ("<ipython-input-x>", None),
            ("/home/me/train.py", None),
            ("", None),
        ] {
            assert_eq!(shown(file).as_deref(), wanted, "{file}");
        }
    }

    /// The hashes are those that ipykernel 7.4 makes.
    #[test]
    fn hashes_are_those_of_ipykernel() {
        for (text, wanted) in [
            ("", 3990065800),
            ("a", 2167009006),
            ("ab=1", 750688106),
            ("x = 12", 1670819179),
            ("x = 123", 25144494),
            ("print('\u{e9}')", 443812004),
            ("def f():\n    return 1\n", 3711764925),
        ] {
            assert_eq!(hash_of(text), wanted, "{text}");
        }
    }
}
