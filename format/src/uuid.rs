//! The UUID of a GPU or of a MIG device, as text and as two words.

/// The UUID as `nvidia-smi -L` and NVML write it: `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`, or `MIG-...` for a MIG
/// device.
pub fn text(uuid: &[u8; 16], mig: bool) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    format!("{}-{}", if mig { "MIG" } else { "GPU" }, parts.join("-"))
}

/// Parses the text after `GPU-` or `MIG-`. `None`: not a complete UUID.
pub fn parse(text: &str) -> Option<[u8; 16]> {
    let groups: Vec<&str> = text.split('-').collect();
    let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
    let digits = groups.concat();
    if lengths != [8, 4, 4, 4, 12] || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    Some(u128::from_str_radix(&digits, 16).ok()?.to_be_bytes())
}

/// The UUID as records and pages store it: low word, high word.
pub fn to_words(uuid: &[u8; 16]) -> [u64; 2] {
    let value = u128::from_le_bytes(*uuid);
    [value as u64, (value >> 64) as u64]
}

/// The inverse of [`to_words`].
pub fn from_words([low, high]: [u64; 2]) -> [u8; 16] {
    (u128::from(high) << 64 | u128::from(low)).to_le_bytes()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn text_and_words_come_back() {
        let uuid: [u8; 16] = std::array::from_fn(|n| 0xA0 + n as u8);
        assert_eq!(text(&uuid, false), "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf");
        assert_eq!(text(&uuid, true), "MIG-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf");
        assert_eq!(parse("A0A1A2A3-a4a5-a6a7-a8a9-aaabacadaeaf"), Some(uuid));
        for broken in [
            "",
            "a0a1a2a3",
            "a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaea",
            "+0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf",
        ] {
            assert_eq!(parse(broken), None, "{broken}");
        }
        assert_eq!(to_words(&uuid), [0xA7A6_A5A4_A3A2_A1A0, 0xAFAE_ADAC_ABAA_A9A8]);
        assert_eq!(from_words(to_words(&uuid)), uuid);
    }
}
