//! Where it is installed and where it is started: noexec mounts, working directories that cannot
//! be written, libraries for another machine.

use std::os::unix::fs::symlink;
use std::process::Command;

use testkit::{Said, Scratch, bin_dir, flat, repository, shim, sim, skip_here};

const TAKE: &str = "import gpu; gpu.Tensor(1 << 20)";

#[test]
fn a_library_on_a_noexec_mount_is_named_and_nothing_is_run() {
    let scratch = Scratch::new();
    let script = "mount -t tmpfs -o noexec none mounted && cp \"$1\" mounted/libvramtrace.so && \
        VRAMTRACE_LIB=mounted/libvramtrace.so \"$2\" run touch ran";
    std::fs::create_dir(scratch.0.join("mounted")).unwrap();
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "--map-root-user", "sh", "-c", script, "sh"]).arg(shim());
    let said = Said::by(shell.arg(bin_dir().join("vramtrace")).current_dir(&scratch.0));
    if said.err.contains("unshare") || said.err.contains("mount:") {
        skip_here("places: no mount namespace here");
        return;
    }
    let printed = said.ended(2).err;
    assert!(printed.contains("mounted/libvramtrace.so") && printed.contains("noexec"), "{printed}");
    assert!(!scratch.0.join("ran").exists());
}

#[test]
fn where_the_working_directory_cannot_be_written_the_trace_goes_to_tmpdir() {
    let scratch = Scratch::new();
    sim();
    shim();
    let programs = repository().join("docs/programs");
    let mut run = scratch.command(&["run", "--simulate", "python3", "-c", TAKE]);
    run.current_dir("/sys").env("TMPDIR", &scratch.0).env("PYTHONPATH", programs);
    let printed = Said::by(&mut run).ended(0).err;
    for part in ["/sys/vramtrace-", "the trace goes to"] {
        assert!(printed.contains(part), "{printed}");
    }
    let made: Vec<_> = std::fs::read_dir(&scratch.0).unwrap().flatten().collect();
    let run = made.iter().find(|it| it.file_name().to_string_lossy().starts_with("vramtrace-2"));
    assert_eq!(std::fs::read_dir(run.unwrap().path()).unwrap().count(), 1);
    // What was asked for by name is not put elsewhere.
    scratch.fails(2, "run --out /sys/traces true", "choose another directory with --out DIR");
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
    for (name, parts) in [
        ("LD_PRELOAD", &["it is a library for", "this machine is"][..]),
        ("VRAMTRACE_LIB", &["it is a library for"]),
    ] {
        let printed = Said::by(scratch.command(&["doctor"]).env(name, &other)).ended(1).out;
        for part in parts {
            assert!(flat(&printed).contains(part), "{printed}");
        }
    }
    Said::by(scratch.command(&["run", "true"]).env("VRAMTRACE_LIB", &other)).ended(2);
}

#[test]
fn a_compatibility_driver_in_front_of_the_machines_is_the_one_that_is_recorded() {
    let scratch = Scratch::new();
    shim();
    let host = scratch.0.join("usr/lib");
    let compat = scratch.0.join("usr/local/cuda/compat/lib.real");
    for directory in [&host, &compat] {
        std::fs::create_dir_all(directory).unwrap();
        let real = directory.join("libcuda.so.590.44.01");
        std::fs::copy(sim(), &real).unwrap();
        symlink("libcuda.so.590.44.01", directory.join("libcuda.so.1")).unwrap();
        symlink("libcuda.so.1", directory.join("libcuda.so")).unwrap();
    }
    symlink(sim(), host.join("libnvidia-ml.so.1")).unwrap();
    symlink("lib.real", compat.with_file_name("lib")).unwrap();
    let searched = format!("{}:{}", compat.with_file_name("lib").display(), host.display());
    let script = format!(
        "{TAKE}; print([at.split()[-1] for at in open('/proc/self/maps') if 'libcuda' in at][0])"
    );
    let over = |words: &[&str]| {
        let mut command = scratch.command(words);
        command.env("LD_LIBRARY_PATH", &searched).env("VRAMTRACE_SIM", "1x24GiB");
        Said::by(command.env("PYTHONPATH", repository().join("docs/programs"))).ended(0)
    };
    let said = over(&["run", "--out", "out/", "python3", "-c", &script]);
    let opened = said.out.trim();
    assert!(opened.ends_with("compat/lib.real/libcuda.so.590.44.01"), "{opened}");
    for part in ["1 took GPU memory", "no request refused"] {
        assert!(said.err.contains(part), "{}", said.err);
    }
    over(&["doctor"]);
}

/// `pip install .` without Rust fails at once, and says what to run.
#[test]
fn pip_without_rust_is_told_what_to_run() {
    let code = "import sys; sys.modules['maturin'] = sys; \
                sys.path.insert(0, 'packaging'); \
                import pip_build; pip_build.get_requires_for_build_wheel()";
    // The program itself, not a script of a version manager.
    let script = "python=$(python3 -c 'import sys; print(sys.executable)'); \
                  PATH=/nonexistent exec \"$python\" -c \"$0\"";
    let said = Said::by(Command::new("sh").args(["-c", script, code]).current_dir(repository()));
    assert_ne!(said.code, Some(0));
    let message = "cargo was not found. Install it (https://rustup.rs)";
    assert!(said.err.contains(message), "{}", said.err);
}
