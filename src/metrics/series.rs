//! Series: a metric, its labels and its value; by the labels of their processes, bounded, as text.
//!
//! Of several processes with the same labels, one that ends leaves what it had counted for as long as the others live:
//! counters do not fall. What is over a bound is summed as `other` or `all`, so that sums stay right.

use std::collections::{BTreeMap, HashMap};

use vramtrace_format::shown::cut;
use vramtrace_format::{LiveDevice, LiveOwner, uuid};
use vramtrace_reader::units::clean;

use super::families::{Family, Merge};
use crate::live_processes::owner::{container, pod, slurm_job};
use crate::live_processes::process::ProcessKey;

/// Bytes of a label's value. Values come from pages and /proc, and may be anything: they are cut and cleaned.
const LABEL_BYTES: usize = 64;
/// Maximum number of series of a group of processes with the same labels, and of the node.
const MAX_SERIES_OF_GROUP: usize = 40;
pub const MAX_SERIES_OF_NODE: usize = 2000;

/// What stands for several values of a label.
pub const OTHER: &str = "other";
const ALL_DEVICES: &str = "all";

/// The names of the labels that a process has.
const LABELS: [&str; 5] = ["job", "rank", "pod", "container", "executable"];

/// The values of [`LABELS`]. Processes with the same values are one group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Labels([String; LABELS.len()]);

impl Labels {
    /// `outer`: the path of the cgroup as it is seen from here, which has the container where the process sees `/`.
    pub fn of(owner: &LiveOwner, outer: Option<&str>) -> Labels {
        let paths = || outer.into_iter().chain([owner.cgroup.as_str()]);
        let slurm = || paths().find_map(slurm_job).map(String::from);
        let job = Some(owner.job.clone()).filter(|job| !job.is_empty()).or_else(slurm);
        Labels([
            label(&job.unwrap_or_default()),
            owner.rank.map(|rank| rank.to_string()).unwrap_or_default(),
            label(&paths().find_map(pod).unwrap_or_default()),
            label(paths().find_map(container).unwrap_or_default()),
            label(&owner.executable),
        ])
    }
}

/// A device by its UUID; by its ordinal in the process, where the page has no UUID.
pub fn device(device: &LiveDevice) -> String {
    match (device.uuid, device.ordinal) {
        (uuid, u8::MAX) if uuid == [0; 16] => "unknown".into(),
        (uuid, ordinal) if uuid == [0; 16] => format!("cuda:{ordinal}"),
        (uuid, _) => uuid::text(&uuid, false),
    }
}

pub fn label(text: &str) -> String {
    cut(&clean(text), LABEL_BYTES).to_string()
}

/// A series of a group: the metric, the device (empty: none), the value of the metric's own label (empty: none).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct SeriesName {
    family: Family,
    device: String,
    label: String,
}

impl SeriesName {
    fn over_devices(&mut self) {
        if !self.device.is_empty() {
            self.device = ALL_DEVICES.into();
        }
    }
}

/// The series of one group, or of the node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series(BTreeMap<SeriesName, f64>);

impl Series {
    pub fn put(&mut self, family: Family, device: &str, label: &str, value: f64) {
        self.add(SeriesName { family, device: device.into(), label: label.into() }, value);
    }

    /// Adds a value; one that is there is merged.
    fn add(&mut self, name: SeriesName, value: f64) {
        let merge = name.family.about().merge;
        let merged = |there: f64| match merge {
            Merge::Sum => there + value,
            Merge::Most => there.max(value),
            Merge::Least => there.min(value),
        };
        self.0.entry(name).and_modify(|there| *there = merged(*there)).or_insert(value);
    }

    fn merge(&mut self, other: impl IntoIterator<Item = (SeriesName, f64)>) {
        other.into_iter().for_each(|(name, value)| self.add(name, value));
    }

