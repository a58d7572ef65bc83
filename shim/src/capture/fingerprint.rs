//! Computes the fingerprint of a stack.

/// Mixes two numbers into one that depends on all of their bits.
#[inline(always)]
pub fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ b ^ 0x9E37_79B9_7F4A_7C15) * 0xD6E8_FEB8_6659_FD93;
    product as u64 ^ (product >> 64) as u64
}
