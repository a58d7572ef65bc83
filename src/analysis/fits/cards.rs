//! Cards by name: the memory that CUDA can use on each, and its architecture. docs/fits.md has the sources.

/// Cards of one architecture choose the same kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    Volta,
    Turing,
    Ampere,
    Ada,
    Hopper,
}

impl Architecture {
    pub fn name(self) -> &'static str {
        match self {
            Architecture::Volta => "Volta",
            Architecture::Turing => "Turing",
            Architecture::Ampere => "Ampere",
            Architecture::Ada => "Ada",
            Architecture::Hopper => "Hopper",
        }
    }
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

/// Name, MiB as CUDA reports them, architecture.
const CARDS: [(&str, u64, Architecture); 19] = [
    ("GTX 1660 Super", 5_939, Architecture::Turing),
    ("GTX 1660 Ti", 5_939, Architecture::Turing),
    ("RTX 2060", 5_928, Architecture::Turing),
    ("RTX 2080 Ti", 11_018, Architecture::Turing),
    ("T4", 14_909, Architecture::Turing),
    ("V100 16GB", 16_148, Architecture::Volta),
    ("V100 32GB", 32_491, Architecture::Volta),
    ("RTX 3060", 12_032, Architecture::Ampere),
    ("RTX 3090", 24_258, Architecture::Ampere),
    ("A10", 22_589, Architecture::Ampere),
    ("A30", 24_094, Architecture::Ampere),
    ("A40", 45_403, Architecture::Ampere),
    ("A100 40GB", 40_335, Architecture::Ampere),
    ("A100 80GB", 81_049, Architecture::Ampere),
    ("RTX 4090", 24_084, Architecture::Ada),
    ("L4", 22_558, Architecture::Ada),
    ("L40S", 45_455, Architecture::Ada),
    ("H100", 81_079, Architecture::Hopper),
    ("H200", 143_156, Architecture::Hopper),
];

/// The names that [`card_named`] knows.
pub fn card_names() -> Vec<&'static str> {
    CARDS.iter().map(|(name, ..)| *name).collect()
}

/// The card of this name, whatever its case, spaces and vendor.
pub fn card_named(text: &str) -> Option<Card> {
    let asked = plain(text);
    let (name, mib, architecture) = CARDS.iter().find(|(name, ..)| plain(name) == asked)?;
    Some(Card { name: Some(name.to_string()), bytes: mib << 20, architecture: Some(*architecture) })
}

/// The architecture of a device by the name that the driver gives it: `NVIDIA H100 80GB HBM3`.
pub(super) fn architecture_of(device: &str) -> Option<Architecture> {
    let words: Vec<String> =
        device.split([' ', '-']).map(|word| word.to_ascii_lowercase()).collect();
    let has = |name: &str| {
        let model: Vec<String> = name.split(' ').map(str::to_ascii_lowercase).collect();
        model.iter().filter(|word| !word.ends_with("gb")).all(|word| words.contains(word))
    };
    CARDS.iter().find(|(name, ..)| has(name)).map(|(_, _, architecture)| *architecture)
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
        assert_eq!(card_named("24GiB"), None);
        for (device, architecture) in [
            ("NVIDIA H100 80GB HBM3", Some(Architecture::Hopper)),
            ("NVIDIA GeForce GTX 1660 SUPER", Some(Architecture::Turing)),
            ("NVIDIA A100-SXM4-40GB", Some(Architecture::Ampere)),
            ("Tesla T4", Some(Architecture::Turing)),
            ("NVIDIA L40S", Some(Architecture::Ada)),
            ("Simulated GPU", None),
        ] {
            assert_eq!(architecture_of(device), architecture, "{device}");
        }
    }
}
