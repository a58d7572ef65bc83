//! Whose a running process is: the user's, and by the path of its cgroup that of a pod, a container, a job of Slurm.

use std::ffi::CStr;
use std::os::unix::fs::MetadataExt;

/// The user of a process. `None`: it has ended, or is not visible from this pid namespace.
pub fn user_of(pid: u32) -> Option<u32> {
    Some(std::fs::metadata(format!("/proc/{pid}")).ok()?.uid())
}

/// The name of a user; the number of one without a name.
pub fn user_name(user: u32) -> String {
    let mut text = [0 as libc::c_char; 4096];
    let mut found = std::ptr::null_mut();
    // SAFETY: a struct and a buffer of our own; `found` points to the struct, whose name is in the buffer.
    let name = unsafe {
        let mut entry: libc::passwd = std::mem::zeroed();
        libc::getpwuid_r(user, &mut entry, text.as_mut_ptr(), text.len(), &mut found);
        (!found.is_null()).then(|| CStr::from_ptr(entry.pw_name).to_string_lossy().into_owned())
    };
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| user.to_string())
}

/// Whether this process is in the first pid namespace of the machine, whose pids NVML lists.
pub fn is_in_first_namespace() -> bool {
    // PROC_PID_INIT_INO of the kernel.
    std::fs::metadata("/proc/self/ns/pid").is_ok_and(|about| about.ino() == 0xeffffffc)
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
    path.rsplit('/').find_map(|part| {
        let id = part.trim_end_matches(".scope").rsplit(['-', ':']).next()?;
        let is_one = id.len() == ID && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_one.then(|| &id[..SHOWN])
    })
}

/// The number of a job of Slurm.
pub fn slurm_job(path: &str) -> Option<&str> {
    let number = path.split('/').find_map(|part| part.strip_prefix("job_"))?;
    (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vramtrace_format::cgroup;

    #[test]
    fn users_have_their_name_or_their_number() {
        assert_eq!(user_name(0), "root");
        assert_eq!(user_name(3_999_999_999), "3999999999");
        assert_eq!(user_of(std::process::id()), Some(super::super::process::user()));
        assert_eq!(user_of(u32::MAX), None);
    }

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
            let path = cgroup::path(&text).unwrap();
            assert_eq!(pod(path).as_deref(), Some(uid), "{text}");
            assert_eq!(container(path), Some(&ID[..12]), "{text}");
            assert_eq!(slurm_job(path), None);
        }
        for text in [
            format!("0::/docker/{ID}"),
            format!("0::/system.slice/docker-{ID}.scope"),
            format!("0::/machine.slice/libpod-{ID}.scope/container"),
        ] {
            let path = cgroup::path(&text).unwrap();
            assert_eq!((pod(path), container(path)), (None, Some(&ID[..12])), "{text}");
        }
        let step = "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_3\n";
        assert_eq!(cgroup::path(step).and_then(slurm_job), Some("4711"));
    }

    #[test]
    fn other_paths_tell_nothing() {
        for text in ["0::/", "0::/user.slice/user-1000.slice/session-2.scope", "0::/podman/podx"] {
            let path = cgroup::path(text).unwrap();
            assert_eq!((pod(path), container(path), slurm_job(path)), (None, None, None), "{text}");
        }
        for path in
            ["/podé/é", "/pod", "/job_", "/job_1a", "/-pod", "/pod_", ":::", "/docker-é.scope"]
        {
            assert_eq!((pod(path), container(path), slurm_job(path)), (None, None, None), "{path}");
        }
    }
}
