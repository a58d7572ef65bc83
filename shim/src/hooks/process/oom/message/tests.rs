use super::*;
use vramtrace_format::shown::is_text;
use vramtrace_format::{CacheBytes, StackId};

fn gib(amount: f64) -> u64 {
    (amount * (1u64 << 30) as f64) as u64
}

fn holder(amount: f64, count: u64, place: &str) -> (Option<String>, Row) {
    let row = Row { stack: StackId(7), of_framework: true, bytes: gib(amount), count };
    (Some(place.into()), row)
}

fn fragmented() -> Findings {
    Findings {
        event: PostMortem {
            device: DeviceId(0),
            by: Some(RefusedBy::Cap),
            evidence: OomEvidence::FrameworkGaveUp,
            size: gib(1.19),
            stack: StackId(7),
            counted: gib(11.89),
            limit: gib(12.0),
            driver_free: Some(gib(127.6)),
            cache: Some(CacheBytes { allocated: gib(8.87), reserved: gib(10.98) }),
            largest_hole: Some(gib(0.61)),
            absorbed: 3,
        },
        whole: gib(1.19),
        rank: Some(0),
        pid: 4711,
        requested_at: Some("modeling_gpt2.py:1291 < train.py:41".into()),
        card: Some(gib(139.8)),
        parts: vec![
            ("allocated".into(), gib(8.87)),
            ("free in cache".into(), gib(2.11)),
            ("cuBLAS".into(), gib(0.12)),
            ("context".into(), gib(0.60)),
            ("other".into(), gib(0.19)),
        ],
        free_inside: gib(2.11),
        holders: vec![
            holder(3.31, 96, "modeling_gpt2.py:212"),
            holder(1.89, 3, "modeling_gpt2.py:1291"),
        ],
        held_before_ns: None,
        neighbours: vec![(99, Some(gib(3.0)))],
        could_expand: true,
        other: None,
        trace: Some("vramtrace-1121-0246/gpu.4711.vtrace".into()),
        quiet_s: Some(60),
    }
}

#[test]
fn fragmentation_under_a_cap() {
    let expected = "\
vramtrace rank0 cuda:0 pid 4711: torch is out of memory: 1.19 GiB at modeling_gpt2.py:1291 < train.py:41
  limit   12.00 GiB by the cap; the card had 127.60 GiB free: not the card
  used    11.89 GiB = allocated 8.87 GiB + free in cache 2.11 GiB + cuBLAS 122.88 MiB + context 614.40 MiB + other 194.56 MiB
  why     fragmentation: 2.11 GiB free in cache, largest hole 624.64 MiB; in one piece 1.19 GiB would fit
  holds     3.31 GiB modeling_gpt2.py:212   96 blocks
            1.89 GiB modeling_gpt2.py:1291   3 blocks
  before  3 refusals that PyTorch absorbed by emptying its cache (harmless)
  try     PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True or a cap of 13.08 GiB or a smaller batch
  more    vramtrace oom vramtrace-1121-0246/gpu.4711.vtrace   (quiet for 60 s; VRAMTRACE_OOM_REPORT=off)
";
    assert_eq!(summary(&fragmented()), expected);
}

#[test]
fn never_more_than_ten_lines_and_none_is_broken() {
    let mut many = fragmented();
    many.holders = vec![many.holders[0].clone(); 9];
    many.requested_at = Some("evil\n\x1b[31m\u{9b}\u{202e}.py:1 ".repeat(99));
    for absorbed in [0, 1, 5] {
        many.event.absorbed = absorbed;
        let text = summary(&many);
        assert_eq!(text.lines().count(), 10, "{text}");
        assert!(text.lines().all(|line| line.len() <= LINE_MOST));
        assert!(text.chars().all(|c| c == '\n' || is_text(c)));
    }
}

#[test]
fn the_card_is_full_and_who_else_is_there() {
    let mut found = fragmented();
    found.event = PostMortem {
        by: Some(RefusedBy::Driver),
        evidence: OomEvidence::EndedRefused,
        limit: 0,
        driver_free: Some(gib(0.5)),
        size: gib(2.0),
        cache: None,
        largest_hole: None,
        absorbed: 1,
        ..found.event
    };
    (found.rank, found.free_inside, found.quiet_s) = (None, 0, None);
    found.parts = vec![("allocations".into(), 600 << 20)];
    found.requested_at = None;
    found.holders.clear();
    found.neighbours = vec![(7, None), (99, Some(gib(3.0))), (98, Some(gib(8.0)))];
    let expected = "\
vramtrace cuda:0 pid 4711: ended out of memory: last refused 2.00 GiB
  limit   the card: 139.80 GiB; the card had 512.00 MiB free; other processes: pid 98 8.00 GiB, pid 99 3.00 GiB, pid 7
  used    600.00 MiB = allocations 600.00 MiB
  why     too much: asked 2.00 GiB, 512.00 MiB left of the limit
  before  1 refusal after which the program went on (harmless)
  try     another card: other processes hold 11.00 GiB of this one or a smaller request: up to 512.00 MiB would have been served
  more    vramtrace oom vramtrace-1121-0246/gpu.4711.vtrace   (VRAMTRACE_OOM_REPORT=off)
";
    assert_eq!(summary(&found), expected);
}