    /// The sum of a metric over all of its series.
    fn total(&self, family: Family) -> f64 {
        self.0.iter().filter(|(name, _)| name.family == family).map(|(_, value)| value).sum()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// With at most [`MAX_SERIES_OF_GROUP`] series: first only used memory names devices, then libraries and roles have no
    /// names, then nothing names devices.
    fn bounded(self) -> Series {
        let steps: [fn(&mut SeriesName); 3] = [
            |name| match name.family {
                Family::Used => {}
                _ => name.over_devices(),
            },
            |name| match name.family {
                Family::Library | Family::Role => name.label = OTHER.into(),
                _ => {}
            },
            SeriesName::over_devices,
        ];
        steps.into_iter().fold(self, |series, fold| {
            if series.len() <= MAX_SERIES_OF_GROUP {
                return series;
            }
            let mut folded = Series::default();
            folded.merge(series.0.into_iter().map(|(mut name, value)| {
                fold(&mut name);
                (name, value)
            }));
            folded
        })
    }
}

/// All groups with at most so many series together: those that use least are one group. Returns how many processes are
/// in it.
pub fn bounded(groups: BTreeMap<Labels, Series>, most: usize) -> (BTreeMap<Labels, Series>, f64) {
    let mut groups: Vec<_> =
        groups.into_iter().map(|(of, series)| (of, series.bounded())).collect();
    if groups.iter().map(|(_, series)| series.len()).sum::<usize>() <= most {
        return (groups.into_iter().collect(), 0.0);
    }
    let used = |(_, series): &(Labels, Series)| series.total(Family::Used);
    // Those of the same use stay in the order of their labels.
    groups.sort_by(|a, b| used(b).total_cmp(&used(a)));
    let room = most.saturating_sub(MAX_SERIES_OF_GROUP);
    let (mut kept, mut rest, mut count) = (BTreeMap::new(), Series::default(), 0);
    for (group, series) in groups {
        count += series.len();
        // From the first that has no room on: a smaller one does not go before it.
        if count <= room { drop(kept.insert(group, series)) } else { rest.merge(series.0) }
    }
    let folded = rest.total(Family::Processes);
    // A process may have these labels.
    let other: &mut Series =
        kept.entry(Labels([OTHER; LABELS.len()].map(String::from))).or_default();
    other.merge(rest.0);
    *other = std::mem::take(other).bounded();
    (kept, folded)
}

/// Counters of processes, from one look to the next.
#[derive(Default)]
pub struct Counters {
    /// The counters of each process at the last look.
    last: HashMap<ProcessKey, (Labels, Vec<(SeriesName, f64)>)>,
    /// Of processes that have ended, by group.
    ended: BTreeMap<Labels, Series>,
}

impl Counters {
    /// The series of all groups, with what their ended processes had counted.
    pub fn grouped(
        &mut self,
        processes: Vec<(ProcessKey, Labels, Series)>,
    ) -> BTreeMap<Labels, Series> {
        let mut now = HashMap::new();
        let mut groups: BTreeMap<Labels, Series> = BTreeMap::new();
        for (key, group, series) in processes {
            let all = series.0.iter().map(|(name, value)| (name.clone(), *value));
            let counters = all.filter(|(name, _)| name.family.about().is_counter()).collect();
            now.insert(key, (group.clone(), counters));
            groups.entry(group).or_default().merge(series.0);
        }
        for (key, (group, counters)) in std::mem::replace(&mut self.last, now) {
            // A process whose labels changed goes on under the new ones.
            if !self.last.contains_key(&key) {
                self.ended.entry(group).or_default().merge(counters);
            }
        }
        self.ended.retain(|group, _| groups.contains_key(group));
        for (group, ended) in &self.ended {
            groups.entry(group.clone()).or_default().merge(ended.0.clone());
        }
        groups
    }
}

/// The text of a scrape: the text format of Prometheus, version 0.0.4.
pub fn encode(groups: &BTreeMap<Labels, Series>, node: &Series) -> String {
    let mut families: BTreeMap<Family, String> = BTreeMap::new();
    let of_groups = groups.iter().map(|(group, series)| (Some(group), series));
    for (group, series) in of_groups.chain([(None, node)]) {
        for (name, value) in &series.0 {
            let about = name.family.about();
            let values = group.into_iter().flat_map(|group| group.0.iter().map(String::as_str));
            let device = Some(("device", &*name.device)).filter(|(_, device)| !device.is_empty());
            let own = Some((about.label, &*name.label)).filter(|(label, _)| !label.is_empty());
            let all: Vec<String> = LABELS
                .into_iter()
                .zip(values)
                .chain(device)
                .chain(own)
                .map(|(label, value)| format!("{label}=\"{}\"", escaped(value)))
                .collect();
            let labels =
                if all.is_empty() { String::new() } else { format!("{{{}}}", all.join(",")) };
            let samples = families.entry(name.family).or_default();
            samples.push_str(&format!("{}{labels} {value:?}\n", about.name));
        }
    }
    let family = |(family, samples): (&Family, &String)| {
        let about = family.about();
        let (name, kind, help) = (about.name, about.kind(), about.help);
        format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{samples}")
    };
    families.iter().map(family).collect()
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_container_and_job_come_from_the_cgroup_that_shows_them() {
        let id = "8f".repeat(32);
        let pod = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9";
        let owner = LiveOwner {
            executable: format!("p\u{1b}[2J\n\"{}", "é".repeat(64)),
            rank: Some(3),
            cgroup: "/".into(),
            ..LiveOwner::default()
        };
        let outer = format!("/kubepods/burstable/pod{pod}/{id}");
        let Labels([_, rank, of_pod, container, executable]) = Labels::of(&owner, Some(&outer));
        assert_eq!((&*of_pod, &*container, &*rank), (pod, "8f8f8f8f8f8f", "3"));
        assert!(executable.len() <= LABEL_BYTES && !executable.contains(['\u{1b}', '\n']));
        let inside = LiveOwner { cgroup: outer, ..LiveOwner::default() };
        assert_eq!(Labels::of(&inside, None).0[2], pod);
        let job = |job: &str| {
            let cgroup = "/slurmstepd.scope/job_12/step_0".into();
            let owner = LiveOwner { job: job.into(), cgroup, ..LiveOwner::default() };
            let Labels([job, ..]) = Labels::of(&owner, None);
            job
        };
        assert_eq!((job(""), job("7")), ("12".into(), "7".into()));
    }

    #[test]
    fn a_counter_falls_only_with_its_last_process() {
        let mut counters = Counters::default();
        let process = |pid, refusals| {
            let key = ProcessKey { user: 0, pid, start_ticks: 7, pid_namespace: 1 };
            let mut series = Series::default();
            series.put(Family::Refusals, "GPU-1", "cap", refusals);
            series.put(Family::Used, "GPU-1", "", 100.0);
            (key, Labels::default(), series)
        };
        let mut look = |processes| {
            let groups = counters.grouped(processes);
            groups
                .get(&Labels::default())
                .map(|all| (all.total(Family::Refusals), all.total(Family::Used)))
        };
        assert_eq!(look(vec![process(1, 5.0), process(2, 3.0)]), Some((8.0, 200.0)));
        assert_eq!(look(vec![process(2, 4.0)]), Some((9.0, 100.0)));
        assert_eq!(look(vec![process(2, 4.0), process(3, 1.0)]), Some((10.0, 200.0)));
        assert_eq!(look(vec![process(3, 2.0)]), Some((11.0, 100.0)));
        assert_eq!(look(Vec::new()), None);
        assert_eq!(look(vec![process(4, 1.0)]), Some((1.0, 100.0)));
    }

    #[test]
    fn the_text_has_each_family_once_and_values_escaped() {
        let owner = LiveOwner { executable: "a \"b\"\\".into(), ..LiveOwner::default() };
        let mut series = Series::default();
        series.put(Family::Used, "GPU-1", "", 1024.0);
        series.put(Family::Refusals, "GPU-1", "cap", 3.0);
        let mut node = Series::default();
        node.put(Family::PageProblems, "", "", 0.0);
        let text = encode(&BTreeMap::from([(Labels::of(&owner, None), series)]), &node);
        let labels = r#"job="",rank="",pod="",container="",executable="a \"b\"\\",device="GPU-1""#;
        for line in [
            &format!("vramtrace_memory_used_bytes{{{labels}}} 1024.0\n"),
            &format!("vramtrace_refusals_total{{{labels},by=\"cap\"}} 3.0\n"),
            "# TYPE vramtrace_memory_used_bytes gauge\n",
            "# TYPE vramtrace_refusals_total counter\n",
            "vramtrace_page_problems 0.0\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        assert_eq!(text.lines().filter(|line| !line.starts_with('#')).count(), 3);
    }

    fn process(devices: usize, labels: usize, size: f64) -> Series {
        let mut series = Series::default();
        series.put(Family::Processes, "", "", 1.0);
        for device in 0..devices {
            let name = format!("GPU-{device}");
            for family in Family::ALL.iter().filter(|family| **family <= Family::IdleKnown) {
                // The values of some labels are few.
                let count = match family {
                    Family::Library | Family::Role => labels,
                    Family::OutOfMemory => labels.min(8),
                    Family::Leaks | Family::CapNotInForce => labels.min(3),
                    Family::Refusals => labels.min(2),
                    _ => 1,
                };
                for label in 0..count {
                    let value = size * (1.0 + device as f64 + label as f64);
                    let has_label = !family.about().label.is_empty();
                    let label = if has_label { format!("label {label}") } else { String::new() };
                    series.put(*family, &name, &label, value);
                }
            }
        }
        series
    }

    #[test]
    fn one_process_has_at_most_40_series_and_its_sums_stay() {
        for (devices, labels) in [(1, 1), (1, 4), (1, 64), (2, 3), (8, 1), (8, 14), (16, 64)] {
            let series = process(devices, labels, 1.0);
            let bounded = series.clone().bounded();
            let count = bounded.len();
            assert!(count <= MAX_SERIES_OF_GROUP, "{devices} devices, {labels} labels: {count}");
            for family in
                [Family::Used, Family::Cap, Family::Library, Family::Role, Family::Refusals]
            {
                assert_eq!(bounded.total(family), series.total(family), "{family:?}");
            }
            if devices <= 8 && labels <= 4 {
                let of_devices = bounded.0.keys().filter(|name| name.family == Family::Used);
                assert_eq!(of_devices.count(), devices);
            }
        }
        let few = process(1, 1, 1.0);
        assert_eq!(few.clone().bounded(), few);
    }

    #[test]
    fn a_node_has_at_most_2000_series_and_the_largest_processes_keep_theirs() {
        let group =
            |n: usize| Labels::of(&LiveOwner { job: n.to_string(), ..LiveOwner::default() }, None);
        let all: BTreeMap<Labels, Series> =
            (0..300).map(|n| (group(n), process(1, 2, n as f64))).collect();
        let used = |groups: &BTreeMap<Labels, Series>| -> f64 {
            groups.values().map(|series| series.total(Family::Used)).sum()
        };
        let (some, folded) = bounded(all.clone(), MAX_SERIES_OF_NODE);
        let count: usize = some.values().map(Series::len).sum();
        assert!(
            count <= MAX_SERIES_OF_NODE && count > MAX_SERIES_OF_NODE - 3 * MAX_SERIES_OF_GROUP,
            "{count}"
        );
        assert_eq!(used(&some), used(&all));
        assert!(some.contains_key(&group(299)) && !some.contains_key(&group(0)));
        assert_eq!(folded as usize, 300 - (some.len() - 1));
        let other = Labels([OTHER; LABELS.len()].map(String::from));
        assert_eq!(some[&other].total(Family::Processes), folded);
        let few: BTreeMap<Labels, Series> =
            (0..3).map(|n| (group(n), process(1, 1, 1.0))).collect();
        assert_eq!(bounded(few.clone(), MAX_SERIES_OF_NODE), (few, 0.0));
    }
}
