//! Figures as people read them: GiB with two decimals, as PyTorch prints them.

use vramtrace_format::physical::GIB;
use vramtrace_format::size::Bytes;

/// `1.50 GiB`. Always GiB, so that columns compare at a glance.
pub fn gib(bytes: u64) -> String {
    format!("{:.2} GiB", bytes as f64 / GIB as f64)
}

/// `512 B`, `1.50 KiB`, `12.00 MiB`, `3.25 GiB`: for single allocations and files.
pub fn size(bytes: u64) -> String {
    Bytes(bytes).to_string()
}

/// `12.345 s` from nanoseconds.
pub fn seconds(ns: u64) -> String {
    format!("{:.3} s", ns as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_as_people_read_them() {
        assert_eq!(gib(0), "0.00 GiB");
        assert_eq!(gib(3 * GIB / 2), "1.50 GiB");
        assert_eq!(size(512), "512 B");
        assert_eq!(size(1536), "1.50 KiB");
        assert_eq!(size(24 * GIB), "24.00 GiB");
        assert_eq!(seconds(1_234_567_890), "1.235 s");
    }
}
