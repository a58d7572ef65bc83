//! Which version of PyTorch knows which setting of its allocator.

use std::fmt;

use vramtrace_format::torch_conf::CONF_VARIABLES;

/// The variable that every version reads, before any other. `PYTORCH_ALLOC_CONF` is read from 2.9 on, where CUDA
/// ignores expandable_segments in it (pytorch/pytorch issue 183387); from 2.10 on it is the documented name, and
/// this one an alias (docs of 2.10, cuda_environment_variables).
pub const CONF_VARIABLE: &str = CONF_VARIABLES[0];

/// A version of PyTorch, without its patch level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TorchVersion {
    pub major: u16,
    pub minor: u16,
}

impl TorchVersion {
    /// From `2.11.0+cu128`.
    pub fn parse(text: &str) -> Option<TorchVersion> {
        let mut numbers = text.split('.');
        let major = numbers.next()?.parse().ok()?;
        let minor = numbers.next()?;
        let digits = minor.find(|c: char| !c.is_ascii_digit()).unwrap_or(minor.len());
        Some(TorchVersion { major, minor: minor[..digits].parse().ok()? })
    }

    const fn new(major: u16, minor: u16) -> TorchVersion {
        TorchVersion { major, minor }
    }
}

impl fmt::Display for TorchVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// PyTorch's own sharing of tensors between processes works with expandable segments from this version on
/// (pytorch/pytorch pull request 130890; before it cudaIpcGetMemHandle fails on them).
pub const SHARES_EXPANDABLE: TorchVersion = TorchVersion::new(2, 5);

/// The first version that parses the key: c10/cuda/CUDACachingAllocator.cpp, from 2.1 on
/// c10/cuda/CUDAAllocatorConfig.cpp, of the releases. An older one raises "Unrecognized CachingAllocator option" at
/// the first use of the card.
const FIRST: [(&str, TorchVersion); 5] = [
    ("max_split_size_mb", TorchVersion::new(1, 10)),
    ("roundup_power2_divisions", TorchVersion::new(1, 12)),
    ("expandable_segments", TorchVersion::new(2, 1)),
    ("per_process_memory_fraction", TorchVersion::new(2, 10)),
    ("large_segment_size_mb", TorchVersion::new(2, 11)),
];

/// The first version that knows every key of a setting string, as far as the table has them, and the key that
/// needs it.
pub fn first_with(conf: &str) -> Option<(&'static str, TorchVersion)> {
    let of_key = |(key, _): &&(&'static str, TorchVersion)| {
        conf.split(',').any(|part| part.split(':').next().is_some_and(|it| it.trim() == *key))
    };
    FIRST.iter().filter(of_key).max_by_key(|(_, version)| *version).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_ordered() {
        let version = |text| TorchVersion::parse(text);
        assert_eq!(version("2.11.0+cu128"), Some(TorchVersion::new(2, 11)));
        assert_eq!(version("2.5.0a0+git12"), Some(TorchVersion::new(2, 5)));
        assert_eq!(version("2.10"), Some(TorchVersion::new(2, 10)));
        assert!(version("2.9.1") < version("2.10.0"));
        for bad in ["", "2", "main", "2.x"] {
            assert_eq!(version(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_setting_needs_the_newest_of_its_keys() {
        let needs = |conf| first_with(conf).map(|(key, version)| (key, version.to_string()));
        assert_eq!(needs("default"), None);
        assert_eq!(needs("expandable_segments:True"), Some(("expandable_segments", "2.1".into())));
        assert_eq!(
            needs("max_split_size_mb:128,large_segment_size_mb:64"),
            Some(("large_segment_size_mb", "2.11".into()))
        );
    }
}
