//! A figure that several commands show is the same in each of them. Of a run in which no two figures are alike, each view
//! prints only facts of `report --json`, of failures those of `oom --json`, or of the view's document, each in one form, under
//! one word.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;
use testkit::trace_builder::{SECOND, TraceBuilder, cap_event, training_stacks};
use testkit::{MIB, Scratch, unpacked, vramtrace};
use vramtrace_format::{
    Cause, Definition, DeviceId, Event, Kind, Mark, PoolId, RefusedBy, Space, StackId, Took,
};
use vramtrace_reader::units::{enough, limit, size};

use super::page::section;

/// A process that runs out of memory under a cap, with a leak, a phase, a pool, and a second device. Most sizes are
/// primes of KiB, times `scale` in 1024.
fn process(scale: u64) -> TraceBuilder {
    const CARD: DeviceId = DeviceId(0);
    let kib = |prime: u64| prime * scale;
    let mut t = training_stacks();
    t.code(6, "Block.mlp", "/home/me/model.py", 301);
    t.stack(6, &[], &[2, 3, 4], &[]);
    t.stack(7, &[], &[6, 3, 4], &[]);
    t.define(Definition::Text { id: 1, text: "epoch".into() });
    let (cap, context) = (kib(307_200), kib(50_021));
    t.event(SECOND / 2, cap_event(CARD.0, cap));
    t.context(SECOND / 2, 0);
    t.context(SECOND / 2, 1);
    t.alloc_on(SECOND / 2, Kind::Device, 1, 9 << 40, kib(31_013));
    t.event(SECOND, Event::Mark { name: 1, mark: Mark::Push });
    let segment = |n: u64| (1 << 40) + n * (1 << 32);
    let mut in_nvidia_smi = context + kib(7_001 + 7_919 + 1_009 + 3_313 + 997);
    let segments = [kib(61_043), 40 * MIB, kib(8_009), kib(13_001)];
    for (n, size) in (0..).zip(segments) {
        t.alloc_by(SECOND, Kind::Device, segment(n), size, 1 + n as u32);
        in_nvidia_smi += size.next_multiple_of(2 * MIB);
    }
    t.alloc_by(SECOND, Kind::Managed, segment(4), kib(5_003), 4);
    t.alloc_by(SECOND, Kind::Pool, segment(5), kib(6_007), 4);
    t.event(SECOND, Event::PoolState { pool: PoolId(1), reserved: kib(7_001), used: kib(6_007) });
    let block = |t: &mut TraceBuilder, at, (segment, offset), prime, stack| {
        t.alloc_by(at * SECOND, Kind::Block, segment + kib(offset), kib(prime), stack);
    };
    block(&mut t, 2, (segment(0), 0), 21_001, 6);
    block(&mut t, 2, (segment(0), 23_003), 17_011, 7);
    block(&mut t, 2, (segment(0), 41_011), 5_501, 3);
    block(&mut t, 2, (segment(1), 0), 11_003, 7);
    let site = t.site(Kind::Device, 0);
    for (prime, cause) in
        [(7_919, Cause::Modules), (1_009, Cause::LocalMemory), (3_313, Cause::Graphs)]
    {
        let (delta, stack) = (kib(prime) as i64, StackId(3));
        let took = Took { device: CARD, site, stack, delta, cause, name: 0 };
        t.event(3 * SECOND, Event::Took(took));
    }
    t.sample(3 * SECOND, Some(in_nvidia_smi), context);
    t.event(3 * SECOND, Event::Mark { name: 0, mark: Mark::Pop });
    for n in 0..40 {
        t.alloc_by((4 + n) * SECOND, Kind::Device, segment(10 + n), 2 * MIB, 5);
    }
    block(&mut t, 41, (segment(0), 50_021), 2_297, 2);
    t.free(45 * SECOND, Space::Block, segment(0));
    t.free(45 * SECOND, Space::Block, segment(1));
    t.free(46 * SECOND, Space::Device, segment(1));
    t.refused(48 * SECOND, Kind::Device, kib(131_009), RefusedBy::Cap, cap);
    let (allocated, reserved) = (kib(17_011 + 5_501 + 2_297), kib(61_043));
    let (device, size, stack) = (CARD, kib(131_009), StackId(6));
    t.event(48 * SECOND, Event::CacheOom { device, size, allocated, reserved, stack });
    t.event(49 * SECOND, Event::Ended);
    t
}

