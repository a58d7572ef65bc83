//! What the driver takes beside allocations is reserved where its size is known: contexts after the first, pages of arrays.
//! Each run also where NVML does not list the process (a container with its own pids).

use testkit::{Group, Program, Run, Scratch, Setup};

const LISTED: [&str; 2] = ["", "strangers"];

fn run(how: &str, nvml: &str, capped: Setup) -> Run {
    let setup = capped.env("VRAMTRACE_SIM_NVML", nvml).env("VRAMTRACE_OOM_REPORT", "off");
    Program::c("reserved").run(setup.arg(how)).ok()
}

/// The numbers of the lines that begin with `name`.
fn numbers(run: &Run, name: &str) -> Vec<u64> {
    let lines = run.stdout.lines().filter_map(|line| line.strip_prefix(name));
    lines
        .flat_map(|rest| rest.split(|c: char| !c.is_ascii_digit()))
        .filter_map(|word| word.parse().ok())
        .collect()
}

/// 518 MiB each by NVML, 526.8 by the card's free memory.
#[test]
fn contexts_after_the_first_are_refused_over_the_cap() {
    for nvml in LISTED {
        let capped = run("contexts", nvml, Setup::simulated().cap("2GiB"));
        let expected = "granted 3, then 2\nheld 1554\none less 0\nno place 1\nleft 0\nagain 0\nat once 3\nheld 1554\n\
                        retained 8\nheld 518\n";
        assert_eq!(capped.stdout, expected, "{nvml}");
        // One by one, then 40 of 43 threads.
        assert_eq!(capped.device()["refused_by_cap"], 41);
    }
}

#[test]
fn threads_that_create_the_first_contexts_at_once_do_not_pass_the_cap() {
    for nvml in LISTED {
        let capped = run("threads", nvml, Setup::simulated().cap("2GiB"));
        assert_eq!(capped.stdout, "at once 3\nheld 1554\n", "{nvml}");
    }
}

#[test]
fn the_first_context_is_granted_under_any_cap_and_a_group_counts_contexts() {
    let small = run("threads", "", Setup::simulated().cap("100MiB"));
    assert_eq!(small.stdout, "at once 1\nheld 518\n");
    let (group, state) = (Group::new("reserved"), Scratch::new());
    let group = run("threads", "", crate::groups::members(&group, &state, "1100MiB"));
    assert_eq!(group.stdout, "at once 2\nheld 1036\n");
}

#[test]
fn without_a_cap_or_where_it_only_warns_every_context_is_made() {
    let bare = run("contexts", "", Setup::simulated());
    let warns = Setup::simulated().cap("2GiB").env("VRAMTRACE_CAP_MODE", "warn");
    for setup in [Setup::simulated().preload(), warns] {
        assert_eq!(run("contexts", "", setup).stdout, bare.stdout);
    }
}

/// The program frees at random and allocates again, so that pages stay for few arrays.
#[test]
fn small_arrays_count_with_the_pages_that_they_share() {
    for how in ["arrays", "mixed"] {
        let bare = run(how, "", Setup::simulated());
        assert!(numbers(&bare, "most")[0] > 3000, "{}", bare.stdout);
        for nvml in LISTED {
            let capped = run(how, nvml, Setup::simulated().cap("2GiB"));
            let most = numbers(&capped, "most")[0];
            assert!((1600..=2048).contains(&most), "{how} {nvml}: {}", capped.stdout);
            assert!(capped.stdout.contains("back 1"), "{how} {nvml}: {}", capped.stdout);
            assert_eq!(capped.device()["live_bytes"], 0);
        }
    }
}

/// Arrays of one size fill the cap to the page.
#[test]
fn arrays_of_one_size_fill_the_cap() {
    for nvml in LISTED {
        let capped = run("even", nvml, Setup::simulated().cap("1GiB"));
        let (granted, held) = (numbers(&capped, "granted")[0], numbers(&capped, "held")[0]);
        // 8 to a page; the context takes 518 MiB, or 526.8 where the card's free memory tells.
        let pages = if nvml.is_empty() { 253 } else { 248 };
        assert_eq!((granted, held), (8 * pages, 518 + 2 * pages), "{nvml}: {}", capped.stdout);
        assert!(capped.stdout.contains("freed and again 0"), "{nvml}: {}", capped.stdout);
    }
}

#[test]
fn streams_over_the_cap_are_said_once() {
    let capped = run("streams", "", Setup::simulated().cap("520MiB"));
    assert_eq!(capped.stdout, "streams 16, then 2\n");
    let said = "vramtrace: cuda:0: streams took memory over the limit of 520 MiB";
    assert_eq!(capped.stderr.matches(said).count(), 1, "{}", capped.stderr);
    assert_eq!(capped.stderr.lines().count(), 1, "{}", capped.stderr);
}
