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

/// A row of the table.
struct Row {
    name: &'static str,
    architecture: Architecture,
    /// MiB as CUDA reports them, and where that figure was printed: a thread of a public repository, or `measured` by
    /// this project. `None`: no source was found, so the name tells the architecture alone.
    memory: Option<(u64, &'static str)>,
}

const fn row(
    name: &'static str,
    architecture: Architecture,
    mib: u64,
    source: &'static str,
) -> Row {
    Row { name, architecture, memory: Some((mib, source)) }
}

/// The source of figures that this project measured.
const MEASURED: &str = "measured";

/// Figures in GiB of two decimals, as PyTorch prints them, are rounded down to MiB.
const CARDS: [Row; 19] = [
    // The same memory as the 1660 Ti; of the Super only a figure of Windows was found, which counts all of the card.
    row("GTX 1660 Super", Architecture::Turing, 5_949, "zhou13/lcnn issue 23"),
    row("GTX 1660 Ti", Architecture::Turing, 5_949, "zhou13/lcnn issue 23"),
    row("RTX 2060", Architecture::Turing, 5_928, "facebookresearch/meshrcnn issue 92"),
    row("RTX 2080 Ti", Architecture::Turing, 11_018, "JDAI-CV/image-captioning issue 11"),
    row("T4", Architecture::Turing, 14_909, "Zheng-Chong/CatVTON issue 133"),
    row("V100 16GB", Architecture::Volta, 16_158, "kchengiva/Shift-GCN issue 34"),
    row("V100 32GB", Architecture::Volta, 32_501, "liucongg/ChatGLM-Finetuning issue 73"),
    row("RTX 3060", Architecture::Ampere, 12_032, "Kunhao-Liu/StyleGaussian issue 12"),
    row("RTX 3090", Architecture::Ampere, 24_268, "GaoLii/DSP issue 10"),
    row("A10", Architecture::Ampere, 22_712, "OpenBMB/MiniCPM-V issue 640"),
    row("A30", Architecture::Ampere, 24_094, "google/RB-Modulation issue 5"),
    Row { name: "A40", architecture: Architecture::Ampere, memory: None },
    row("A100 40GB", Architecture::Ampere, 40_448, "TianheWu/CoSeR issue 10"),
    row("A100 80GB", Architecture::Ampere, 81_049, "vllm-project/vllm issue 4408"),
    row("RTX 4090", Architecture::Ada, 24_084, "Soul-AILab/SoulX-FlashTalk issue 5"),
    Row { name: "L4", architecture: Architecture::Ada, memory: None },
    row("L40S", Architecture::Ada, 45_486, "stepfun-ai/Step-Video-T2V issue 8"),
    row("H100", Architecture::Hopper, 81_079, MEASURED),
    row("H200", Architecture::Hopper, 143_156, MEASURED),
];

/// The names that [`card_named`] knows.
pub fn card_names() -> Vec<&'static str> {
    CARDS.iter().filter(|row| row.memory.is_some()).map(|row| row.name).collect()
}

/// The card of this name, whatever its case, spaces and vendor.
pub fn card_named(text: &str) -> Option<Card> {
    let asked = plain(text);
    let row = CARDS.iter().find(|row| plain(row.name) == asked)?;
    let (mib, _) = row.memory?;
    let name = Some(row.name.to_string());
    Some(Card { name, bytes: mib << 20, architecture: Some(row.architecture) })
}

/// The architecture of a device by the name that the driver gives it: `NVIDIA H100 80GB HBM3`.
pub(super) fn architecture_of(device: &str) -> Option<Architecture> {
    let words: Vec<String> =
        device.split([' ', '-']).map(|word| word.to_ascii_lowercase()).collect();
    let has = |name: &str| {
        let model: Vec<String> = name.split(' ').map(str::to_ascii_lowercase).collect();
        model.iter().filter(|word| !word.ends_with("gb")).all(|word| words.contains(word))
    };
    CARDS.iter().find(|row| has(row.name)).map(|row| row.architecture)
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
        let page = include_str!("../../../docs/gpu-evidence.md");
        let mut seen = std::collections::BTreeSet::new();
        for row in &CARDS {
            assert!(seen.insert(row.name), "{} twice", row.name);
            let Some((mib, source)) = row.memory else {
                assert!(!page.contains(&format!("| {} |", row.name)), "{} has no figure", row.name);
                continue;
            };
            let issue = source.split_once(" issue ").is_some_and(|(repository, number)| {
                repository.split('/').count() == 2 && number.parse::<u32>().is_ok()
            });
            assert!(issue || source == MEASURED, "{}: {source}", row.name);
            let in_page = |line: &&str| line.starts_with(&format!("| {} | ", row.name));
            let line = page.lines().find(in_page).unwrap_or_else(|| panic!("{}", row.name));
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let gib: f64 = cells[2].parse().unwrap();
            assert!((gib * 1024.0 - mib as f64).abs() <= 6.0, "{line}: {mib} MiB");
            assert_eq!(
                (cells[3], cells[4]),
                (&*format!("{:?}", row.architecture), source),
                "{line}"
            );
        }
    }
}
