//! `vramtrace pack`: a trace that needs nothing of the machine where it was recorded.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::trace_builder::{SECOND, TraceBuilder, training};
use testkit::{Scratch, vramtrace};
use vramtrace_format::physical::MIB;
use vramtrace_format::proc::Stat;
use vramtrace_format::{Definition, Kind, TraceReader};

fn run(scratch: &Scratch, args: &[&str]) -> Output {
    vramtrace().args(args).current_dir(&scratch.0).env("NO_COLOR", "1").output().unwrap()
}

#[track_caller]
fn good(scratch: &Scratch, args: &[&str]) -> (String, String) {
    let output = run(scratch, args);
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{printed}");
    (String::from_utf8(output.stdout).unwrap(), printed)
}

#[track_caller]
fn bad(scratch: &Scratch, args: &[&str], says: &str) {
    let output = run(scratch, args);
    let printed = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{printed}");
    assert!(printed.contains(says), "{printed}");
}

/// A library with an inlined function, and where in its file the two functions are.
struct Library {
    path: PathBuf,
    build_id: Vec<u8>,
    outer: u64,
    stripped: u64,
}

fn library(scratch: &Scratch, build_id: &str) -> Library {
    let source = scratch.0.join("pool.c");
    let text = "#include <stdlib.h>\n\
        static inline __attribute__((always_inline)) void *take_pages(long n) {\n\
        return calloc(n, 4096); }\n\
        void *pool_grow(long n) { void *p = take_pages(n); return p ? p : abort, p; }\n\
        void *pool_other(long n) { return malloc(n); }\n";
    std::fs::write(&source, text).unwrap();
    let path = scratch.0.join("libpool.so");
    let built = Command::new("gcc")
        .args(["-O1", "-g", "-shared", "-fPIC", "-fno-optimize-sibling-calls", "-o"])
        .arg(&path)
        .arg(&source)
        .arg(format!("-Wl,--build-id=0x{build_id}"))
        .status();
    assert!(built.unwrap().success());
    let listed = Command::new("nm").arg("-S").arg(&path).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let of = |name: &str| {
        let line = listed.lines().find(|line| line.ends_with(name)).unwrap();
        let number = |n: usize| u64::from_str_radix(line.split(' ').nth(n).unwrap(), 16).unwrap();
        (number(0), number(1))
    };
    // The address behind the only call, as a return address is: the end of the call instruction.
    let (start, size) = of(" pool_grow");
    let code = std::fs::read(&path).unwrap();
    let code = &code[start as usize..(start + size) as usize];
    let call = code.iter().position(|byte| *byte == 0xe8).unwrap() as u64;
    let bytes = (0..build_id.len() / 2)
        .map(|n| u8::from_str_radix(&build_id[2 * n..2 * n + 2], 16).unwrap());
    Library {
        path,
        build_id: bytes.collect(),
        outer: start + call + 5,
        stripped: of(" pool_other").0 + 1,
    }
}

const BASE: u64 = 0x7f00_0000_0000;
const GONE: u64 = 0x7e00_0000_0000;

/// 64 MiB by the library's function, 8 MiB by the other, 4 MiB by a library that is gone.
fn traced(library: &Library) -> TraceBuilder {
    let mut t = TraceBuilder::new();
    t.define(Definition::Module {
        id: 1,
        path: library.path.to_str().unwrap().into(),
        build_id: library.build_id.clone(),
        base: BASE,
        start: BASE,
        end: BASE + 0x10_0000,
    });
    t.define(Definition::Module {
        id: 2,
        path: "/nowhere/libgone.so".into(),
        build_id: vec![1; 20],
        base: GONE,
        start: GONE,
        end: GONE + 0x1000,
    });
    t.stack(1, &[BASE + library.outer], &[], &[]);
    t.stack(2, &[BASE + library.stripped], &[], &[]);
    t.stack(3, &[GONE + 0x10], &[], &[]);
    t.alloc_by(SECOND, Kind::Device, 1 << 40, 64 * MIB, 1);
    t.alloc_by(2 * SECOND, Kind::Device, 2 << 40, 8 * MIB, 2);
    t.alloc_by(3 * SECOND, Kind::Device, 3 << 40, 4 * MIB, 3);
    t
}