#[test]
fn limits_of_others() {
    let mut found = fragmented();
    found.event.by = Some(RefusedBy::Group);
    found.event.limit = gib(16.0);
    found.event.counted = gib(15.0);
    let text = summary(&found);
    assert!(
        text.contains(
            "limit   16.00 GiB by the group's cap; its processes together had 15.00 GiB;"
        )
    );
    assert!(text.contains("a cap of 16.19 GiB"), "{text}");
    found.event.by = None;
    let text = summary(&found);
    let own =
        "limit   below 12.17 GiB by PyTorch's own memory fraction: no call was refused; the card";
    assert!(text.contains(own), "{text}");
    assert!(text.contains("set_per_process_memory_fraction"), "{text}");
}

#[test]
fn what_is_advised_helps() {
    let mut found = fragmented();
    found.could_expand = false;
    found.event.driver_free = Some(gib(1.0));
    let text = summary(&found);
    assert!(text.contains("  try     a smaller batch\n"), "{text}");
    // With what is left it would fit in one piece.
    (found.free_inside, found.could_expand) = (gib(1.1), true);
    let text = summary(&found);
    assert!(text.contains("and 112.64 MiB left; together 1.19 GiB would fit"), "{text}");
    assert!(text.contains("try     PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True or a smaller"));
    found.free_inside = gib(0.2);
    let text = summary(&found);
    assert!(
        text.contains(
            "why     too much: asked 1.19 GiB, 112.64 MiB left of the limit; 8.87 GiB allocated, \
             204.80 MiB free in cache\n"
        ),
        "{text}"
    );
    assert!(!text.contains("expandable"), "{text}");
}

#[test]
fn a_hole_that_would_do_is_no_fragmentation() {
    let mut found = fragmented();
    found.event.largest_hole = Some(gib(1.5));
    let text = summary(&found);
    assert!(text.contains("why     too much: asked 1.19 GiB, 112.64 MiB left"), "{text}");
    let hole = "(a hole of 1.50 GiB would do, but it is another stream's or pool's)";
    assert!(text.contains(hole), "{text}");
    assert!(!text.contains("expandable"), "{text}");
}

#[test]
fn holders_of_an_earlier_moment_are_said_to_be() {
    let mut found = fragmented();
    found.held_before_ns = Some(412_345_678);
    let text = summary(&found);
    assert!(
        text.contains("1.89 GiB modeling_gpt2.py:1291   3 blocks (412.3 ms earlier)\n"),
        "{text}"
    );
}

#[test]
fn the_parts_add_up_and_what_is_unknown_is_called_so() {
    let in_use = Use { counted: 1000, live: 700, contexts: 200 };
    let of = |title: &str, bytes| {
        let row = Row { stack: StackId(1), of_framework: false, bytes, count: 1 };
        let library = Library { title: title.into(), own: false, is_torch_cache: false };
        (row, Some(library))
    };
    let named = |parts: &[(&str, u64)]| -> Vec<(String, u64)> {
        parts.iter().map(|(name, bytes)| (name.to_string(), *bytes)).collect()
    };
    let held = Held::default();
    assert_eq!(
        parts(in_use, None, &held, &[of("cuBLAS", 100), of("NCCL", 5000)]),
        named(&[("NCCL", 700), ("context", 200), ("other", 100)]),
        "never more than there is"
    );
    let cache = Some(CacheBytes { allocated: 300, reserved: 400 });
    assert_eq!(
        parts(in_use, cache, &held, &[of("PyTorch", 50), of("NCCL", 60)]),
        named(&[
            ("allocated", 300),
            ("free in cache", 100),
            ("NCCL", 60),
            ("other allocations", 240),
            ("context", 200),
            ("other", 100)
        ])
    );
    let asleep = Held { paused: 200, asleep: 250, ..held };
    assert_eq!(
        parts(in_use, cache, &asleep, &[])[..3],
        named(&[("allocated", 100), ("free in cache", 50), ("other allocations", 550)])
    );
    assert_eq!(used(&[]), "0 B");
}

/// A function of a program has no name here, and the command has one.
#[test]
fn places_without_a_name_are_named_by_the_command() {
    let mut found = fragmented();
    found.requested_at = Some("llama-bench+0x851bff".into());
    let text = summary(&found);
    assert!(text.contains("gpu.4711.vtrace names the functions   (quiet for 60 s; "), "{text}");
}

#[test]
fn a_cap_that_was_lowered_below_the_use_is_short_of_all_that_is_over_it() {
    let mut found = fragmented();
    found.event = PostMortem {
        size: 1 << 20,
        counted: gib(1.0),
        limit: gib(0.5),
        cache: None,
        largest_hole: None,
        evidence: OomEvidence::EndedRefused,
        ..found.event
    };
    found.free_inside = 0;
    let text = why(&found);
    assert!(text.ends_with("512.00 MiB over the limit already: 513.00 MiB short"), "{text}");
}
