//! Processes that share a budget.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::{Group, InteractiveProgram, SharedSegment, has, report, skip_here, vramtrace};
use testkit::{Program, Scratch, Setup};
use vramtrace_format::member::Member;
use vramtrace_format::proc::Life;

const MIB: u64 = 1 << 20;
/// What a context and a stream take on the simulated driver.
const CONTEXT: u64 = 520;

/// Members of a group with this limit, on one card.
pub fn members(group: &Group, state: &Scratch, limit: &str) -> Setup {
    Setup::simulated()
        .preload()
        .env("VRAMTRACE_CAP_GROUP", format!("{}:{limit}", group.0))
        .env("VRAMTRACE_SIM_STATE", state.0.join("state"))
}

/// A device of as many MiB as the group may take: were it to take a byte more, the driver would
/// have to refuse. (The driver's figure for each context is a little above NVML's, which counts.)
fn exact(name: &Group, state: &Scratch, mib: u64, members: u64) -> Setup {
    Setup::simulated()
        .devices(&format!("1x{}MiB", mib as f64 + members as f64 * 8.8125))
        .preload()
        .env("VRAMTRACE_CAP_GROUP", &name.0)
        .env("VRAMTRACE_CAP", format!("{mib}MiB"))
        .env("VRAMTRACE_STACKS", "none")
        .env("VRAMTRACE_MAX", "32MiB")
        .env("VRAMTRACE_SIM_STATE", state.0.join("state"))
}

fn full() -> bool {
    std::env::var_os("VRAMTRACE_TEST_FULL").is_some()
}

fn device(process: &Value) -> &Value {
    &process["devices"][0]
}

/// Members that allocate and free all the time.
fn busy(setup: &Setup, count: u64) -> Vec<InteractiveProgram> {
    let mut members: Vec<_> =
        (0..count).map(|_| InteractiveProgram::start(setup.clone())).collect();
    members.iter_mut().for_each(|member| member.order("h"));
    assert!(members.iter_mut().all(|member| member.answer() == "on"));
    members
}

fn groups() -> Value {
    Scratch::new().json("ps")["groups"].clone()
}

#[test]
fn two_members_share_what_one_could_take() {
    let (name, state) = (Group::new("two"), Scratch::new());
    let setup = members(&name, &state, "4GiB");
    let mut a = InteractiveProgram::start(setup.clone().env("VRAMTRACE_CAP", "3GiB"));
    let mut b = InteractiveProgram::start(setup);
    let rest = 4096 - 2 * CONTEXT;
    assert_eq!((a.result("a 2000"), b.result("a 2000")), (0, 2));
    assert_eq!(b.ask("i"), format!("{} 4096", rest - 2000), "it is shown what is left for it");
    assert_eq!(a.result("a 1000"), 2, "its own cap holds beside the group's");
    assert_eq!((a.result("f"), b.result("a 2000")), (0, 0));
    let groups = groups();
    let group = groups.as_array().unwrap().iter().find(|group| group["name"] == name.0.as_str());
    let group = group.unwrap();
    assert_eq!(group["pids"].as_array().unwrap().len(), 2);
    let counted = (2 * CONTEXT + 2000) * MIB;
    has(&group["devices"][0], json!({ "cap_bytes": 4096 * MIB, "counted_bytes": counted }));
    // Another limit for both, while they run.
    let order = |limit: &str| state.text(&format!("cap --group {} {limit}", name.0));
    let other = format!("cap --group {} --device 7 2GiB", name.0);
    state.fails(2, &other, "--device 7: group ");
    state.fails(2, &other, "it uses 0 (GPU-");
    assert!(order("2GiB").contains("new requests are refused until"));
    let text = state.text("ps");
    let line = text.lines().find(|line| line.starts_with(&name.0)).unwrap();
    assert!(line.contains("2.00 GiB, ") && line.contains(" must go"), "{line}");
    assert_eq!((a.result("a 1"), b.result("a 1")), (2, 2));
    order("8GiB");
    assert_eq!((a.result("a 100"), b.result("a 4000")), (0, 0));
    order("none");
    assert_eq!(b.result("a 9000"), 0);
    let (a, b) = (a.end(), b.end());
    assert_eq!(device(&a)["cap_bytes"], 3072 * MIB);
    has(device(&b), json!({ "cap_bytes": null, "group_cap_bytes": null }));
    assert_eq!(device(&b)["refusals"][0]["refused_by"], "group");
    assert_eq!(device(&b)["refusals"][0]["limit_bytes"], 4096 * MIB);
}

#[test]
fn a_larger_stack_is_out_of_the_groups_budget() {
    const STACK: u64 = 3960;
    let (name, state) = (Group::new("stack"), Scratch::new());
    let setup = members(&name, &state, "8GiB");
    let (mut a, mut b) =
        (InteractiveProgram::start(setup.clone()), InteractiveProgram::start(setup));
    assert_eq!((a.result("s 16384"), b.result("s 16384")), (0, 2));
    let rest = 8192 - 2 * CONTEXT - STACK;
    assert_eq!(b.ask("i"), format!("{rest} 8192"));
    assert_eq!(b.result(&format!("a {rest}")), 0);
    assert_eq!((a.result("a 1"), b.result("a 1")), (2, 2));
    let (a, b) = (a.end(), b.end());
    assert_eq!(device(&a)["driver_bytes"]["local_memory"], STACK * MIB);
    assert_eq!(device(&b)["refusals"][0]["refused_by"], "group");
}

