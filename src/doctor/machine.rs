//! What the machine gives its users of the GPUs: device nodes, and the version of the kernel module.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use vramtrace_reader::files;

use super::Check;

#[derive(Debug)]
pub struct Machine {
    /// Windows runs this Linux: there is one node for all GPUs, and NVML knows little.
    pub is_wsl: bool,
    nodes: Vec<(PathBuf, Access)>,
    /// Driver version of the kernel module. `None`: it is not loaded.
    kernel_module: Option<String>,
}

/// To a device node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Granted,
    /// This user may not read and write it.
    Denied,
    Missing,
}

/// The node of WSL2.
const OF_WSL: &str = "dev/dxg";
/// Nodes that every program needs, beside that of its GPU.
const CONTROL: [&str; 2] = ["dev/nvidiactl", "dev/nvidia-uvm"];
/// The name of a GPU's node, before its number.
const GPU: &str = "nvidia";

impl Machine {
    pub fn look() -> Machine {
        let version = files::kernel_text("/proc/driver/nvidia/version").unwrap_or_default();
        Machine::below(Path::new("/"), &may_use, &version)
    }

    fn below(root: &Path, may_use: &dyn Fn(&Path) -> bool, version: &str) -> Machine {
        let is_wsl = root.join(OF_WSL).exists();
        let access = |path: PathBuf| match (path.exists(), may_use(&path)) {
            (false, _) => (path, Access::Missing),
            (true, false) => (path, Access::Denied),
            (true, true) => (path, Access::Granted),
        };
        let nodes: Vec<PathBuf> = match is_wsl {
            true => vec![root.join(OF_WSL)],
            false => {
                let control = CONTROL.iter().map(|name| root.join(name));
                control.chain(gpu_nodes(&root.join("dev"))).collect()
            }
        };
        let nodes = nodes.into_iter().map(access).collect();
        Machine { is_wsl, nodes, kernel_module: module_version(version) }
    }

    /// A node that this user may not use.
    pub fn denied(&self) -> Option<&Path> {
        let denied = self.nodes.iter().find(|(_, access)| *access == Access::Denied);
        denied.map(|(path, _)| &**path)
    }

    /// What is wrong with the nodes where the driver cannot be used.
    pub fn node_problems(&self) -> Vec<Check> {
        let all_missing = self.nodes.iter().all(|(_, access)| *access == Access::Missing);
        let problem = |(path, access): &(PathBuf, Access)| {
            let path = path.display();
            let text = match access {
                Access::Granted => return None,
                Access::Missing if all_missing => format!(
                    "{path} is not there: no NVIDIA driver is loaded, or the container was started without GPUs \
                     (docker run --gpus all)"
                ),
                Access::Denied => format!(
                    "{path} cannot be read and written by this user: its group (often video or render) may"
                ),
                Access::Missing => {
                    format!("{path} is not there: `nvidia-modprobe -u -c 0` makes it, as root")
                }
            };
            Some(Check::problem("node", text))
        };
        let shown = if all_missing { 1 } else { usize::MAX };
        self.nodes.iter().filter_map(problem).take(shown).collect()
    }

    /// The kernel module and the libraries are of different versions. `library`: NVML's.
    pub fn version_mismatch(&self, library: &str) -> Option<Check> {
        let module = self.kernel_module.as_deref().filter(|module| *module != library)?;
        let text = format!(
            "the kernel module is of driver {module} and the libraries are of {library}: restart the \
             machine, or load the module again; a container needs the libraries of its host"
        );
        Some(Check::problem("driver", text))
    }
}

/// The nodes of all GPUs; of none, the first one's.
fn gpu_nodes(dev: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dev).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut numbers: Vec<u32> =
        names.filter_map(|name| name.strip_prefix(GPU)?.parse().ok()).collect();
    numbers.sort_unstable();
    if numbers.is_empty() {
        numbers.push(0);
    }
    numbers.iter().map(|number| dev.join(format!("{GPU}{number}"))).collect()
}

fn may_use(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: a string that ends in 0. The node is not opened: that may wake the GPU.
    unsafe { libc::access(path.as_ptr(), libc::R_OK | libc::W_OK) == 0 }
}

/// `550.54.15` of `NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 ...`.
fn module_version(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    let is_version =
        |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    line.split_whitespace().find(is_version).map(str::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[&str], denied: &str) -> (tempfile::TempDir, Machine) {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let may_use = |path: &Path| denied.is_empty() || !path.ends_with(denied);
        let machine = Machine::below(root.path(), &may_use, "");
        (root, machine)
    }

    fn problems(machine: &Machine) -> Vec<String> {
        machine.node_problems().into_iter().map(|check| check.message).collect()
    }

    #[test]
    fn nodes_that_are_missing_or_closed_are_named() {
        let (root, found) = machine(&[], "");
        assert_eq!((found.is_wsl, &found.kernel_module), (false, &None));
        let [problem] = &problems(&found)[..] else { panic!("{found:?}") };
        let first = root.path().join("dev/nvidiactl").display().to_string();
        assert!(
            problem.starts_with(&format!("{first} is not there: no NVIDIA driver")),
            "{problem}"
        );

        let nodes = ["dev/nvidiactl", "dev/nvidia1", "dev/nvidia12", "dev/nvidia-modeset"];
        let (_root, found) = machine(&nodes, "dev/nvidia12");
        let access: Vec<Access> = found.nodes.iter().map(|(_, access)| *access).collect();
        assert_eq!(access, [Access::Granted, Access::Missing, Access::Granted, Access::Denied]);
        assert!(found.denied().unwrap().ends_with("dev/nvidia12"));
        let [uvm, closed] = &problems(&found)[..] else { panic!("{found:?}") };
        assert!(uvm.contains("dev/nvidia-uvm is not there: `nvidia-modprobe"), "{uvm}");
        assert!(
            closed.contains("dev/nvidia12 cannot be read and written by this user"),
            "{closed}"
        );

        let all = ["dev/nvidiactl", "dev/nvidia0", "dev/nvidia-uvm"];
        assert_eq!(problems(&machine(&all, "").1), [""; 0]);
    }

    #[test]
    fn wsl_has_one_node() {
        let (_root, found) = machine(&["dev/dxg"], "dev/dxg");
        assert!(found.is_wsl);
        assert!(problems(&found)[0].contains("dev/dxg cannot be read"), "{found:?}");
        assert_eq!(problems(&machine(&["dev/dxg"], "").1), [""; 0]);
    }

    #[test]
    fn versions_that_do_not_fit_are_said() {
        let (_root, mut found) = machine(&[], "");
        assert!(found.version_mismatch("550.90.07").is_none(), "no module is loaded");
        found.kernel_module = module_version(
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n\
             GCC version:  gcc version 12.2.0\n",
        );
        let says = found.version_mismatch("550.90.07").unwrap().message;
        assert!(says.contains("driver 550.54.15 and the libraries are of 550.90.07"), "{says}");
        assert!(found.version_mismatch("550.54.15").is_none());
    }
}
