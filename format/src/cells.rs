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
}
