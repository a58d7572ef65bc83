//! What the machine gives its users of the GPUs: device nodes, and the versions of kernel module, libraries and runtime.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

use super::{json, version};
use crate::driver::runtime::{self, Runtime};
use vramtrace_reader::files;

#[derive(Debug, Serialize)]
pub struct Machine {
    /// Windows runs this Linux: there is one node for all GPUs, and NVML knows little.
    #[serde(rename = "wsl")]
    pub is_wsl: bool,
    pub nodes: Vec<DeviceNode>,
    /// Driver version of the kernel module. `None`: it is not loaded.
    pub kernel_module: Option<String>,
    #[serde(serialize_with = "runtime")]
    pub runtime: Option<Runtime>,
}

#[derive(Clone, Debug, Serialize)]
pub struct DeviceNode {
    #[serde(serialize_with = "json::path")]
    pub path: PathBuf,
    pub access: Access,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    Granted,
    /// This user may not read and write it.
    Denied,
    Missing,
}

impl Access {
    pub fn name(self) -> &'static str {
        match self {
            Access::Granted => "granted",
            Access::Denied => "denied",
            Access::Missing => "missing",
        }
    }
}

fn runtime<S: Serializer>(found: &Option<Runtime>, to: S) -> Result<S::Ok, S::Error> {
    let facts = |found: &Runtime| serde_json::json!({ "library": found.library, "cuda_version": version(found.version) });
    found.as_ref().map(facts).serialize(to)
}

/// The node of WSL2.
const OF_WSL: &str = "dev/dxg";
/// Nodes that every program needs, beside that of its GPU.
const CONTROL: [&str; 2] = ["dev/nvidiactl", "dev/nvidia-uvm"];
/// The name of a GPU's node, before its number.
const GPU: &str = "nvidia";

pub fn look() -> Machine {
    let version = files::read_kernel("/proc/driver/nvidia/version").ok();
    let version = version.and_then(|text| module_version(&String::from_utf8_lossy(&text)));
    let machine = below(Path::new("/"), &may_use);
    Machine { kernel_module: version, runtime: runtime::find(), ..machine }
}

