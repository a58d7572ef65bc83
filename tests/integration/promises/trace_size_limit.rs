//! A run that writes ten times `VRAMTRACE_MAX` stays within it on disk, and still answers what an
//! unlimited one answers: peak, live set, totals, refusals.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;
use testkit::{MIB, Program, Setup};

#[test]
fn ten_times_the_limit_keep_the_file_within_it_and_the_figures_right() {
    let program = Program::c("endings");
    // A pair is 48 bytes: 900,000 pairs are some 43 MB.
    let pairs = 900_000;
    let limit = Duration::from_secs(300);
    let setup = || Setup::simulated().preload().arg("churn").arg(pairs).timeout(limit);
    let bounded = program.run(setup().env("VRAMTRACE_MAX", "4MiB")).ok();
    let unlimited = program.run(setup().env("VRAMTRACE_MAX", "unlimited")).ok();
    assert_eq!(bounded.stderr, "");

    let length = std::fs::metadata(bounded.only_trace()).unwrap().len();
    assert!(length <= 4 * MIB * 11 / 10, "a copy without holes takes {length} bytes");

    let disk = |run: &testkit::Run| std::fs::metadata(run.only_trace()).unwrap().blocks() * 512;
    assert!(disk(&unlimited) > 40 * MIB, "too little was written to prove anything");
    assert!(disk(&bounded) <= 4 * MIB * 11 / 10, "{} bytes on disk", disk(&bounded));

    let (short, whole) = (bounded.only_report(), unlimited.only_report());
    assert!(short["history_from_s"].as_f64().unwrap() > 0.0, "the beginning was erased");
    assert_eq!(whole["history_from_s"].as_f64().unwrap(), 0.0);
    const SAME: &str = "peak_bytes live_bytes live_allocations allocations frees refused_by_cap \
                        refused_by_driver by_kind";
    for key in SAME.split_whitespace() {
        assert_eq!(short["devices"][0][key], whole["devices"][0][key], "{key}");
    }
}