const ID: &str = "00112233445566778899aabbccddeeff00112233";

#[test]
fn names_are_the_same_where_the_library_is_hidden_or_replaced() {
    let scratch = Scratch::new();
    let library = library(&scratch, ID);
    traced(&library).write(&scratch.0.join("t.vtrace"));
    let (_, printed) = good(&scratch, &["pack", "t.vtrace"]);
    assert!(printed.contains("names of 2 native addresses"), "{printed}");
    assert!(printed.contains("/nowhere/libgone.so: is not there any more"), "{printed}");

    let holders = |file: &str| scratch.text(&format!("holders {file} --json --by stack"));
    let before = holders("t.vtrace");
    let all: Value = serde_json::from_str(&before).unwrap();
    let frames = all["holders"][0]["frames"].as_array().unwrap();
    let functions: Vec<_> =
        frames.iter().map(|frame| frame["function"].as_str().unwrap()).collect();
    assert_eq!(functions, ["take_pages", "pool_grow"], "inlined functions have names of their own");
    assert!(frames[1]["file"].as_str().unwrap().ends_with("pool.c") && frames[1]["line"] == 4);
    assert_eq!(holders("t.packed.vtrace"), before);

    // Hidden.
    let aside = scratch.0.join("aside.so");
    std::fs::rename(&library.path, &aside).unwrap();
    assert_eq!(holders("t.packed.vtrace"), before);
    let bare = holders("t.vtrace");
    assert!(bare.contains("libpool.so: is not there any more") && !bare.contains("pool_grow"));
    let problems = |json: &str| {
        let all: Value = serde_json::from_str(json).unwrap();
        all["problems"].as_array().unwrap().len()
    };
    assert_eq!(
        (problems(&before), problems(&bare)),
        (1, 2),
        "only what was not packed is reported"
    );

    // Replaced by another build of the same name.
    self::library(&scratch, "ffeeddccbbaa99887766554433221100ffeeddcc");
    assert_eq!(holders("t.packed.vtrace"), before);
    let bare = holders("t.vtrace");
    assert!(bare.contains("another file than the one that was traced"), "{bare}");
    // Packing now packs nothing of it, and says why.
    let (_, printed) = good(&scratch, &["pack", "t.vtrace", "-o", "late.vtrace"]);
    assert!(printed.contains("another file than the one that was traced"), "{printed}");
    assert_eq!(holders("late.vtrace"), bare);
    // Found again, the names come, into what is packed too.
    std::fs::rename(&aside, &library.path).unwrap();
    scratch.text("pack late.vtrace -o later.vtrace");
    std::fs::remove_file(&library.path).unwrap();
    assert_eq!(holders("later.vtrace"), before);
}

#[test]
fn everything_else_stays_and_packing_twice_adds_nothing() {
    let scratch = Scratch::new();
    let library = library(&scratch, ID);
    traced(&library).write(&scratch.0.join("t.vtrace"));
    scratch.text("pack t.vtrace");
    scratch.text("pack t.packed.vtrace -o again.vtrace");
    let read = |name: &str| std::fs::read(scratch.0.join(name)).unwrap();
    let (trace, packed, again) = (read("t.vtrace"), read("t.packed.vtrace"), read("again.vtrace"));
    assert!(packed.len() > trace.len() && packed[..trace.len()] == trace[..]);
    assert!(again == packed, "the second time nothing is new");
    let (before, after) = (TraceReader::new(&trace).unwrap(), TraceReader::new(&packed).unwrap());
    let events = |reader: &TraceReader| reader.events().collect::<Vec<_>>();
    assert_eq!(events(&before), events(&after));
    let old: Vec<_> = before.definitions().collect();
    let mut all = after.definitions();
    let new: Vec<_> = (&mut all).collect();
    assert_eq!(new[..old.len()], old[..]);
    let names = |it: &&Definition| matches!(it, Definition::Names { .. } | Definition::Text { .. });
    assert_eq!(new[old.len()..].iter().filter(names).count(), new.len() - old.len());
    assert!(after.damage().is_empty() && all.damage().is_empty());
}

