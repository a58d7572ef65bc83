//! What the path of a process's cgroup tells: its pod, its container, its job of Slurm. And the variables of batch
//! systems that tell the job.

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

/// The uid of a Kubernetes pod, with `-` between its groups. systemd's names have `_` in their place.
pub fn pod(path: &str) -> Option<String> {
    path.split('/').find_map(|part| {
        let at = part.find("pod").filter(|_| part.starts_with("pod") || part.contains("-pod"))?;
        let at = part.rfind("-pod").map_or(at, |at| at + 1);
        let name = part[at + 3..].split(['.', ':']).next()?.replace('_', "-");
        let is_uid = matches!(name.len(), 32 | 36)
            && name.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        is_uid.then_some(name)
    })
}

/// The first 12 digits of a container's id, as `docker ps` and `crictl ps` show them.
pub fn container(path: &str) -> Option<&str> {
    const ID: usize = 64;
    const SHOWN: usize = 12;
    let last = path.rsplit('/').find(|part| {
        let id = part.trim_end_matches(".scope").rsplit(['-', ':']).next().unwrap_or_default();
        id.len() == ID && id.bytes().all(|byte| byte.is_ascii_hexdigit())
    })?;
    let id = last.trim_end_matches(".scope").rsplit(['-', ':']).next()?;
    id.get(..SHOWN)
}

/// The number of a job of Slurm.
pub fn slurm_job(path: &str) -> Option<&str> {
    let number = path.split('/').find_map(|part| part.strip_prefix("job_"))?;
    (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "8f0e1d2c3b4a59687786a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0";

    #[test]
    fn pods_and_containers_of_each_runtime() {
        let uid = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9";
        let low = uid.replace('-', "_");
        for text in [
            format!("0::/kubepods/burstable/pod{uid}/{ID}\n"),
            format!(
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{low}.slice/\
                 cri-containerd-{ID}.scope\n"
            ),
            format!("0::/kubepods.slice/kubepods-pod{low}.slice/crio-{ID}.scope/sub\n"),
            format!(
                "12:pids:/x\n5:cpu,memory:/kubepods-besteffort-pod{low}.slice:cri-containerd:{ID}\n0::/\n"
            ),
        ] {
            let path = path(&text).unwrap();
            assert_eq!(pod(path).as_deref(), Some(uid), "{text}");
            assert_eq!(container(path), Some(&ID[..12]), "{text}");
            assert_eq!(slurm_job(path), None);
        }
        for text in [
            format!("0::/docker/{ID}"),
            format!("0::/system.slice/docker-{ID}.scope"),
            format!("0::/machine.slice/libpod-{ID}.scope/container"),
        ] {
            let path = path(&text).unwrap();
            assert_eq!((pod(path), container(path)), (None, Some(&ID[..12])), "{text}");
        }
        let step = "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_3\n";
        assert_eq!(path(step).and_then(slurm_job), Some("4711"));
    }

    #[test]
    fn other_paths_tell_nothing() {
        for text in ["0::/", "0::/user.slice/user-1000.slice/session-2.scope", "0::/podman/podx"] {
            let path = path(text).unwrap();
            assert_eq!((pod(path), container(path), slurm_job(path)), (None, None, None), "{text}");
        }
        for text in ["", "0:", "0::", "x", "1:name=systemd:/a", "0::relative"] {
            assert_eq!(path(text), None, "{text:?}");
        }
        for path in
            ["/podé/é", "/pod", "/job_", "/job_1a", "/-pod", "/pod_", ":::", "/docker-é.scope"]
        {
            assert_eq!((pod(path), container(path), slurm_job(path)), (None, None, None), "{path}");
        }
    }
}