#[test]
fn eight_members_never_pass_the_budget_by_a_byte() {
    let (name, state) = (Group::new("eight"), Scratch::new());
    let mut members = busy(&exact(&name, &state, 8 * CONTEXT + 700, 8), 8);
    std::thread::sleep(Duration::from_millis(if full() { 20_000 } else { 700 }));
    let mut refused = 0;
    members.iter_mut().for_each(InteractiveProgram::kill);
    for member in &members {
        let report = report(&member.traces());
        let device = device(&report["processes"][0]);
        assert_eq!(device["refused_by_driver"], 0, "over the budget: {device:#}");
        assert!(device["allocations"].as_u64().unwrap() > 10, "{device:#}");
        refused += device["refused_by_cap"].as_u64().unwrap();
    }
    assert!(refused > 100, "the budget never bit ({refused}): the test proves nothing");
}

#[test]
fn what_a_killed_member_held_is_there_at_the_next_request() {
    let (name, state) = (Group::new("killed"), Scratch::new());
    let mut survivor = InteractiveProgram::start(exact(&name, &state, 3072, 2));
    let all = format!("a {}", 3072 - CONTEXT);
    for turn in 0..if full() { 100 } else { 15 } {
        let mut victim = busy(&exact(&name, &state, 3072, 2), 1).remove(0);
        std::thread::sleep(Duration::from_micros(200 + turn * 7919 % 9000));
        assert_eq!(survivor.result(&all), 2, "the victim lives");
        victim.kill();
        assert_eq!(survivor.result(&all), 0, "turn {turn}: its bytes are still counted");
        assert_eq!(survivor.result("f"), 0);
    }
    assert_eq!(device(&survivor.end())["refused_by_driver"], 0);
}

/// Killed one by one while the others go on, also while one empties another's place.
#[test]
fn a_member_killed_at_any_moment_leaves_nothing() {
    const MEMBERS: u64 = 8;
    let (name, state) = (Group::new("moments"), Scratch::new());
    let budget = (MEMBERS + 1) * CONTEXT + 700;
    let setup = exact(&name, &state, budget, MEMBERS + 1);
    let mut quiet = InteractiveProgram::start(setup.clone());
    let mut moment = 1u64;
    for round in 0..if full() { 13 } else { 2 } {
        let mut members = busy(&setup, MEMBERS);
        let mut dead = Vec::new();
        while !members.is_empty() {
            moment = moment.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            std::thread::sleep(Duration::from_micros((moment >> 33) % 10_000));
            let mut victim = members.swap_remove((moment >> 40) as usize % members.len());
            victim.kill();
            dead.push(victim);
        }
        let all = format!("a {}", budget - CONTEXT);
        assert_eq!(quiet.result(&all), 0, "round {round}: bytes of the dead are counted");
        assert_eq!(quiet.result("f"), 0);
        for victim in dead {
            let report = report(&victim.traces());
            assert_eq!(device(&report["processes"][0])["refused_by_driver"], 0, "round {round}");
        }
    }
    assert_eq!(device(&quiet.end())["refused_by_driver"], 0);
}

/// A dead member's pid may be that of another process by now: the test's own, here.
#[test]
fn the_place_of_a_dead_member_is_emptied_though_its_pid_lives() {
    let (name, state) = (Group::new("reused"), Scratch::new());
    let mut process = InteractiveProgram::start(exact(&name, &state, 3072, 1));
    let all = format!("a {}", 3072 - CONTEXT);
    let page = name.page();
    let kept = SharedSegment::new(&[0; 512]);
    // The test's own segment, before and after an exec: ids are used again.
    let me = Member { pid: std::process::id(), segment: kept.id, made: 0 };
    let (gone, earlier) = (Member { segment: i32::MAX, ..me }, Member { made: 7, ..me });
    for (member, result) in [(gone, 0), (earlier, 0), (me, 2)] {
        let slot = page.join(member, |_| Life::Alive).unwrap();
        page.count(slot, 0).store(1000 * MIB, Ordering::SeqCst);
        // Another process under the same pid is looked for once a millisecond at most.
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(process.result(&all), result, "{member:?}");
        if result == 0 {
            assert_eq!(page.count(slot, 0).load(Ordering::SeqCst), 0);
            assert_eq!(process.result("f"), 0);
        }
    }
    // The living one keeps its.
    let rest = format!("a {}, a 1", 3072 - CONTEXT - 1000);
    assert_eq!(process.results(&rest), [0, 2]);
}

