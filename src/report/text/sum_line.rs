//! A sum of bytes on one line: `14.37 GiB = allocated 9.69 + contexts 0.51`. The printed figures add up exactly.

use vramtrace_format::physical::{GIB, MIB};

/// The total with its unit, and the parts. A part of 0.00 is left out.
pub(super) fn sum_line(parts: &[(&str, i64)]) -> (String, String) {
    let bytes = parts.iter().map(|(_, bytes)| *bytes).fold(0, i64::saturating_add);
    let unit = if bytes >= GIB as i64 { (GIB, "GiB") } else { (MIB, "MiB") };
    let shown = hundredths(&parts.iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>(), unit.0);
    let total: i64 = shown.iter().sum();
    let figure = |n: i64| format!("{}.{:02}", n.abs() / 100, n.abs() % 100);
    let mut out = String::new();
    for ((what, _), n) in parts.iter().zip(shown).filter(|(_, n)| *n != 0) {
        let sign = match (out.is_empty(), n < 0) {
            (true, false) => "",
            (true, true) => "- ",
            (false, true) => " - ",
            (false, false) => " + ",
        };
        out.push_str(&format!("{sign}{what} {}", figure(n)));
    }
    (format!("{} {}", figure(total), unit.1), out)
}

/// Each part in hundredths of a unit, by the largest remainder method: the results add up to the
/// rounded sum of the parts.
pub(super) fn hundredths(parts: &[i64], unit: u64) -> Vec<i64> {
    let unit = i128::from(unit);
    let scaled = |bytes: i64| i128::from(bytes) * 100;
    let total: i128 = parts.iter().map(|bytes| scaled(*bytes)).sum();
    let mut shown: Vec<i128> = parts.iter().map(|bytes| scaled(*bytes).div_euclid(unit)).collect();
    let missing = (total + unit / 2).div_euclid(unit) - shown.iter().sum::<i128>();
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(scaled(parts[*at]).rem_euclid(unit)));
    for at in order.into_iter().take(missing.max(0) as usize) {
        shown[at] += 1;
    }
    shown.into_iter().map(|n| n as i64).collect()
}
