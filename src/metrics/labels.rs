//! The labels of a process. Values come from pages and /proc, and may be anything: they are cut and cleaned.

use vramtrace_format::shown::cut;
use vramtrace_format::{LiveDevice, LiveOwner, cgroup, uuid};
use vramtrace_reader::units::clean;

use super::series::Group;

/// Bytes of a label's value.
const MOST: usize = 64;

/// `outer`: the path of the cgroup as it is seen from here, which has the container where the process sees `/`.
pub fn group(owner: &LiveOwner, outer: Option<&str>) -> Group {
    let paths = || outer.into_iter().chain([owner.cgroup.as_str()]);
    let container = paths().find_map(cgroup::container).unwrap_or_default();
    let slurm = || paths().find_map(cgroup::slurm_job).map(String::from);
    let job = Some(owner.job.clone()).filter(|job| !job.is_empty()).or_else(slurm);
    Group {
        job: label(&job.unwrap_or_default()),
        rank: owner.rank.map(|rank| rank.to_string()).unwrap_or_default(),
        pod: label(&paths().find_map(cgroup::pod).unwrap_or_default()),
        container: label(container),
        executable: label(&owner.executable),
    }
}

/// A device by its UUID; by its ordinal in the process, where the page has no UUID.
pub fn device(device: &LiveDevice) -> String {
    match device.uuid {
        [0, ..] if device.uuid == [0; 16] => match device.ordinal {
            u8::MAX => "unknown".into(),
            ordinal => format!("cuda:{ordinal}"),
        },
        uuid => uuid::text(&uuid, false),
    }
}

pub fn label(text: &str) -> String {
    cut(&clean(text), MOST).to_string()
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
        let found = group(&owner, Some(&outer));
        assert_eq!((&*found.pod, &*found.container, &*found.rank), (pod, "8f8f8f8f8f8f", "3"));
        assert!(found.executable.len() <= MOST && !found.executable.contains(['\u{1b}', '\n']));
        let inside = LiveOwner { cgroup: outer, ..LiveOwner::default() };
        assert_eq!(group(&inside, None).pod, pod);
        let job = |job: &str| LiveOwner {
            job: job.into(),
            cgroup: "/slurmstepd.scope/job_12/step_0".into(),
            ..LiveOwner::default()
        };
        assert_eq!(
            (group(&job(""), None).job, group(&job("7"), None).job),
            ("12".into(), "7".into())
        );
    }
}
