//! Programs that are built with a sanitizer end as without us: its runtime starts before the
//! program, intercepts the C library, and looks its own functions up through our `dlsym`.

use std::path::PathBuf;
use std::process::Command;
use testkit::{Program, Setup};

/// Whether this machine's compiler has the sanitizer's runtime.
pub fn has(runtime: &str) -> bool {
    let asked = Command::new("gcc").arg(format!("-print-file-name={runtime}")).output();
    asked.is_ok_and(|answer| String::from_utf8_lossy(&answer.stdout).starts_with('/'))
}

/// A directory with a driver that maps nothing.
pub fn plain_driver() -> PathBuf {
    let flags = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"];
    let library = Program::compiled("gcc", "plain_driver.c", &flags).0;
    let directory = library.with_extension("d");
    std::fs::create_dir_all(&directory).unwrap();
    let _ = std::os::unix::fs::symlink(library, directory.join("libcuda.so.1"));
    directory
}

/// Built as C and as C++, run without and with calls of the driver.
#[track_caller]
fn same_as_bare(sanitizer: &str) {
    if !has(&format!("lib{}.so", &sanitizer.replace("thread", "tsan").replace("address", "asan"))) {
        return testkit::skip(&format!("sanitizers: gcc has no {sanitizer} sanitizer"));
    }
    // The second compiles the same file as C++.
    for (compiler, language) in [("gcc", "-DIN_C"), ("g++", "-DIN_CPP")] {
        let option = format!("-fsanitize={}", sanitizer.replace("ubsan", "undefined"));
        let flags = ["-g", language, &option, "-ldl", "-lpthread"];
        let program = Program::compiled(compiler, "sanitized.c", &flags);
        for use_of in ["none", "cuda"] {
            let mut setup = Setup::simulated()
                .arg(use_of)
                .env("ASAN_OPTIONS", "verify_asan_link_order=0:detect_leaks=0");
            if sanitizer == "thread" {
                // It keeps the address space where the simulated driver's memory lies.
                setup = setup.env("LD_LIBRARY_PATH", plain_driver());
            }
            let bare = program.run(setup.clone());
            let ours = program.run(setup.preload());
            let what = format!("{sanitizer} {language} {use_of}");
            let ended = (ours.status, &ours.stdout, ours.traces().len());
            assert_eq!(ended, (3, &bare.stdout, usize::from(use_of == "cuda")), "{what}");
            // The order in which AddressSanitizer wants the libraries is the one thing to say.
            let order = "vramtrace: AddressSanitizer is loaded after libvramtrace.so: put libasan first in LD_PRELOAD\n";
            assert_eq!(ours.stderr.replace(order, ""), bare.stderr, "{what}");
        }
    }
}

#[test]
fn programs_with_a_sanitizer_run_as_without_us() {
    ["thread", "address", "ubsan"].into_iter().for_each(same_as_bare);
}

/// Valgrind answers some system calls itself. Given an address without memory it crashes, where the
/// kernel would answer EFAULT.
#[test]
fn programs_below_valgrind_run_as_without_us() {
    let has_valgrind = Command::new("valgrind").arg("--version").output().is_ok();
    if !has_valgrind {
        return testkit::skip("sanitizers: no valgrind");
    }
    let program = Program::c_with("sanitized", &["-DIN_C"]);
    let setup = Setup::simulated().arg("cuda").through(&["valgrind", "-q", "--tool=none"]);
    let ours = program.as_bare(setup, Setup::preload).quiet();
    assert_eq!((ours.status, ours.traces().len()), (3, 1));
}
