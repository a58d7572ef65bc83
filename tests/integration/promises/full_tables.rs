//! Tables of the recorder with a bound, and programs that pass it: a cap holds, totals are right, and one
//! line says what is no longer told apart.

use serde_json::json;
use testkit::{MIB, Program, Setup, has};

const MANY_POOLS: &str = "the recorder has no room for more than 65535 memory pools at one time: what \
                          further ones hold is not counted, and under a cap their requests are refused";
const MANY_SITES: &str = "more than 12288 call sites (function, context, stream, pool): the trace has \
                          device and kind of further ones";

#[test]
fn a_cap_counts_the_first_pools_and_refuses_further_ones() {
    let run = Program::c("tables").run(Setup::simulated().cap("2GiB").arg("pools")).ok();
    // A pool takes 32 MiB for a block, and the context 518 MiB.
    let wanted = "of the last: 0\nof some that are followed and some that are not: 25\nof new ones: 47\n\
                  while those are held: 0\n";
    assert_eq!(run.stdout, wanted);
    assert_eq!(run.notes().iter().filter(|note| *note == MANY_POOLS).count(), 1);
    assert_eq!(run.stderr.matches(MANY_POOLS).count(), 1, "{}", run.stderr);
    has(&run.device()["by_kind"]["pool"], json!({ "peak_bytes": 47 * 32 * MIB, "live_bytes": 0 }));
}

#[test]
fn device_and_kind_of_any_number_of_sites_are_known() {
    let run = Program::c("tables").run(Setup::simulated().preload().arg("sites")).ok();
    assert_eq!((run.stdout.as_str(), &run.stderr), ("", &format!("vramtrace: {MANY_SITES}\n")));
    assert_eq!(run.notes(), [MANY_SITES]);
    let device = run.device();
    let kind = |kind: &str, figure: &str| device["by_kind"][kind][figure].as_u64().unwrap();
    assert_eq!((kind("pool", "peak_bytes"), kind("pool", "live_bytes")), (512 * MIB, 0));
    assert_eq!((kind("device", "peak_bytes"), kind("device", "allocations")), (2 * MIB, 13_000));
    has(&device, json!({ "live_bytes": 0, "live_allocations": 0 }));
}