/// As [`look`], of another root, without versions.
fn below(root: &Path, may_use: &dyn Fn(&Path) -> bool) -> Machine {
    let is_wsl = root.join(OF_WSL).exists();
    let node = |path: PathBuf| {
        let access = match (path.exists(), may_use(&path)) {
            (false, _) => Access::Missing,
            (true, false) => Access::Denied,
            (true, true) => Access::Granted,
        };
        DeviceNode { path, access }
    };
    let paths = match is_wsl {
        true => vec![root.join(OF_WSL)],
        false => {
            let control = CONTROL.iter().map(|name| root.join(name));
            control.chain(gpu_nodes(&root.join("dev"))).collect()
        }
    };
    Machine {
        is_wsl,
        nodes: paths.into_iter().map(node).collect(),
        kernel_module: None,
        runtime: None,
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

impl Machine {
    /// What is wrong with the nodes where the driver cannot be used, a line each.
    pub fn node_problems(&self) -> Vec<String> {
        let all_missing = self.nodes.iter().all(|node| node.access == Access::Missing);
        if all_missing {
            let first = self.nodes.first().map(|node| node.path.display().to_string());
            return vec![format!(
                "{} is not there: no NVIDIA driver is loaded, or the container was started without GPUs \
                 (docker run --gpus all)",
                first.unwrap_or_default()
            )];
        }
        let problem = |node: &DeviceNode| match node.access {
            Access::Granted => None,
            Access::Denied => Some(format!(
                "{} cannot be read and written by this user: its group (often video or render) may",
                node.path.display()
            )),
            Access::Missing => Some(format!(
                "{} is not there: `nvidia-modprobe -u -c 0` makes it, as root",
                node.path.display()
            )),
        };
        self.nodes.iter().filter_map(problem).collect()
    }

    /// The kernel module and the libraries are of different versions. `library`: NVML's, if it answers.
    pub fn version_mismatch(&self, library: Option<&str>) -> Option<String> {
        let module = self.kernel_module.as_deref()?;
        let library = library.filter(|library| *library != module)?;
        Some(format!(
            "the kernel module is of driver {module} and the libraries are of {library}: restart the \
             machine, or load the module again; a container needs the libraries of its host"
        ))
    }

    /// The runtime needs a newer driver. `driver`: the CUDA version of the driver.
    pub fn runtime_too_new(&self, driver: u32) -> Option<String> {
        let Runtime { library, version } = self.runtime.as_ref()?;
        // Within a major version a driver runs newer runtimes.
        (version / 1000 > driver / 1000).then(|| {
            format!(
                "{library} is of CUDA {} and the driver is for CUDA {} at most: programs that load it \
                 fail with cudaErrorInsufficientDriver (35)",
                super::version(*version),
                super::version(driver)
            )
        })
    }
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
        let machine = below(root.path(), &|path| denied.is_empty() || !path.ends_with(denied));
        (root, machine)
    }

    #[test]
    fn nodes_that_are_missing_or_closed_are_named() {
        let (root, found) = machine(&[], "");
        assert_eq!((found.is_wsl, &found.kernel_module), (false, &None));
        let [problem] = &found.node_problems()[..] else { panic!("{found:?}") };
        let first = root.path().join("dev/nvidiactl").display().to_string();
        assert!(
            problem.starts_with(&format!("{first} is not there: no NVIDIA driver")),
            "{problem}"
        );

        let nodes = ["dev/nvidiactl", "dev/nvidia1", "dev/nvidia12", "dev/nvidia-modeset"];
        let (_root, found) = machine(&nodes, "dev/nvidia12");
        let access: Vec<Access> = found.nodes.iter().map(|node| node.access).collect();
        assert_eq!(access, [Access::Granted, Access::Missing, Access::Granted, Access::Denied]);
        let [uvm, closed] = &found.node_problems()[..] else { panic!("{found:?}") };
        assert!(uvm.contains("dev/nvidia-uvm is not there: `nvidia-modprobe"), "{uvm}");
        assert!(
            closed.contains("dev/nvidia12 cannot be read and written by this user"),
            "{closed}"
        );

        let all = ["dev/nvidiactl", "dev/nvidia0", "dev/nvidia-uvm"];
        assert_eq!(machine(&all, "").1.node_problems(), [""; 0]);
    }

    #[test]
    fn wsl_has_one_node() {
        let (_root, found) = machine(&["dev/dxg"], "dev/dxg");
        assert!(found.is_wsl);
        assert!(found.node_problems()[0].contains("dev/dxg cannot be read"), "{found:?}");
        assert_eq!(machine(&["dev/dxg"], "").1.node_problems(), [""; 0]);
    }

    #[test]
    fn versions_that_do_not_fit_are_said() {
        let (_root, mut found) = machine(&[], "");
        assert_eq!(found.version_mismatch(Some("550.90.07")), None, "no module is loaded");
        found.kernel_module = module_version(
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n\
             GCC version:  gcc version 12.2.0\n",
        );
        let says = found.version_mismatch(Some("550.90.07")).unwrap();
        assert!(says.contains("driver 550.54.15 and the libraries are of 550.90.07"), "{says}");
        assert_eq!(found.version_mismatch(Some("550.54.15")), None);
        assert_eq!(found.version_mismatch(None), None);
        found.runtime = Some(Runtime { library: "libcudart.so.13".into(), version: 13_000 });
        let says = found.runtime_too_new(12_040).unwrap();
        assert!(
            says.starts_with("libcudart.so.13 is of CUDA 13.0 and the driver is for CUDA 12.4"),
            "{says}"
        );
        assert_eq!(found.runtime_too_new(13_000), None);
        assert_eq!(found.runtime_too_new(13_020), None);
    }
}