#[test]
fn many_names_take_several_windows() {
    let scratch = Scratch::new();
    let own = std::env::current_exe().unwrap();
    let mut t = TraceBuilder::new();
    t.define(Definition::Module {
        id: 9,
        path: own.to_str().unwrap().into(),
        build_id: Vec::new(),
        base: BASE,
        start: BASE,
        end: BASE + (1 << 32),
    });
    let size = std::fs::metadata(&own).unwrap().len();
    for id in 1..40 {
        let native: Vec<u64> = (0..400).map(|n| BASE + size / 20_000 * (id * 400 + n)).collect();
        t.stack(id as u32, &native, &[], &[]);
    }
    t.alloc_by(SECOND, Kind::Device, 1 << 40, MIB, 39);
    t.write(&scratch.0.join("t.vtrace"));
    scratch.text("pack t.vtrace");
    let before = TraceReader::new(&std::fs::read(scratch.0.join("t.vtrace")).unwrap())
        .unwrap()
        .definition_windows()
        .len();
    let packed = std::fs::read(scratch.0.join("t.packed.vtrace")).unwrap();
    let reader = TraceReader::new(&packed).unwrap();
    assert!(reader.definition_windows().len() > before + 1);
    let names = reader.definitions().filter(|it| matches!(it, Definition::Names { .. })).count();
    assert_eq!(names, 39 * 400);
    let holders = |file: &str| scratch.text(&format!("holders {file} --full --by stack"));
    assert_eq!(holders("t.vtrace"), holders("t.packed.vtrace"));
}

#[test]
fn nothing_is_replaced_unasked() {
    let scratch = Scratch::new();
    training().write(&scratch.0.join("t.vtrace"));
    std::fs::write(scratch.0.join("there.vtrace"), "keep me").unwrap();
    std::fs::create_dir(scratch.0.join("dir")).unwrap();
    scratch.fails(2, "pack t.vtrace -o there.vtrace", "there.vtrace exists");
    assert_eq!(std::fs::read(scratch.0.join("there.vtrace")).unwrap(), b"keep me");
    scratch.fails(2, "pack t.vtrace -o t.vtrace --force", "is also an input");
    scratch.fails(2, "pack t.vtrace -o dir", "is a directory");
    scratch.fails(2, "pack t.vtrace -o no/such/place.vtrace", "no/such/place.vtrace");
    scratch.fails(2, "pack none.vtrace", "none.vtrace");
    scratch.text("pack t.vtrace -o there.vtrace --force");
    let written = std::fs::read(scratch.0.join("there.vtrace")).unwrap();
    assert!(TraceReader::new(&written).is_ok());
    let left: Vec<_> = std::fs::read_dir(&scratch.0).unwrap().collect();
    assert_eq!(left.len(), 3, "{left:?}");
}

#[test]
fn one_trace_goes_into_the_file_that_is_named() {
    let scratch = Scratch::new();
    let run = scratch.0.join("vramtrace-20260101-120000");
    std::fs::create_dir(&run).unwrap();
    training().write(&run.join("r0.vtrace"));
    // The newest run, and the same by its name.
    scratch.text("pack -o demo.vtrace");
    scratch.text("pack vramtrace-20260101-120000 -o again.vtrace");
    for name in ["demo.vtrace", "again.vtrace"] {
        assert!(TraceReader::new(&std::fs::read(scratch.0.join(name)).unwrap()).is_ok(), "{name}");
    }
    // A directory is one.
    scratch.text("pack -o new/");
    assert!(scratch.0.join("new/r0.vtrace").is_file());
    std::fs::create_dir(scratch.0.join("there")).unwrap();
    scratch.text("pack -o there");
    assert!(scratch.0.join("there/r0.vtrace").is_file());
}

