//! What the library shows to the loader: names, needs and floor. A mistake here stops EVERY
//! preloaded process.

mod support;

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use support::shim;

/// The oldest C library it runs on.
const FLOOR: (u32, u32) = (2, 34);

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .arg(shim())
        .env("LC_ALL", "C")
        .output()
        .unwrap_or_else(|_| panic!("{program} (binutils) is needed for this test"));
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// The table: name, since, section, hook.
fn table() -> Vec<[String; 4]> {
    let path = CString::new(shim().to_str().unwrap()).unwrap();
    // SAFETY: the built library, which stays open, and its function of that type; its text ends with NUL.
    let text = unsafe {
        let handle = dlopen(path.as_ptr(), 2);
        assert!(!handle.is_null());
        let coverage = dlsym(handle, c"vramtrace_coverage".as_ptr());
        assert!(!coverage.is_null());
        let coverage: extern "C" fn() -> *const c_char = std::mem::transmute(coverage);
        CStr::from_ptr(coverage()).to_str().unwrap()
    };
    let fields = |line: &str| -> [String; 4] {
        line.split('\t').map(String::from).collect::<Vec<_>>().try_into().unwrap()
    };
    text.lines().map(fields).collect()
}

#[test]
fn the_library_exports_the_table_and_the_lookup_functions_only() {
    let listed = run("nm", &["-D", "--defined-only"]);
    let exported: BTreeSet<&str> =
        listed.lines().map(|line| line.split_whitespace().last().unwrap()).collect();
    let table = table();
    let mut allowed: BTreeSet<&str> = table.iter().map(|line| line[0].as_str()).collect();
    for name in &allowed {
        assert!(exported.contains(name), "{name} is in the table and not exported");
    }
    allowed.extend(["dlsym", "dlvsym", "dlopen", "dlmopen", "dlclose", "InitializeInjectionNvtx2"]);
    allowed.extend(["pthread_exit", "pthread_setcanceltype", "_exit", "_Exit"]);
    for name in exported {
        assert!(allowed.contains(name) || name.starts_with("vramtrace_"), "{name} is exported");
    }
}

#[test]
fn the_library_needs_the_c_library_only() {
    let dynamic = run("readelf", &["-d"]);
    // There, libpthread has functions of the C library too, and the linker takes it first. The shipped
    // library is linked without it (packaging/symbol-versions.py).
    let with_libpthread = testkit::glibc_minor() < 34;
    for line in dynamic.lines().filter(|line| line.contains("(NEEDED)")) {
        let known = ["[libc.so.6]", "[ld-linux-x86-64.so.2]"];
        let known = known.iter().any(|name| line.contains(name));
        assert!(known || with_libpthread && line.contains("[libpthread.so.0]"), "{line}");
    }
    assert!(!dynamic.contains("INITFIRST"), "{dynamic}");
    // A dlclose must not take hooks away that were handed out.
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
}

#[test]
fn the_library_needs_no_newer_glibc_than_documented() {
    let symbols = run("objdump", &["-T"]);
    for part in symbols.split(&['(', ')', ' ', '\n'][..]) {
        let Some(version) = part.strip_prefix("GLIBC_") else { continue };
        let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap());
        let version = (numbers.next().unwrap(), numbers.next().unwrap_or(0));
        assert!(version <= FLOOR, "needs {part}");
    }
}

fn documentation() -> String {
    let mut text = String::from(
        "# Entry points\n\n\
         The functions of the driver, NVML and PyTorch that `libvramtrace.so` intercepts, generated from its table (`shim/src/driver/table.rs`).\n\
         `since` is the version with which `cuGetProcAddress` is asked for exactly this variant. \
         `note`: the call is forwarded to the driver, and the trace records that it was used. \
         Otherwise: the function in `shim/src/hooks/families/` that handles the call.\n\n\
         `cuSubgridCreate`, `cuSubgridWorksetCreate` and `cuSubgridWorkerGridCreate`, which the runtime of CUDA 13.5 looks up, are in no header: \
         they are not intercepted, and what they take has the name of the next call that is followed, or none.\n",
    );
    let mut section = String::new();
    for [name, since, title, hook] in table() {
        if title != section {
            let _ = write!(text, "\n## {title}\n| name | since | hook |\n|---|---|---|\n");
            section = title;
        }
        let since: u32 = since.parse().unwrap();
        let since = match since {
            0 => String::from("-"),
            _ => format!("{}.{}", since / 1000, since % 1000 / 10),
        };
        let _ = writeln!(text, "| `{name}` | {since} | `{hook}` |");
    }
    text
}

/// `VRAMTRACE_WRITE_DOCS=1 cargo test -p vramtrace-shim --test surface` writes it.
#[test]
fn the_documentation_is_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/COVERAGE.md");
    let text = documentation();
    if std::env::var_os("VRAMTRACE_WRITE_DOCS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == text,
        "docs/COVERAGE.md is old: VRAMTRACE_WRITE_DOCS=1 cargo test -p vramtrace-shim --test surface"
    );
}

/// The functions of the driver and their classes.
fn classified() -> Vec<(&'static str, &'static str)> {
    let list = include_str!("driver_functions.txt");
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| match line.split(' ').collect::<Vec<_>>()[..] {
            [name, class] | [name, class, "measured"] => (name, class),
            _ => panic!("driver_functions.txt: {line}: want NAME CLASS, or NAME CLASS measured"),
        })
        .collect()
}

#[test]
fn each_function_of_the_driver_is_classified_as_the_table_says() {
    let classified = classified();
    assert!(classified.windows(2).all(|pair| pair[0].0 < pair[1].0), "sorted, each name once");
    let classes: std::collections::BTreeMap<&str, &str> = classified.into_iter().collect();
    let table = table();
    let cuda = table.iter().filter(|row| row[0].starts_with("cu"));
    let hooks: std::collections::BTreeMap<&str, &str> =
        cuda.map(|row| (row[0].as_str(), row[3].as_str())).collect();
    for (name, class) in &classes {
        let is_followed = !matches!(hooks.get(name), None | Some(&"note"));
        assert!(["followed", "none", "unfollowed"].contains(class), "{name}: {class}");
        assert_eq!(*class == "followed", is_followed, "{name}: {class}");
        assert!(hooks.get(name) != Some(&"note") || *class == "unfollowed", "{name}: {class}");
    }
    let sim =
        Command::new("nm").args(["-D", "--defined-only"]).arg(testkit::sim()).output().unwrap();
    let sim = String::from_utf8(sim.stdout).unwrap();
    let exported = sim.lines().filter_map(|line| line.split_whitespace().last());
    let is_cuda = |name: &&str| {
        name.strip_prefix("cu")
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
    };
    let exported: Vec<&str> = exported.filter(is_cuda).collect();
    assert!(exported.len() > 100);
    for name in exported.into_iter().chain(hooks.keys().copied()) {
        assert!(classes.contains_key(name), "{name} is not in driver_functions.txt");
    }
}
