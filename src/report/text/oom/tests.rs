//! Figures that are printed as a sum, and names of devices.

use proptest::prelude::*;
use vramtrace_format::DeviceId;
use vramtrace_format::physical::{GIB, MIB};

use crate::report::text::sum::hundredths;
use crate::report::wording::cuda_name;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The printed parts add up to the printed sum, and each is off by less than a hundredth.
    #[test]
    fn printed_parts_add_up(parts in proptest::collection::vec(-100_000_000i64..1 << 44, 0..12)) {
        for unit in [GIB, MIB] {
            let shown = hundredths(&parts, unit);
            let sum: i128 = parts.iter().map(|bytes| i128::from(*bytes)).sum();
            let step = unit as f64 / 100.0;
            let total = (sum as f64 / step).round();
            prop_assert!((shown.iter().sum::<i64>() as f64 - total).abs() <= 1.0);
            for (bytes, shown) in parts.iter().zip(&shown) {
                prop_assert!((*bytes as f64 / step - *shown as f64).abs() <= 1.0 + 1e-6);
            }
        }
    }
}

#[test]
fn an_unknown_device_has_no_ordinal() {
    assert_eq!([DeviceId(3), DeviceId::UNKNOWN].map(cuda_name), ["cuda:3", "unknown device"]);
}

#[test]
fn the_largest_remainders_are_rounded_up() {
    let parts = [GIB / 3, GIB / 3, GIB / 3, 0].map(|bytes| bytes as i64);
    assert_eq!(hundredths(&parts, GIB), [34, 33, 33, 0]);
    assert_eq!(hundredths(&[], GIB), [0i64; 0]);
}