#[test]
fn a_name_that_ends_with_gz_is_written_compressed() {
    let scratch = Scratch::new();
    let library = library(&scratch, ID);
    traced(&library).write(&scratch.0.join("t.vtrace"));
    scratch.text("pack t.vtrace -o plain.vtrace");
    scratch.text("pack t.vtrace -o small.vtrace.gz");
    let unpacked = Command::new("gzip")
        .args(["-dc", "small.vtrace.gz"])
        .current_dir(&scratch.0)
        .output()
        .unwrap();
    assert!(unpacked.status.success(), "{}", String::from_utf8_lossy(&unpacked.stderr));
    assert!(unpacked.stdout == std::fs::read(scratch.0.join("plain.vtrace")).unwrap());
    // A source of that name becomes a file of that name.
    std::fs::create_dir(scratch.0.join("run")).unwrap();
    std::fs::rename(scratch.0.join("small.vtrace.gz"), scratch.0.join("run/small.vtrace.gz"))
        .unwrap();
    scratch.text("pack run -o all/");
    let again = std::fs::read(scratch.0.join("all/small.vtrace.gz")).unwrap();
    assert_eq!(again[..2], [0x1f, 0x8b]);
    let (holders, _) = good(&scratch, &["holders", "all/small.vtrace.gz"]);
    assert!(holders.contains("MiB") || holders.contains("GiB"), "{holders}");
}

