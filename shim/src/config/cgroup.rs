//! The limit of device memory that the kernel's cgroup sets (v2, controller dmem).

use crate::runtime::private_table::{self, Table};
use std::ffi::CString;

/// What `dmem.max` of this process's cgroup says, or of the nearest one above that limits anything.
/// `None`: nothing is limited, or there is no such file.
pub fn device_memory_limit() -> Option<String> {
    let find = |table: &Table| {
        let groups = String::from_utf8(table.read(c"/proc/self/cgroup").ok()?).ok()?;
        limit_below(table, "/sys/fs/cgroup", &groups)
    };
    private_table::run(find).ok().flatten()
}

fn limit_below(table: &Table, root: &str, groups: &str) -> Option<String> {
    let mut path = groups.lines().find_map(|line| line.strip_prefix("0::"))?.trim_end();
    loop {
        let file = format!("{root}{}/dmem.max", path.trim_end_matches('/'));
        let text = CString::new(file).ok().and_then(|file| table.read(&file).ok());
        let text = text.and_then(|text| String::from_utf8(text).ok());
        let limited = text.and_then(|text| limited(&text));
        if limited.is_some() || path.trim_matches('/').is_empty() {
            return limited;
        }
        path = &path[..path.trim_end_matches('/').rfind('/')?];
    }
}

/// The regions that have a limit, each `REGION BYTES`.
fn limited(text: &str) -> Option<String> {
    let has =
        |line: &&str| line.rsplit(' ').next().is_some_and(|bytes| bytes.parse::<u64>().is_ok());
    let lines: Vec<&str> = text.lines().filter(has).collect();
    (!lines.is_empty()).then(|| lines.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_limit_counts() {
        let root = std::env::temp_dir().join(format!("dmem-{}", std::process::id()));
        let inner = root.join("slice/job");
        std::fs::create_dir_all(&inner).unwrap();
        let write = |path: &str, text: &str| std::fs::write(root.join(path), text).unwrap();
        let groups = "1:cpu:/x\n0::/slice/job\n";
        let find = |table: &Table| limit_below(table, root.to_str().unwrap(), groups);
        let found = || private_table::run(find).unwrap();
        assert_eq!(found(), None);
        write("slice/dmem.max", "drm/0000:03:00.0/vram0 8514437120\ndrm/0000:04:00.0/vram0 max\n");
        write("slice/job/dmem.max", "drm/0000:03:00.0/vram0 max\n");
        assert_eq!(found().as_deref(), Some("drm/0000:03:00.0/vram0 8514437120"));
        write("slice/job/dmem.max", "drm/0000:03:00.0/vram0 4096\n");
        assert_eq!(found().as_deref(), Some("drm/0000:03:00.0/vram0 4096"));
        std::fs::remove_dir_all(&root).unwrap();
    }
}
