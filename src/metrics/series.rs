//! Series: a metric, its labels and its value; by the labels of their processes, bounded, as text.
//!
//! Of several processes with the same labels, one that ends leaves what it had counted for as long as the others live:
//! counters do not fall.

use std::collections::{BTreeMap, HashMap};

use vramtrace_format::shown::cut;
use vramtrace_format::{LiveDevice, LiveOwner, uuid};
use vramtrace_reader::units::clean;

use super::families::{Family, Merge};
use crate::live_processes::owner::{container, pod, slurm_job};
use crate::live_processes::process::ProcessKey;

/// Bytes of a label's value. Values come from pages and /proc, and may be anything: they are cut and cleaned.
const LABEL_BYTES: usize = 64;
/// Maximum number of series of all processes: any user's processes may have any labels.
const MAX_SERIES: usize = 10_000;

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
}

/// The groups that use most, with at most [`MAX_SERIES`] series together, and how many processes the others have.
pub fn largest(groups: BTreeMap<Labels, Series>) -> (BTreeMap<Labels, Series>, f64) {
    let mut groups: Vec<_> = groups.into_iter().collect();
    let used = |(_, series): &(Labels, Series)| series.total(Family::Used);
    groups.sort_by(|a, b| used(b).total_cmp(&used(a)));
    let mut count = 0;
    let has_room = |(_, series): &&(Labels, Series)| {
        count += series.0.len();
        count <= MAX_SERIES
    };
    let rest = groups.split_off(groups.iter().take_while(has_room).count());
    let left_out = rest.iter().map(|(_, series)| series.total(Family::Processes)).sum();
    (groups.into_iter().collect(), left_out)
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

    #[test]
    fn the_processes_that_use_most_have_their_series() {
        let group =
            |n: usize| Labels::of(&LiveOwner { job: n.to_string(), ..LiveOwner::default() }, None);
        let process = |n: usize| {
            let mut series = Series::default();
            series.put(Family::Processes, "", "", 1.0);
            (0..9).for_each(|device| series.put(Family::Used, &device.to_string(), "", n as f64));
            (group(n), series)
        };
        let (some, left_out) = largest((0..1200).map(process).collect());
        assert_eq!((some.len(), left_out), (1000, 200.0));
        assert!(some.contains_key(&group(200)) && !some.contains_key(&group(199)));
    }
}
