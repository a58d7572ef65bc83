//! The process of a trace.

use vramtrace_format::{Header, proc};

use crate::files;

/// Whether the process of the trace runs on this host. Pids are reused, so its start time must match, too.
pub(super) fn is_running(header: &Header) -> bool {
    let is_here = header.pid != 0 && is_this_host(header);
    is_here && proc::is_alive(header.pid, header.process_start_ticks)
}

/// Whether the trace was recorded on this host, by the host's name.
pub fn is_this_host(header: &Header) -> bool {
    header.host == host_name()
}

/// The name of this host.
pub fn host_name() -> String {
    files::kernel_text("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_string()
}
