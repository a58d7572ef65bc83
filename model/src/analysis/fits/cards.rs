//! Cards by name: the memory that CUDA can use on each, and its architecture. docs/gpu-evidence.md has the sources.

use serde::Serialize;

/// Cards of one architecture choose the same kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Architecture {
    Volta,
    Turing,
    Ampere,
    Ada,
    Hopper,
}

/// A card, or so many bytes of one.
#[derive(Clone, Debug, PartialEq)]
pub struct Card {
    /// `None`: the card of the recording, with this much memory.
    pub name: Option<String>,
    /// What cudaMemGetInfo reports as the total.
    pub bytes: u64,
    /// `None`: not in the table.
    pub architecture: Option<Architecture>,
}

impl Card {
    pub fn of_size(bytes: u64) -> Card {
        Card { name: None, bytes, architecture: None }
    }
}

/// Name, architecture, and MiB as CUDA reports them. `None`: no source was found, so the name tells the architecture alone.
type KnownCard = (&'static str, Architecture, Option<u64>);

/// Figures in GiB of two decimals, as PyTorch prints them, are rounded down to MiB.
const CARDS: [KnownCard; 19] = [
    // The same memory as the 1660 Ti; of the Super only a figure of Windows was found, which counts all of the card.
    ("GTX 1660 Super", Architecture::Turing, Some(5_949)),
    ("GTX 1660 Ti", Architecture::Turing, Some(5_949)),
    ("RTX 2060", Architecture::Turing, Some(5_928)),
    ("RTX 2080 Ti", Architecture::Turing, Some(11_018)),
    ("T4", Architecture::Turing, Some(14_909)),
    ("V100 16GB", Architecture::Volta, Some(16_158)),
    ("V100 32GB", Architecture::Volta, Some(32_501)),
    ("RTX 3060", Architecture::Ampere, Some(12_032)),
    ("RTX 3090", Architecture::Ampere, Some(24_268)),
    ("A10", Architecture::Ampere, Some(22_712)),
    ("A30", Architecture::Ampere, Some(24_094)),
    ("A40", Architecture::Ampere, None),
    ("A100 40GB", Architecture::Ampere, Some(40_448)),
    ("A100 80GB", Architecture::Ampere, Some(81_049)),
    ("RTX 4090", Architecture::Ada, Some(24_084)),
    ("L4", Architecture::Ada, None),
    ("L40S", Architecture::Ada, Some(45_486)),
    ("H100", Architecture::Hopper, Some(81_079)),
    ("H200", Architecture::Hopper, Some(143_156)),
];

/// The names that [`card_named`] knows.
pub fn card_names() -> Vec<&'static str> {
    CARDS.iter().filter(|(_, _, mib)| mib.is_some()).map(|(name, ..)| *name).collect()
}

/// The card of this name, whatever its case, spaces and vendor.
pub fn card_named(text: &str) -> Option<Card> {
    let asked = plain(text);
    let (name, architecture, mib) = CARDS.iter().find(|(name, ..)| plain(name) == asked)?;
    let (name, architecture) = (Some(name.to_string()), Some(*architecture));
    Some(Card { name, bytes: (*mib)? << 20, architecture })
}

/// The architecture of a device by the name that the driver gives it: `NVIDIA H100 80GB HBM3`.
pub(super) fn architecture_of(device: &str) -> Option<Architecture> {
    let words: Vec<String> =
        device.split([' ', '-']).map(|word| word.to_ascii_lowercase()).collect();
    let has = |name: &str| {
        let model: Vec<String> = name.split(' ').map(str::to_ascii_lowercase).collect();
        model.iter().filter(|word| !word.ends_with("gb")).all(|word| words.contains(word))
    };
    CARDS.iter().find(|(name, ..)| has(name)).map(|(_, architecture, _)| *architecture)
}

fn plain(name: &str) -> String {
    let mut plain = name.to_ascii_lowercase();
    for vendor in ["nvidia", "geforce", "tesla"] {
        plain = plain.replace(vendor, "");
    }
    plain.retain(|c| c.is_ascii_alphanumeric());
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_found_by_the_names_that_people_and_drivers_give_them() {
        for name in card_names() {
            assert!(card_named(name).unwrap().bytes > 5 << 30, "{name}");
        }
        for (text, name) in
            [("rtx3060", "RTX 3060"), ("Tesla T4", "T4"), ("NVIDIA A100-80GB", "A100 80GB")]
        {
            assert_eq!(card_named(text).unwrap().name.unwrap(), name);
        }
        assert_eq!((card_named("24GiB"), card_named("A40")), (None, None));
        for (device, architecture) in [
            ("NVIDIA H100 80GB HBM3", Some(Architecture::Hopper)),
            ("NVIDIA GeForce GTX 1660 SUPER", Some(Architecture::Turing)),
            ("NVIDIA A100-SXM4-40GB", Some(Architecture::Ampere)),
            ("Tesla T4", Some(Architecture::Turing)),
            ("NVIDIA L40S", Some(Architecture::Ada)),
            ("NVIDIA L4", Some(Architecture::Ada)),
            ("Simulated GPU", None),
        ] {
            assert_eq!(architecture_of(device), architecture, "{device}");
        }
    }
    #[test]
    fn each_figure_has_a_source_and_stands_in_the_documentation() {
        let page = include_str!("../../../../docs/gpu-evidence.md");
        let mut seen = std::collections::BTreeSet::new();
        for (name, architecture, mib) in CARDS {
            assert!(seen.insert(name), "{name} twice");
            let line = page.lines().find(|line| line.starts_with(&format!("| {name} | ")));
            let Some(mib) = mib else {
                assert_eq!(line, None, "{name} has no figure");
                continue;
            };
            let line = line.unwrap_or_else(|| panic!("{name}"));
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let gib: f64 = cells[2].parse().unwrap();
            assert!((gib * 1024.0 - mib as f64).abs() <= 6.0, "{line}: {mib} MiB");
            assert_eq!(cells[3], format!("{architecture:?}"), "{line}");
            let source = cells[4];
            let issue = source.split_once(" issue ").is_some_and(|(repository, number)| {
                repository.split('/').count() == 2 && number.parse::<u32>().is_ok()
            });
            assert!(issue || source == "measured", "{line}");
        }
    }
}
