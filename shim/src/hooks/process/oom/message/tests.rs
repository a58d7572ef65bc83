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
        in_holes: gib(2.11),
        other_call: false,
        rank: Some(0),
        pid: 4711,
        requested_at: Some("modeling_gpt2.py:1291 < train.py:41".into()),
        card: Some(gib(139.8)),
        holders: vec![
            holder(3.31, 96, "modeling_gpt2.py:212"),
            holder(1.89, 3, "modeling_gpt2.py:1291"),
        ],
        may_leak: false,
        neighbours: vec![(99, Some(gib(3.0)))],
        could_expand: true,
        other: None,
        status: None,
        trace: Some("vramtrace-1121-0246/gpu.4711.vtrace".into()),
    }
}

#[test]
fn fragmentation_under_a_cap() {
    let expected = "\
vramtrace rank0 cuda:0 pid 4711: torch is out of memory: 1.19 GiB at modeling_gpt2.py:1291 < train.py:41
  limit   12.00 GiB by the cap; the card had 127.60 GiB free: not the card
  holds     3.31 GiB modeling_gpt2.py:212   96 blocks
            1.89 GiB modeling_gpt2.py:1291   3 blocks
  try     PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True or a cap of 13.08 GiB or a smaller batch
  more    vramtrace oom vramtrace-1121-0246/gpu.4711.vtrace   (quiet for 60 s; VRAMTRACE_OOM_REPORT=off)
";
    assert_eq!(summary(&fragmented()), expected);
}

#[test]
fn there_are_few_holders_and_no_line_is_broken() {
    let mut many = fragmented();
    many.holders = vec![many.holders[0].clone(); 9];
    many.requested_at = Some("evil\n\x1b[31m\u{9b}\u{202e}.py:1 ".repeat(99));
    let text = summary(&many);
    assert_eq!(text.lines().count(), 4 + HOLDERS, "{text}");
    assert!(text.lines().all(|line| line.len() <= LINE_MOST));
    assert!(text.chars().all(|c| c == '\n' || is_text(c)));
}

#[test]
fn the_card_is_full_and_who_else_is_there() {
    let mut found = fragmented();
    found.event = PostMortem {
        by: Some(RefusedBy::Driver),
        driver_free: Some(gib(0.5)),
        size: gib(2.0),
        absorbed: 1,
        ..PostMortem::default()
    };
    (found.rank, found.requested_at) = (None, None);
    found.holders.clear();
    found.neighbours = vec![(7, None), (99, Some(gib(3.0))), (98, Some(gib(8.0)))];
    let expected = "\
vramtrace cuda:0 pid 4711: ended out of memory: last refused 2.00 GiB
  limit   the card: 139.80 GiB; the card had 512.00 MiB free; other processes: pid 98 8.00 GiB, pid 99 3.00 GiB, pid 7
  try     another card: other processes hold 11.00 GiB of this one or a smaller request: up to 512.00 MiB would have been served
  more    vramtrace oom vramtrace-1121-0246/gpu.4711.vtrace   (VRAMTRACE_OOM_REPORT=off)
";
    assert_eq!(summary(&found), expected);
    assert!(summary(&Findings { status: Some(0), ..found }).contains("ended with status 0: last"));
}

#[test]
fn limits_of_others() {
    let mut found = fragmented();
    found.event.by = Some(RefusedBy::Group);
    found.event.limit = gib(16.0);
    found.event.counted = gib(15.0);
    let text = summary(&found);
    let of_group = "limit   16.00 GiB by the group's cap; its processes together had 15.00 GiB;";
    assert!(text.contains(of_group), "{text}");
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
    assert!(!summary(&Findings { may_leak: true, ..found.clone() }).contains("  try"));
    let event = PostMortem { by: Some(RefusedBy::Driver), cache: None, size: 1, ..found.event };
    let text = summary(&Findings { event, other_call: true, ..found.clone() });
    assert!(text.contains("limit   not known; the card had 1.00 GiB") && !text.contains("  try"));
    // With what is left it would fit in one piece.
    let cache = |free| Some(CacheBytes { allocated: gib(8.0), reserved: gib(8.0) + gib(free) });
    (found.event.cache, found.could_expand) = (cache(1.1), true);
    let text = summary(&found);
    assert!(text.contains("try     PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True or a smaller"));
    // Free in private pools.
    found.in_holes = gib(0.2);
    assert!(!summary(&found).contains("expandable"));
    (found.event.cache, found.in_holes) = (cache(0.2), gib(2.0));
    assert!(!summary(&found).contains("expandable"));
    // A hole that would do is another stream's or pool's.
    (found.event.cache, found.event.largest_hole) = (cache(2.0), Some(gib(1.5)));
    assert!(!summary(&found).contains("expandable"));
}

/// A function of a program has no name here, and the command has one.
#[test]
fn places_without_a_name_are_named_by_the_command() {
    let mut found = fragmented();
    found.requested_at = Some("llama-bench+0x851bff".into());
    let text = summary(&found);
    assert!(text.contains("gpu.4711.vtrace names the functions   (quiet for 60 s; "), "{text}");
}