#[test]
fn a_run_of_several_ranks_is_packed_beside_its_traces() {
    let scratch = Scratch::new();
    let run = scratch.0.join("vramtrace-20260101-120000");
    std::fs::create_dir(&run).unwrap();
    for rank in 0..2 {
        let mut t = TraceBuilder::new().rank(rank, 2);
        t.stack(1, &[GONE], &[], &[]);
        t.alloc_by(SECOND, Kind::Device, 1 << 40, MIB, 1);
        t.write(&run.join(format!("r{rank}.vtrace")));
    }
    scratch.text("pack");
    let packed = scratch.0.join("vramtrace-20260101-120000.packed");
    assert!(packed.join("r0.vtrace").is_file() && packed.join("r1.vtrace").is_file());
    scratch.fails(2, "pack vramtrace-20260101-120000", "r0.vtrace exists");
    let (a, b) = ("vramtrace-20260101-120000/r0.vtrace", "vramtrace-20260101-120000/r1.vtrace");
    bad(&scratch, &["pack", a, b], "-o DIR");
    good(&scratch, &["pack", a, b, "-o", "two"]);
    assert!(scratch.0.join("two/r1.vtrace").is_file());

    // The same trace twice in a directory counts once.
    std::fs::copy(packed.join("r0.vtrace"), run.join("r0.packed.vtrace")).unwrap();
    let (json, printed) = good(&scratch, &["report", "--json", "vramtrace-20260101-120000"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["processes"].as_array().unwrap().len(), 2);
    assert!(printed.contains("is a copy"), "{printed}");
}

#[test]
fn what_was_punched_out_or_cut_off_still_reads() {
    let scratch = Scratch::new();
    let library = library(&scratch, ID);
    let trace = scratch.0.join("t.vtrace");
    let mut t = traced(&library);
    t.lose();
    t.alloc_by(9 * SECOND, Kind::Device, 4 << 40, 16 * MIB, 1);
    t.write(&trace);
    // Far behind: holes between.
    let file = std::fs::File::options().write(true).open(&trace).unwrap();
    let whole = file.metadata().unwrap().len();
    file.set_len(4096 + (1 << 30)).unwrap();
    scratch.text("pack t.vtrace");
    let meta = std::fs::metadata(scratch.0.join("t.packed.vtrace")).unwrap();
    assert!(meta.len() > 1 << 30 && meta.blocks() * 512 < 64 << 20, "holes stay holes");
    let holders = |file: &str| {
        let json = good(&scratch, &["holders", file, "--json", "--at", "end"]).0;
        // A file that is cut off says so; its copy has definitions behind the place.
        let all: Value = serde_json::from_str(&json).unwrap();
        format!("{:#}{:#}", all["holders"], all["problems"])
    };
    assert_eq!(holders("t.packed.vtrace"), holders("t.vtrace"));
    // Ends inside its last window.
    file.set_len(whole - 1000).unwrap();
    scratch.text("pack t.vtrace --force");
    assert_eq!(holders("t.packed.vtrace"), holders("t.vtrace"));
    std::fs::remove_file(&library.path).unwrap();
    assert!(holders("t.packed.vtrace").contains("pool_grow"));
    // Not even a window.
    file.set_len(4096).unwrap();
    scratch.text("pack t.vtrace --force");
    assert_eq!(
        std::fs::read(&trace).unwrap(),
        std::fs::read(scratch.0.join("t.packed.vtrace")).unwrap()
    );
}

#[test]
fn a_process_that_still_runs_is_waited_for() {
    still_runs(&Stat::of_this_process().unwrap());
}

#[test]
fn a_process_whose_main_thread_has_exited_still_runs() {
    // System call 60 ends the calling thread alone.
    let program = "import ctypes, sys, threading\n\
                   threading.Thread(target=sys.stdin.read).start()\n\
                   ctypes.CDLL(None).syscall(60, 0)";
    let mut child =
        Command::new("python3").args(["-c", program]).stdin(Stdio::piped()).spawn().unwrap();
    let exited = || Stat::of(child.id()).filter(|stat| stat.state == b'Z');
    let started = Instant::now();
    let stat = loop {
        match exited() {
            Some(stat) => break stat,
            None => assert!(started.elapsed() < Duration::from_secs(20), "its thread goes on"),
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    still_runs(&stat);
    drop(child.stdin.take());
    child.wait().unwrap();
}

/// A trace of this process is not packed.
fn still_runs(process: &Stat) {
    let scratch = Scratch::new();
    let mut t = training();
    t.header.pid = process.pid;
    t.header.process_start_ticks = process.start_ticks;
    t.header.host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().into();
    t.write(&scratch.0.join("t.vtrace"));
    scratch.fails(2, "pack t.vtrace", "is still running");
    assert!(!Path::new(&scratch.0.join("t.packed.vtrace")).exists());
}

/// A program of two functions that allocates and, if told so, kills itself.
const ALLOCATES: &str = r#"
#include <dlfcn.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
static void *cuda, *context;
__attribute__((noinline)) static int load_weights(size_t bytes) {
    unsigned long long p;
    int (*take)(unsigned long long *, size_t) = (int (*)(unsigned long long *, size_t))dlsym(cuda, "cuMemAlloc_v2");
    int result = take(&p, bytes);
    return result + 0;
}
int main(int count, char **arguments) {
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    ((int (*)(unsigned))dlsym(cuda, "cuInit"))(0);
    ((int (*)(void **, int))dlsym(cuda, "cuDevicePrimaryCtxRetain"))(&context, 0);
    ((int (*)(void *))dlsym(cuda, "cuCtxSetCurrent"))(context);
    int result = load_weights(64 << 20);
    if (count > 1 && !strcmp(arguments[1], "kill")) raise(SIGKILL);
    return result;
}
"#;

#[test]
fn a_run_leaves_names_in_its_traces() {
    testkit::shim();
    testkit::sim();
    for (how, events) in [("end", "in order"), ("kill", "NOT in order")] {
        let scratch = Scratch::new();
        std::fs::write(scratch.0.join("allocates.c"), ALLOCATES).unwrap();
        let mut compiler = Command::new("gcc");
        compiler.args(["-O1", "-g", "-o", "allocates", "allocates.c", "-ldl"]);
        assert!(compiler.current_dir(&scratch.0).status().unwrap().success());
        let run = ["run", "--simulate", "--out", "t.vtrace", "./allocates", how];
        let output = self::run(&scratch, &run);
        assert_eq!(output.status.success(), how == "end", "{output:?}");
        let holders = || good(&scratch, &["holders", "t.vtrace", "--json", "--by", "stack"]).0;
        let before: Value = serde_json::from_str(&holders()).unwrap();
        let functions: Vec<_> = before["holders"][0]["frames"]
            .as_array()
            .unwrap()
            .iter()
            .map(|frame| frame["function"].as_str().unwrap().to_string())
            .collect();
        assert!(functions.iter().any(|name| name == "load_weights"), "{functions:?}");
        // As on a machine without the program.
        std::fs::remove_file(scratch.0.join("allocates")).unwrap();
        let after: Value = serde_json::from_str(&holders()).unwrap();
        assert_eq!(after["holders"], before["holders"]);
        let (report, _) = good(&scratch, &["report", "t.vtrace"]);
        assert!(report.contains(events), "{report}");
        scratch.text("verify t.vtrace");
        // There is nothing left to pack of the program.
        let (_, printed) = good(&scratch, &["pack", "t.vtrace"]);
        assert!(printed.contains("had names before"), "{printed}");
    }
}
