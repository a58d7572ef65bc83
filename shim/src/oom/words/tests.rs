use super::*;
use vramtrace_format::shown::is_text;
use vramtrace_format::{CacheBytes, StackId};

fn gib(amount: f64) -> u64 {
    (amount * (1u64 << 30) as f64) as u64
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
        limit: Limit::Cap,
        parts: vec![
            ("tensors".into(), gib(8.87)),
            ("torch cache".into(), gib(2.11)),
            ("context".into(), gib(0.60)),
            ("modules".into(), gib(0.19)),
            ("cuBLAS".into(), gib(0.12)),
            ("NCCL".into(), 4096),
        ],
        free_inside: gib(2.11),
        holders: vec![
            Holder {
                bytes: gib(3.31),
                count: 96,
                of_framework: true,
                place: Some("modeling_gpt2.py:212".into()),
            },
            Holder {
                bytes: gib(1.89),
                count: 3,
                of_framework: true,
                place: Some("modeling_gpt2.py:1291".into()),
            },
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
  limit   12.00 GiB by VRAMTRACE_CAP (card: 127.60 GiB free; not the card, not a neighbour)
  used    11.89 GiB = tensors 8.87 + torch cache 2.11 + context 0.60 + modules 0.19 + cuBLAS 0.12
  why     fragmentation: 2.11 GiB free inside torch, largest hole 624.64 MiB; in one piece 1.19 GiB would fit
  holds     3.31 GiB modeling_gpt2.py:212   96 blocks
            1.89 GiB modeling_gpt2.py:1291   3 blocks
  before  3 refusals that torch absorbed by emptying its cache (harmless)
  try     PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True or a cap of 13.1 GiB or a smaller batch
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
    found.requested_at = None;
    found.holders.clear();
    found.neighbours = vec![(7, None), (99, Some(gib(3.0))), (98, Some(gib(8.0)))];
    let expected = "\
vramtrace cuda:0 pid 4711: ended out of memory: last refused 2.00 GiB
  limit   the card itself: 512.00 MiB free; other processes: pid 98 8.00 GiB, pid 99 3.00 GiB, 1 more
  used    11.89 GiB = tensors 8.87 + torch cache 2.11 + context 0.60 + modules 0.19 + cuBLAS 0.12
  why     too much: 2.00 GiB asked for, 512.00 MiB left: 1.50 GiB short
  before  1 refusal that the program lived with (harmless)
  try     a card without the 11.00 GiB of other processes or a smaller request: 512.00 MiB would fit
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
    found.limit = Limit::Group("training".into());
    let text = summary(&found);
    assert!(
        text.contains("limit   16.00 GiB by the group training, of which others have 3.11 GiB (")
    );
    assert!(text.contains("a group cap of 16.2 GiB"), "{text}");
    found.event.by = None;
    let text = summary(&found);
    assert!(text.contains("limit   below 12.17 GiB by torch's own memory fraction (card: 127.60"));
    assert!(text.contains("set_per_process_memory_fraction"), "{text}");
    found.event.by = Some(RefusedBy::Cap);
    found.limit = Limit::Ordered;
    assert!(summary(&found).contains("by the cap that was ordered while it ran"));
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
        text.contains("why     too much: 1.19 GiB asked for, 112.64 MiB left, 204.80 MiB free")
    );
    assert!(text.contains("short") && !text.contains("expandable"), "{text}");
}

#[test]
fn a_hole_that_would_do_is_no_fragmentation() {
    let mut found = fragmented();
    found.event.largest_hole = Some(gib(1.5));
    let text = summary(&found);
    assert!(text.contains("why     too much: 1.19 GiB asked for"), "{text}");
    assert!(text.contains("(1.50 GiB of it in one piece, for another stream or pool)"), "{text}");
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
fn small_figures_are_in_mib() {
    assert_eq!(
        used(&[("allocations".into(), 400 << 20), ("context".into(), 100 << 20)]),
        "500.00 MiB = allocations 400.00 + context 100.00"
    );
    assert_eq!(used(&[]), "0.00 MiB");
    assert_eq!(rounded_up(400 << 20), "400 MiB");
    assert_eq!(rounded_up(u64::MAX), "17179869184.0 GiB");
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