const VIEWS: [&str; 18] = [
    "job",
    "report job --all",
    "report job --rank 0 --full",
    "report job --rank 1 --full",
    "report job --rank 1",
    "report job --rank 0 --by phase",
    "oom job --at all",
    "leaks job",
    "leaks job --rank 1",
    "holders job",
    "holders job --rank 0",
    "holders job --rank 0 --by role",
    "holders job --rank 1 --at end",
    "frag job",
    "frag job --at oom",
    "whatif job",
    "verify job",
    "diff job/0.vtrace other.vtrace",
];

/// Where a fact is in a device of `report --json`, and the word that stands beside it. The library's own message, which reads
/// no trace, has other words for two: `allocations` for what is live, and `other` for what the driver has beside contexts.
const WORDS: [(&str, &str); 18] = [
    ("/in_use_at_peak/headline_bytes", "peak"),
    ("/in_use_at_peak/allocated_bytes", "allocated"),
    ("/in_use_at_peak/free_in_cache_bytes", "free in cache"),
    ("/in_use_at_peak/beside_cache_bytes", "other allocations"),
    ("/in_use_at_peak/contexts_bytes", "context"),
    ("/in_use_at_peak/driver_bytes", "driver"),
    ("/in_use_at_peak/unattributed_bytes", "unattributed"),
    ("/in_use_at_peak/managed_bytes", "managed"),
    ("/in_use_at_peak/counted_by_cap_bytes", "counted"),
    ("/process_bytes", "in nvidia-smi"),
    ("/live_bytes", "live"),
    ("/cap_bytes", "cap"),
    ("/refusals/0/size_bytes", "asked"),
    ("/refusals/0/card_free_bytes", "free"),
    ("/torch/reserved_bytes", "reserved"),
    ("/torch/allocated_bytes", "allocated"),
    ("/torch/peak_reserved_bytes", "reserved"),
    ("/torch/peak_allocated_bytes", "allocated"),
];

/// Whether the word stands there, not as a part of another: `context`, not `contexts`.
fn says(text: &str, word: &str) -> bool {
    let goes_on = |behind: &str| behind.starts_with(|next: char| next.is_alphanumeric());
    text.match_indices(word).any(|(at, word)| !goes_on(&text[at + word.len()..]))
}

/// What a list leaves out, and a total of several processes: sums of other figures.
const SUMS: [&str; 2] = [" more", "each device at its own"];

/// The forms in which the numbers of a document may be printed. Limits are printed as they were given.
fn forms(of: &Value, path: &str, to: &mut BTreeMap<String, BTreeSet<u64>>) {
    match of {
        Value::Array(all) => all.iter().for_each(|one| forms(one, path, to)),
        Value::Object(all) => {
            all.iter().for_each(|(key, one)| forms(one, &format!("{path}/{key}"), to));
        }
        Value::Number(number) => {
            let value = number.as_f64().unwrap().abs() as u64;
            let is_limit = ["cap_bytes", "capacity_bytes", "limit_bytes"];
            let is_limit = is_limit.iter().any(|name| path.ends_with(&format!("/{name}")));
            let form = if is_limit { limit(value) } else { size(value) };
            to.entry(form).or_default().insert(value);
            if path.ends_with("advice/bytes") {
                to.entry(enough(value)).or_default().insert(value);
            }
        }
        _ => {}
    }
}

/// Each size of a text, with what stands beside it: the titles of its table and its line, of a sum the term.
fn printed(text: &str) -> Vec<(String, String)> {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        match lines.last_mut().filter(|last| last.contains("= ") && line.starts_with("          "))
        {
            Some(sum) => *sum += &format!(" {}", line.trim_start()),
            None => lines.push(line.into()),
        }
    }
    let (mut found, mut titles) = (Vec::new(), "");
    for line in &lines {
        let before = found.len();
        for term in line.split([';', '=']).flat_map(|part| part.split(" + ")) {
            let words: Vec<&str> = term.split_whitespace().collect();
            for pair in words.windows(2) {
                let figure = pair[0].trim_start_matches(['(', '+', '-']);
                let unit = pair[1].trim_end_matches(|c: char| !c.is_alphabetic());
                let unit = unit.trim_end_matches("/s");
                if UNITS.contains(&unit) && figure.parse::<f64>().is_ok() {
                    found.push((format!("{figure} {unit}"), format!("{titles}\n{term}")));
                }
            }
        }
        if found.len() == before {
            titles = line;
        }
    }
    found.retain(|(_, beside)| !SUMS.iter().any(|sum| beside.contains(sum)));
    found
}

