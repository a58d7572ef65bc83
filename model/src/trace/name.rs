//! What people call the process of a trace.

use std::path::Path;

use vramtrace_format::Header;

/// `rank 2`, or `pid 4711`; of what another tool recorded, which has no pid, the file's name.
pub fn process_name(header: &Header, path: &Path) -> String {
    match (header.rank, header.pid) {
        (Some(rank), _) => format!("rank {rank}"),
        (None, 0) => path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
        (None, pid) => format!("pid {pid}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_pids_and_files() {
        let name = |rank, pid| {
            let header = Header { rank, pid, ..Header::default() };
            process_name(&header, Path::new("runs/snapshot.pickle"))
        };
        assert_eq!(name(Some(2), 4711), "rank 2");
        assert_eq!(name(None, 4711), "pid 4711");
        assert_eq!(name(None, 0), "snapshot.pickle");
    }
}
