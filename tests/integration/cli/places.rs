//! Where it is installed and where it is started: noexec mounts, working directories that cannot
//! be written, environments of `uvx`, libraries for another machine.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use testkit::{Scratch, bin_dir, repository, shim, sim, skip_here, vramtrace};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const TAKE: &str = "import gpu; gpu.Tensor(1 << 20)";

#[test]
fn a_library_on_a_noexec_mount_is_named_and_nothing_is_run() {
    let scratch = Scratch::new();
    let script = "mount -t tmpfs -o noexec none mounted && cp \"$1\" mounted/libvramtrace.so && \
        VRAMTRACE_LIB=mounted/libvramtrace.so \"$2\" run touch ran";
    std::fs::create_dir(scratch.0.join("mounted")).unwrap();
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "--map-root-user", "sh", "-c", script, "sh"]).arg(shim());
    let output = shell.arg(bin_dir().join("vramtrace")).current_dir(&scratch.0).output().unwrap();
    let said = text(&output.stderr);
    if said.contains("unshare") || said.contains("mount:") {
        skip_here("places: no mount namespace here");
        return;
    }
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("mounted/libvramtrace.so") && said.contains("noexec"), "{said}");
    assert!(!scratch.0.join("ran").exists());
}

#[test]
fn where_the_working_directory_cannot_be_written_the_trace_goes_to_tmpdir() {
    let scratch = Scratch::new();
    sim();
    shim();
    let programs = repository().join("docs/programs");
    let mut run = vramtrace();
    run.args(["run", "--simulate", "python3", "-c", TAKE]).current_dir("/sys");
    run.env("TMPDIR", &scratch.0).env("PYTHONPATH", programs).env_remove("LD_PRELOAD");
    let output = run.env_remove("VRAMTRACE_OUT").output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("/sys/vramtrace-") && said.contains("the trace goes to"), "{said}");
    let made: Vec<_> = std::fs::read_dir(&scratch.0).unwrap().flatten().collect();
    let run = made.iter().find(|it| it.file_name().to_string_lossy().starts_with("vramtrace-2"));
    assert_eq!(std::fs::read_dir(run.unwrap().path()).unwrap().count(), 1);
    // What was asked for by name is not put elsewhere.
    let mut named = vramtrace();
    let output = named.args(["run", "--out", "/sys/traces", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--out names another place"));
}

#[test]
fn a_preloaded_library_for_another_machine_is_named() {
    let scratch = Scratch::new();
    let mut bytes = std::fs::read(shim()).unwrap();
    bytes.truncate(4096);
    bytes[18..20].copy_from_slice(&183u16.to_le_bytes());
    if cfg!(target_arch = "aarch64") {
        bytes[18..20].copy_from_slice(&62u16.to_le_bytes());
    }
    let other = scratch.0.join("libvramtrace.so");
    std::fs::write(&other, bytes).unwrap();
    let doctor = |name: &str, value: &Path| {
        let mut doctor = vramtrace();
        let output = doctor.arg("doctor").env(name, value).output().unwrap();
        (output.status.code(), text(&output.stdout))
    };
    let (code, said) = doctor("LD_PRELOAD", &other);
    assert_eq!(code, Some(1), "{said}");
    let flat = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains("it is a library for") && flat.contains("this machine is"), "{said}");
    let (code, said) = doctor("VRAMTRACE_LIB", &other);
    let flat = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(code == Some(1) && flat.contains("it is a library for"), "{said}");
    let mut run = vramtrace();
    let run = run.args(["run", "true"]).env("VRAMTRACE_LIB", &other).output().unwrap();
    assert_eq!(run.status.code(), Some(2), "{}", text(&run.stderr));
}

/// Under `uvx` the first python in PATH is the one of the tool's own environment.
#[test]
fn under_uvx_python_is_the_projects() {
    let scratch = Scratch::new();
    shim();
    let bin = scratch.0.join("cache/uv/archive-v0/Xk2/bin");
    std::fs::create_dir_all(&bin).unwrap();
    for file in ["vramtrace", "libvramtrace.so"] {
        std::fs::copy(bin_dir().join(file), bin.join(file)).unwrap();
    }
    let python = |folder: &Path, name: &str| {
        std::fs::create_dir_all(folder).unwrap();
        let path = folder.join("python");
        std::fs::write(&path, format!("#!/bin/sh\necho {name}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    python(&bin, "tool");
    let project = scratch.0.join("project");
    std::fs::create_dir_all(project.join("src")).unwrap();
    let run = |from: &Path, variable: Option<&Path>| -> Output {
        let mut command = Command::new(bin.join("vramtrace"));
        let path = format!("{}:/usr/bin:/bin", bin.display());
        command.args(["run", "--out", "off", "python", "train.py"]).current_dir(from);
        command.env("PATH", path).env_remove("VIRTUAL_ENV").env_remove("LD_PRELOAD");
        command.envs(variable.map(|venv| ("VIRTUAL_ENV", venv)));
        command.output().unwrap()
    };
    let none = run(&project, None);
    assert_eq!(none.status.code(), Some(2), "{}", text(&none.stdout));
    assert!(text(&none.stderr).contains("uv run --with vramtrace"), "{}", text(&none.stderr));
    python(&project.join(".venv/bin"), "of-the-project");
    let found = run(&project.join("src"), None);
    assert_eq!(text(&found.stdout).trim(), "of-the-project", "{}", text(&found.stderr));
    python(&scratch.0.join("active/bin"), "active");
    let active = run(&project, Some(&scratch.0.join("active")));
    assert_eq!(text(&active.stdout).trim(), "active", "{}", text(&active.stderr));
    // Installed in the project itself, a bare python is what PATH says.
    let inside = project.join(".venv/bin");
    for file in ["vramtrace", "libvramtrace.so"] {
        symlink(bin_dir().join(file), inside.join(file)).unwrap();
    }
    let mut command = Command::new(inside.join("vramtrace"));
    command.args(["run", "--out", "off", "python"]).env_remove("VIRTUAL_ENV");
    let output = command.env("PATH", format!("{}:/usr/bin:/bin", inside.display())).output();
    assert_eq!(text(&output.unwrap().stdout).trim(), "of-the-project");
}

#[test]
fn per_tensor_sets_what_is_not_set_and_says_what_it_costs() {
    let scratch = Scratch::new();
    shim();
    let script = "echo $TF_GPU_ALLOCATOR $XLA_PYTHON_CLIENT_ALLOCATOR";
    let run = |args: &[&str], platform: Option<&str>| {
        let mut run = vramtrace();
        run.args(["run", "--out", "off"]).args(args).args(["sh", "-c", script]);
        for name in ["TF_GPU_ALLOCATOR", "XLA_PYTHON_CLIENT_ALLOCATOR", "LD_PRELOAD"] {
            run.env_remove(name);
        }
        run.envs(platform.map(|value| ("XLA_PYTHON_CLIENT_ALLOCATOR", value)));
        let output = run.current_dir(&scratch.0).output().unwrap();
        (text(&output.stdout).trim().to_string(), text(&output.stderr))
    };
    let (set, said) = run(&["--per-tensor"], None);
    assert_eq!(set, "cuda_malloc_async platform");
    assert!(said.contains("slower") && said.contains("rmm.reinitialize"), "{said}");
    let (set, said) = run(&["--per-tensor"], Some("bfc"));
    assert_eq!(set, "cuda_malloc_async bfc");
    assert!(said.contains("XLA_PYTHON_CLIENT_ALLOCATOR=bfc is set and stays"), "{said}");
    assert_eq!(run(&[], None), (String::new(), String::new()));
}
