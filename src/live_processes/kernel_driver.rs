//! Processes that call the kernel driver themselves, and pass libcuda by: nothing of them is recorded or capped. tinygrad's
//! NV backend does so; so do Vulkan and OpenGL.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use vramtrace_reader::files;

/// What a message says of such a process.
pub const UNRECORDED: &str = "calls the kernel driver, not libcuda (tinygrad's NV backend, Vulkan): not recorded, not capped";

/// Paths of the files that a process has mapped, each once; none if they cannot be read.
pub fn mapped_files(pid: u32) -> Vec<PathBuf> {
    let Ok(maps) = files::read_kernel(format!("/proc/{pid}/maps")) else { return Vec::new() };
    let mut files: Vec<PathBuf> = Vec::new();
    for line in maps.split(|byte| *byte == b'\n') {
        let Some(slash) = line.iter().position(|byte| *byte == b'/') else { continue };
        let path = Path::new(OsStr::from_bytes(&line[slash..]));
        if files.last().is_none_or(|last| last != path) {
            files.push(path.into());
        }
    }
    files.sort_unstable();
    files.dedup();
    files
}

/// Whether it does. NVML opens /dev/nvidiactl too, but never the driver of memory, nvidia-uvm.
pub fn is_called_by(pid: u32, mapped: &[PathBuf]) -> bool {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    calls(open.filter_map(|entry| std::fs::read_link(entry.path()).ok()), mapped)
}

fn calls(open: impl Iterator<Item = PathBuf>, mapped: &[PathBuf]) -> bool {
    let name = |path: &PathBuf| path.file_name().and_then(OsStr::to_str).map(String::from);
    let libcuda = mapped.iter().filter_map(name).any(|name| name.starts_with("libcuda.so"));
    let (mut control, mut memory) = (false, false);
    for path in open {
        control |= path == Path::new("/dev/nvidiactl");
        memory |= path == Path::new("/dev/nvidia-uvm");
    }
    control && memory && !libcuda
}

/// The variable by which tinygrad is told to use its NV backend: `NV=1`, or `DEV=NV`. `value`: of a variable.
pub fn asked_by(value: impl Fn(&str) -> Option<String>) -> Option<String> {
    let is_set = |value: &String| !matches!(value.as_str(), "" | "0");
    if let Some(value) = value("NV").filter(is_set) {
        return Some(format!("NV={value}"));
    }
    let device = value("DEV")?;
    let backend = device.split(':').next().unwrap_or_default();
    backend.eq_ignore_ascii_case("NV").then(|| format!("DEV={device}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_both_nodes_open_and_no_libcuda() {
        let paths = |all: &[&str]| all.iter().map(PathBuf::from).collect::<Vec<_>>();
        let nodes = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"];
        let calls = |open: &[&str], mapped: &[&str]| calls(paths(open).into_iter(), &paths(mapped));
        assert!(calls(&nodes, &["/usr/lib/libc.so.6"]));
        assert!(!calls(&nodes, &["/usr/lib/libcuda.so.580.1"]), "libcuda opens them");
        assert!(!calls(&["/dev/nvidiactl", "/dev/nvidia0"], &[]), "NVML alone");
        assert!(!calls(&[], &[]));
        assert!(!is_called_by(std::process::id(), &[]));
        assert!(mapped_files(std::process::id()).contains(&std::env::current_exe().unwrap()));
    }

    #[test]
    fn variables_of_the_nv_backend() {
        let asked = |name: &'static str, text: &'static str| {
            asked_by(move |of| (of == name).then(|| text.to_string()))
        };
        assert_eq!(asked("NV", "1").as_deref(), Some("NV=1"));
        assert_eq!(asked("DEV", "nv:0").as_deref(), Some("DEV=nv:0"));
        for (name, value) in [("NV", "0"), ("NV", ""), ("DEV", "CUDA"), ("CUDA", "1")] {
            assert_eq!(asked(name, value), None, "{name}={value}");
        }
    }
}
