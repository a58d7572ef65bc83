//! The path of a process's cgroup, and the variables of batch systems that tell the job.

/// Variables with the number of a job: of Slurm, PBS, LSF, Flux, Grid Engine.
pub const JOB_VARIABLES: [&str; 5] =
    ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "JOB_ID"];

/// The path in the unified hierarchy, from the text of `/proc/PID/cgroup`; of version 1 that of the controller
/// `memory`. `None`: the process is in neither.
pub fn path(text: &str) -> Option<&str> {
    let of_memory = |line: &'_ str| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers.split(',').any(|name| name == "memory").then_some(path.len())
    };
    let unified = text.lines().find_map(|line| line.strip_prefix("0::"));
    // Where both are mounted, containers are in the one with the controllers.
    let first = text.lines().find_map(|line| Some(&line[line.len() - of_memory(line)?..]));
    first.or(unified).map(str::trim_end).filter(|path| path.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hierarchy_that_limits_memory_is_chosen() {
        for (text, expected) in [
            ("0::/docker/1\n", Some("/docker/1")),
            ("12:pids:/x\n5:cpu,memory:/a\n0::/\n", Some("/a")),
            ("", None),
            ("0:", None),
            ("0::", None),
            ("x", None),
            ("1:name=systemd:/a", None),
            ("0::relative", None),
        ] {
            assert_eq!(path(text), expected, "{text:?}");
        }
    }
}
