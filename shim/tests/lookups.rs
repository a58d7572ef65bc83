//! Every way to look up the driver hands out our function, each call reaches the driver once, and what is
//! not in the table stays as it is.

mod support;

use std::ffi::OsStr;
use std::process::Command;

use support::{Scratch, command, shim, text};

fn through(lookup: &str) -> String {
    let dir = Scratch::new();
    dir.driver();
    let program = dir.compile("lookups", "lookups", &["-ldl"]);
    text(&preloaded(program, &dir).arg(lookup).output().unwrap())
}

fn preloaded(program: impl AsRef<OsStr>, dir: &Scratch) -> Command {
    let mut command = command(program, &dir.0);
    command.env("LD_PRELOAD", shim()).env("VRAMTRACE_OUT", "off");
    command
}

#[track_caller]
fn expect(lookup: &str, lines: &[&str]) {
    pretty(&through(lookup), &output_of(lines));
}

fn output_of(lines: &[&str]) -> String {
    format!("{}\nexit status: 0\n", lines.join("\n"))
}

#[track_caller]
fn pretty(got: &str, expected: &str) {
    assert!(got == expected, "got\n{got}\nexpected\n{expected}");
}

const ONCE: &str = "result 0, pointer set, reached 1, errno 77";

#[test]
fn dlsym_with_a_handle_finds_our_functions() {
    expect(
        "dlsym",
        &[
            "cuMemAlloc_v2 libvramtrace.so:cuMemAlloc_v2",
            "again libvramtrace.so:cuMemAlloc_v2",
            "not ours libcuda.so.1:cuFuncSetSharedMemConfig",
            "not there nothing (error)",
            "prefix nothing (error)",
            "empty nothing (error)",
            ONCE,
            ONCE,
            "the driver's own libcuda.so.1:cuDriverGetVersion",
        ],
    );
}

#[test]
fn lookups_in_the_global_scope_find_our_functions() {
    expect(
        "global",
        &[
            "default libvramtrace.so:cuMemAlloc_v2",
            "next libvramtrace.so:cuMemAlloc_v2",
            "program libvramtrace.so:cuMemAlloc_v2",
        ],
    );
}

#[test]
fn nothing_is_found_where_there_is_no_driver() {
    // One function with two names: which one dladdr finds differs.
    let got = through("none").replace("libc.so.6:__libc_malloc", "libc.so.6:malloc");
    pretty(
        &got,
        &output_of(&[
            "default nothing (error)",
            "next nothing (error)",
            "program nothing (error)",
            "versioned nothing (error)",
            "nvml nothing (error)",
            "close by nothing (error)",
            "malloc libc.so.6:malloc",
            "libm nothing",
        ]),
    );
}

#[test]
fn a_weak_reference_without_a_driver_says_no_device() {
    let dir = Scratch::new();
    let program = dir.compile("lookups", "lookups", &["-ldl"]);
    let output = command(program, &dir.0).arg("weak").env("LD_PRELOAD", shim()).output().unwrap();
    if output.stdout.starts_with(b"cuInit 0") {
        testkit::skip_here("lookups: this machine has a driver");
        return;
    }
    pretty(&text(&output), "cuInit 100\nnvml 12\nexit status: 0\n");
}

#[test]
fn dlsym_found_through_dlsym_finds_our_functions() {
    let got = through("dlsym-of-dlsym");
    for line in got.lines().filter(|line| line.contains("cuMemAlloc") || line.starts_with("old")) {
        assert!(line.ends_with("libvramtrace.so:cuMemAlloc_v2"), "{got}");
    }
    // Before glibc 2.34 dlsym is in libdl.so.2.
    let libc =
        if testkit::glibc_minor() < 34 { "has none" } else { "libvramtrace.so:cuMemAlloc_v2" };
    assert!(got.contains(&format!("libc.so.6 {libc}\n")), "{got}");
    assert!(got.contains("next libvramtrace.so:cuMemAlloc_v2"), "{got}");
    assert!(got.ends_with("exit status: 0\n"), "{got}");
}