#[test]
fn each_view_prints_the_facts_in_one_form_under_one_word() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.0.join("job")).unwrap();
    for (name, rank, scale) in [("job/0", 0, 1024), ("job/1", 1, 1121), ("other", 0, 1235)] {
        process(scale).rank(rank, 2).write(&scratch.0.join(format!("{name}.vtrace")));
    }
    let report = scratch.json("report job --top 99 --by phase");
    let mut facts = BTreeMap::new();
    forms(&report, "", &mut facts);
    for command in ["oom job --at all", "holders job --by library --at oom"] {
        forms(&scratch.json(command), "", &mut facts);
    }
    let alike = facts.iter().filter(|(form, of)| form.ends_with("MiB") && of.len() > 1);
    assert_eq!(alike.collect::<Vec<_>>(), []);
    let mut words: BTreeMap<String, &str> = BTreeMap::new();
    for (process, (pointer, word)) in
        report["processes"].as_array().unwrap().iter().flat_map(|of| WORDS.map(|row| (of, row)))
    {
        let mut form = BTreeMap::new();
        forms(process["devices"][0].pointer(pointer).expect(pointer), pointer, &mut form);
        let (form, _) = form.pop_first().expect(pointer);
        assert!(form.ends_with("iB"), "{pointer}: {form}");
        let other = words.insert(form, word);
        assert!(other.is_none_or(|other| other == word), "{pointer}: {other:?}");
    }
    let mut wrong = String::new();
    let mut check = |view: &str, document: &Value, text: &str| {
        let mut own = facts.clone();
        forms(document, "", &mut own);
        for (form, beside) in printed(text) {
            if !own.contains_key(&form) {
                wrong += &format!("{view}: {form} is no fact: {beside}\n");
            } else if words.get(&form).is_some_and(|word| !says(&beside, word))
                && !beside.trim_start().starts_with("by library")
            {
                wrong += &format!("{view}: {form} is {}: {beside}\n", words[&form]);
            }
        }
    };
    for view in VIEWS {
        let as_json = if view.starts_with("diff") { "--format json" } else { "--json" };
        let document = scratch.run(&format!("{view} {as_json}")).stdout;
        let document = serde_json::from_slice(&document).unwrap_or_default();
        check(view, &document, &String::from_utf8(scratch.run(view).stdout).unwrap());
    }
    scratch.text("report job --html");
    let page = std::fs::read_to_string(scratch.0.join("vramtrace.html")).unwrap();
    let text = String::from_utf8(section(&page, "facts")).unwrap();
    check("page", &Value::Null, &text.replace("\\n", "\n"));
    assert!(wrong.is_empty(), "{wrong}");
}

/// The recorded traces: of one process, and directories of several.
fn recorded() -> Vec<PathBuf> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut found = vec![data.join("../../assets/recorded.vtrace.gz")];
    for directory in ["golden", "roles"] {
        for entry in std::fs::read_dir(data.join(directory)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() || path.to_string_lossy().ends_with(".vtrace.gz") {
                found.push(path);
            }
        }
    }
    found.sort();
    assert!(found.len() > 25, "{found:?}");
    found
}

fn json(arguments: &[&str], path: &Path) -> Option<Value> {
    let output = vramtrace().args(arguments).arg("--json").arg(path).output().unwrap();
    // A trace without stacks has no holders.
    output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
}

/// Bytes and number of each holder, largest first.
fn held<'v>(holders: impl IntoIterator<Item = &'v Value>) -> Vec<[u64; 2]> {
    let figures = |of: &Value| ["bytes", "count"].map(|key| of[key].as_u64().unwrap());
    let mut all: Vec<_> = holders.into_iter().map(figures).collect();
    all.sort_unstable();
    all
}