/// As many as 16 cards have that are cut into MIG devices.
#[test]
fn a_group_holds_for_128_devices_and_gives_nothing_of_more() {
    let (name, state) = (Group::new("devices"), Scratch::new());
    let setup = exact(&name, &state, 3072, 1).devices("3x24GiB");
    let _first = InteractiveProgram::start(setup.clone());
    let page = name.page();
    let fill = |numbers: std::ops::Range<u8>| {
        for number in numbers {
            assert!(page.device(&[number; 16], number, 1 << 30).is_some());
        }
    };
    fill(1..20);
    let mut second = InteractiveProgram::start(setup.clone().arg(1));
    assert_eq!((second.result("a 4000"), second.result("a 2000")), (2, 0));
    fill(20..127);
    let mut refused = InteractiveProgram::start(setup.arg(2));
    assert_eq!((refused.result("a 1"), refused.result("p 1"), refused.result("m 1")), (2, 2, 2));
    let says = format!("VRAMTRACE_CAP_GROUP={}: cuda:2: the group has 128 other devices", name.0);
    assert_eq!(refused.stderr().matches(&says).count(), 1, "{}", refused.stderr());
}

#[test]
fn a_group_without_a_right_name_fails_closed() {
    let bad = Setup::simulated().preload().env("VRAMTRACE_CAP_GROUP", "a/b");
    let refused = Program::c("interactive").run(bad);
    assert_eq!(refused.status, 98, "cuInit fails");
    let said = refused.stderr;
    assert!(said.contains("VRAMTRACE_CAP_GROUP=") && said.contains("letters"), "{said}");
}

#[test]
fn a_job_has_a_budget_of_its_own_that_ends_with_it() {
    let scratch = Scratch::new();
    let process = Program::c("interactive");
    // Two at once, an order for each: the second gets what the first leaves.
    let script = format!(
        "mkfifo go; (echo 'a 900'; cat go) | {0} > first & \
         while ! grep -q 0 first 2>/dev/null; do sleep 0.01; done; \
         printf 'a 900\\na 50\\n' | {0} > second; echo > go; wait",
        process.0.display()
    );
    let run = vramtrace()
        .args(["run", "--simulate", "--job-cap", "2GiB", "--out", "t", "--", "sh", "-c", &script])
        .current_dir(&scratch.0)
        .env_remove("VRAMTRACE_CAP")
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let printed = |name: &str| std::fs::read_to_string(scratch.0.join(name)).unwrap();
    assert!(printed("first").starts_with("ready\n0\n"), "{}", printed("first"));
    assert_eq!(printed("second"), "ready\n2\n0\n");
    scratch.fails(2, "run --job-cap 8 -- true", "--job-cap `8`");
}

/// A copy of the library with another version of the group's page: the version stands in the page's
/// first word.
fn library_of_another_version() -> Option<(Scratch, PathBuf)> {
    let mut library = std::fs::read(testkit::shim()).unwrap();
    const X86_64: u8 = 62;
    if library[18] != X86_64 {
        skip_here("the page's first word is no part of an instruction on this machine");
        return None;
    }
    let mut at = 0..library.len() - 7;
    let found: Vec<usize> =
        at.by_ref().filter(|at| library[*at..].starts_with(b"vtgroup4")).collect();
    assert!(!found.is_empty(), "the first word of a page stands in the code");
    found.into_iter().for_each(|at| library[at + 7] = b'2');
    let scratch = Scratch::new();
    let path = scratch.0.join("libvramtrace.so");
    std::fs::write(&path, library).unwrap();
    Some((scratch, path))
}

/// Two budgets of one name would be no budget.
#[test]
fn a_library_with_another_layout_is_refused_whichever_comes_first() {
    let Some((_scratch, other)) = library_of_another_version() else { return };
    let libraries = [testkit::shim(), other];
    for [first, later] in [[0, 1], [1, 0]] {
        let (name, state) = (Group::new("versions"), Scratch::new());
        let setup =
            |library: usize| members(&name, &state, "4GiB").env("LD_PRELOAD", &libraries[library]);
        let mut one = InteractiveProgram::start(setup(first));
        assert_eq!((one.result("a 3000"), one.result("a 1000")), (0, 2));
        let refused = Program::c("interactive").run(setup(later));
        assert_eq!(refused.status, 98, "{}{}", refused.stdout, refused.stderr);
        let line = format!(
            "VRAMTRACE_CAP_GROUP={}: it is a group of another version of this library, and its \
             processes run; use another name, or start all processes of the group with one version",
            name.0
        );
        let printed = format!("{}{}", refused.stdout, refused.stderr);
        assert!(printed.contains(&line), "{printed}");
        // The group is as it was, and its limit holds.
        let mut same = InteractiveProgram::start(setup(first));
        assert_eq!(same.result("a 1000"), 2);
        assert_eq!((one.result("f"), same.result("a 1000")), (0, 0));
        let is_listed = |group: &Value| group["name"] == name.0.as_str();
        assert_eq!(groups().as_array().unwrap().iter().any(is_listed), first == 0);
        drop((one, same));
        // Nobody is in it any more: the name is free for either.
        let mut again = InteractiveProgram::start(setup(later));
        assert_eq!((again.result("a 3000"), again.result("a 1000")), (0, 2));
    }
}
