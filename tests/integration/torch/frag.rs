//! `vramtrace frag` from outside: figures against torch's own, the map, errors.

use testkit::{Scratch, repository};

/// Summed over the segments that the snapshot itself lists; of the CSV, torch's own peaks as measured on the card,
/// 14,359,854,592 bytes allocated and 27,426,553,856 reserved.
#[test]
fn figures_are_those_of_the_recordings() {
    let figures = "devices.0.at_s devices.0.reserved_bytes devices.0.allocated_bytes \
        devices.0.peak_reserved_bytes devices.0.peak_allocated_bytes devices.0.free_in_segments_bytes \
        devices.0.largest_free_block_bytes devices.0.segments devices.0.fragmentation \
        devices.0.releasable_bytes devices.0.unusable_bytes";
    let scratch = Scratch::new();
    for name in ["torch_snapshot_2.11.pickle.gz", "varlen_s1.csv.gz"] {
        std::fs::copy(repository().join("tests/data").join(name), scratch.0.join(name)).unwrap();
    }
    scratch.prints(
        "frag",
        &[
            &format!("frag torch_snapshot_2.11.pickle.gz --at end --json | {figures}"),
            &format!("frag varlen_s1.csv.gz --json | {figures}"),
            "frag torch_snapshot_2.11.pickle.gz",
            "frag varlen_s1.csv.gz --at 3",
            "frag varlen_s1.csv.gz --at oom",
            "frag varlen_s1.csv.gz --at now",
            "frag no-such-file",
        ],
    );
}