#[test]
fn get_proc_address_of_both_versions_finds_our_functions() {
    let ours = |name: &str| format!("libvramtrace.so:{name}");
    let both = |ask: &str, name: String, status: &str| format!("{ask} 0 {name} 0 {name} {status}");
    let none = |ask: &str, status: &str| format!("{ask} 500 nothing 500 nothing {status}");
    let lines = [
        format!("v1 {}", ours("cuGetProcAddress")),
        format!("v2 {}", ours("cuGetProcAddress_v2")),
        both("cuMemAlloc/2000/0", ours("cuMemAlloc"), "-7"),
        both("cuMemAlloc/3020/0", ours("cuMemAlloc_v2"), "0"),
        both("cuMemAlloc/13000/2", ours("cuMemAlloc_v2"), "-7"),
        none("cuMemAllocAsync/11000/0", "1"),
        both("cuMemAllocAsync/11020/0", ours("cuMemAllocAsync"), "-7"),
        both("cuMemAllocAsync/12000/1", ours("cuMemAllocAsync"), "0"),
        both("cuMemAllocAsync/13000/2", ours("cuMemAllocAsync_ptsz"), "-7"),
        both("cuGetProcAddress/11030/0", ours("cuGetProcAddress"), "0"),
        both("cuGetProcAddress/12000/0", ours("cuGetProcAddress_v2"), "-7"),
        both(
            "cuFuncSetSharedMemConfig/12000/0",
            "libcuda.so.1:cuFuncSetSharedMemConfig".into(),
            "0",
        ),
        both("cuMemAllocFuture/13000/0", "libcuda.so.1:cuMemAllocFuture".into(), "-7"),
        none("/0/0", "1"),
        ONCE.into(),
        ONCE.into(),
    ];
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    expect("proc", &lines);
}

#[test]
fn a_program_linked_against_the_driver_calls_our_functions() {
    let dir = Scratch::new();
    dir.driver();
    let program = dir.compile("linked", "linked", &["-L.", "-l:libcuda.so.1"]);
    let bare = command(&program, &dir.0).output().unwrap();
    let ours = preloaded(&program, &dir).output().unwrap();
    assert_eq!(text(&bare), "0 0 1 0 reached 1 1\nexit status: 0\n");
    assert_eq!(text(&ours), text(&bare));
}

#[test]
fn a_plugin_that_looks_behind_itself_finds_the_driver() {
    let dir = Scratch::new();
    dir.driver();
    let options =
        ["-shared", "-fPIC", "-fno-builtin", "-L.", "-Wl,--no-as-needed", "-l:libcuda.so.1"];
    dir.compile("plugin", "plugin.so", &options);
    let program = dir.compile("lookups", "lookups", &["-ldl"]);
    let output = preloaded(program, &dir).args(["plugin", "./plugin.so"]).output().unwrap();
    let lines = [
        "driver by RTLD_NEXT libvramtrace.so:cuMemAlloc_v2",
        "malloc behind the plugin: libc",
        ONCE,
        "exit status: 0\n",
    ];
    pretty(&text(&output), &lines.join("\n"));
}

#[test]
fn ctypes_finds_our_functions() {
    let Some(python) = support::on_path("python3") else {
        testkit::skip("lookups: no python3");
        return;
    };
    let dir = Scratch::new();
    dir.driver();
    let script = "
import ctypes
d = ctypes.CDLL('libcuda.so.1')
p = ctypes.c_uint64()
d.cuMemAlloc_v2.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
print(d.cuMemAlloc_v2(ctypes.byref(p), 100), p.value != 0, d.witness_allocs())
a = ctypes.cast(d.cuMemAlloc_v2, ctypes.c_void_p).value
print([l.split('/')[-1].strip() for l in open('/proc/self/maps') if int(l.split('-')[0], 16) <= a < int(l.split('-')[1].split()[0], 16)])
";
    let output = preloaded(python, &dir).args(["-c", script]).output().unwrap();
    pretty(&text(&output), "0 True 1\n['libvramtrace.so']\nexit status: 0\n");
}

/// A panic in our hook: the call passes through, once, and one line says so.
#[test]
fn a_panic_in_a_hook_passes_through() {
    let dir = Scratch::new();
    dir.driver();
    let program = dir.compile("linked", "linked", &["-L.", "-l:libcuda.so.1"]);
    for api in ["cuInit", "cuMemAlloc_v2", "cuMemFree_v2"] {
        let mut command = preloaded(&program, &dir);
        let got = text(&command.env("VRAMTRACE_TEST_PANIC", api).output().unwrap());
        assert!(got.starts_with("0 0 1 0 reached 1 1\n"), "{got}");
        assert!(got.contains(&format!("vramtrace: internal error in {api}: ")), "{got}");
        assert!(got.ends_with("exit status: 0\n"), "{got}");
        assert_eq!(got.lines().count(), 3, "{got}");
    }
}