/// The first screen words the verdict that the documents and the page have.
#[test]
fn the_verdict_is_one_fact_of_all_views() {
    let scratch = Scratch::new();
    let page = scratch.0.join("page.html");
    let mut kinds = BTreeSet::new();
    scratch.write("import.csv", unpacked("tests/data/cache_churn.csv.gz"));
    for path in recorded().into_iter().chain([scratch.0.join("import.csv")]) {
        let name = path.display();
        let report = json(&["report"], &path).unwrap();
        let of = report["verdict_of"].as_u64().unwrap() as usize;
        let verdict = &report["processes"][of]["verdict"];
        let screen = vramtrace().arg(&path).output().unwrap().stdout;
        let screen = String::from_utf8(screen).unwrap();
        let (of_process, _) = screen.split_once("  next ").unwrap();
        let word = |key: &str| verdict[key].as_str();
        let next = format!("  next       vramtrace {} ", word("next").unwrap());
        assert!(of_process.contains(word("text").unwrap()), "{name}: {verdict}\n{screen}");
        assert!(screen.contains(&next), "{name}: {verdict}\n{screen}");
        match word("line") {
            Some(line) => assert!(screen.contains(&format!("  line       {line}\n")), "{screen}"),
            None => assert!(!screen.contains("  line "), "{name}: {verdict}\n{screen}"),
        }
        let at_peak = json(&["report", "--at", "peak"], &path).unwrap();
        let verdicts = [&at_peak["verdict_of"], &at_peak["processes"][0]["verdict"]];
        assert_eq!(verdicts, [&Value::Null; 2]);
        if !kinds.insert(word("kind").unwrap().to_string()) {
            continue;
        }
        let to_page = ["report", "--html", "--force", "-o", page.to_str().unwrap()];
        assert!(vramtrace().args(to_page).arg(&path).status().unwrap().success());
        let facts = section(&std::fs::read_to_string(&page).unwrap(), "facts");
        let on_page: Value = serde_json::from_slice(&facts).unwrap();
        let on_page = &on_page["report"]["processes"][of]["verdict"];
        for key in ["kind", "device", "at_s", "text", "leak", "next"] {
            assert_eq!(on_page[key], verdict[key], "{name}: {key}");
        }
    }
    let all = ["cut_off", "in_order", "leak", "not_known", "out_of_memory", "refused_and_went_on"];
    assert_eq!(kinds.iter().map(String::as_str).collect::<Vec<_>>(), all);
}

#[test]
fn the_peak_is_the_same_in_every_command() {
    for path in recorded().iter().filter(|path| path.is_file()) {
        let name = path.display();
        let report = json(&["report", "--full", "--top", "1000000"], path).unwrap();
        let oom = json(&["oom"], path).unwrap();
        let holders = json(&["holders", "--at", "peak"], path);
        let frag = json(&["frag"], path);
        let of_frag = frag.iter().flat_map(|frag| frag["devices"].as_array().unwrap());
        let of_frag: Vec<&Value> = of_frag.collect();
        for device in report["processes"][0]["devices"].as_array().unwrap() {
            let here = |of: &&Value| of["device"] == device["device"];
            for of in oom["processes"][0]["devices"].as_array().unwrap().iter().filter(here) {
                assert_eq!(of["in_use_at_peak"], device["in_use_at_peak"], "{name}");
            }
            for of in of_frag.iter().copied().filter(here) {
                for figure in ["peak_reserved_bytes", "peak_allocated_bytes"] {
                    assert_eq!(of[figure], device["torch"][figure], "{name}");
                }
            }
            let Some(holders) = &holders else { continue };
            let all = holders["holders"].as_array().unwrap().iter();
            let of_report = device["holders"]["at_peak"].as_array().unwrap();
            assert_eq!(held(all.filter(|of| of["device"] == device["device"])), held(of_report));
        }
    }
}

#[test]
fn the_holders_of_a_run_are_the_same_in_report_and_holders() {
    let roles = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/roles");
    for path in recorded().iter().filter(|path| path.is_dir()).chain([&roles]) {
        let report = json(&["report", "--top", "1000000"], path).unwrap();
        let Some(holders) = json(&["holders", "--at", "peak"], path) else { continue };
        // What is free in a cache is one holder in one of them, and one for each process in the other.
        let [report, holders] = [&report["run"]["held_at_peaks"], &holders["merged"]].map(|all| {
            let all = all.as_array().unwrap().iter();
            let (free, rest): (Vec<_>, Vec<_>) = all.partition(|of| of["name"] == "free in cache");
            let bytes = |of: Vec<&Value>| held(of).into_iter().map(|[bytes, _]| bytes);
            (bytes(free).sum::<u64>(), bytes(rest).collect::<Vec<_>>())
        });
        assert_eq!(report, holders, "{}", path.display());
    }
}
