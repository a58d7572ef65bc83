//! `vramtrace pack`: a trace that needs nothing of the machine where it was recorded.

use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::trace_builder::{SECOND, TraceBuilder, training};
use testkit::{MIB, Scratch, functions, gunzip};
use vramtrace_format::proc::Stat;
use vramtrace_format::{Definition, Kind, TraceReader};

/// stdout and stderr of a command that succeeds.
#[track_caller]
fn good(scratch: &Scratch, line: &str) -> (String, String) {
    let said = scratch.says(&line.split(' ').collect::<Vec<_>>()).ended(0);
    (said.out, said.err)
}

fn read(scratch: &Scratch, name: &str) -> Vec<u8> {
    std::fs::read(scratch.0.join(name)).unwrap()
}

const SOURCE: &str = "#include <stdlib.h>\n\
    static inline __attribute__((always_inline)) void *take_pages(long n) {\n\
    return calloc(n, 4096); }\n\
    void *pool_grow(long n) { void *p = take_pages(n); return p ? p : abort, p; }\n\
    void *pool_other(long n) { return malloc(n); }\n";

/// Makes libpool.so, whose pool_grow has an inlined function: where in the file it calls, and where pool_other is.
fn library(scratch: &Scratch, build_id: u8) -> (u64, u64) {
    scratch.write("pool.c", SOURCE);
    let build_id = format!("{build_id:02x}").repeat(20);
    let listed = scratch.shell(&format!(
        "gcc -O1 -g -shared -fPIC -fno-optimize-sibling-calls -Wl,--build-id=0x{build_id} \
         -o libpool.so pool.c && nm -S libpool.so"
    ));
    let of = |name: &str| {
        let line = listed.lines().find(|line| line.ends_with(name)).unwrap();
        let number = |n: usize| u64::from_str_radix(line.split(' ').nth(n).unwrap(), 16).unwrap();
        (number(0), number(1))
    };
    // The address behind the only call, as a return address is: the end of the call instruction.
    let (start, size) = of(" pool_grow");
    let code = &read(scratch, "libpool.so")[start as usize..(start + size) as usize];
    let call = code.iter().position(|byte| *byte == 0xe8).unwrap() as u64;
    (start + call + 5, of(" pool_other").0 + 1)
}

const BASE: u64 = 0x7f00_0000_0000;
const GONE: u64 = 0x7e00_0000_0000;

/// 64 MiB by the library's function, 8 MiB by the other, 4 MiB by a library that is gone. It is t.vtrace.
fn traced() -> (Scratch, TraceBuilder) {
    let scratch = Scratch::new();
    let (grows, other) = library(&scratch, ID);
    let mut t = TraceBuilder::new();
    let path = scratch.0.join("libpool.so");
    t.library(path.to_str().unwrap(), vec![ID; 20], BASE, 0x10_0000);
    t.library("/nowhere/libgone.so", vec![1; 20], GONE, 0x1000);
    t.stack(1, &[BASE + grows], &[], &[]);
    t.stack(2, &[BASE + other], &[], &[]);
    t.stack(3, &[GONE + 0x10], &[], &[]);
    t.alloc_by(SECOND, Kind::Device, 1 << 40, 64 * MIB, 1);
    t.alloc_by(2 * SECOND, Kind::Device, 2 << 40, 8 * MIB, 2);
    t.alloc_by(3 * SECOND, Kind::Device, 3 << 40, 4 * MIB, 3);
    t.write(&scratch.0.join("t.vtrace"));
    (scratch, t)
}

const ID: u8 = 0x17;

#[test]
fn names_are_the_same_where_the_library_is_hidden_or_replaced() {
    let (scratch, _) = traced();
    let (_, printed) = good(&scratch, "pack t.vtrace");
    assert!(printed.contains("names of 2 native addresses"), "{printed}");
    assert!(printed.contains("/nowhere/libgone.so: is not there any more"), "{printed}");

    let holders = |file: &str| scratch.text(&format!("holders {file} --json --by stack"));
    let before = holders("t.vtrace");
    let all: Value = serde_json::from_str(&before).unwrap();
    let first = &all["holders"][0];
    assert_eq!(functions(first), ["take_pages", "pool_grow"], "inlined functions have names");
    let frame = &first["frames"][1];
    assert!(frame["file"].as_str().unwrap().ends_with("pool.c") && frame["line"] == 4);
    assert_eq!(holders("t.packed.vtrace"), before);

    // Hidden.
    let (path, aside) = (scratch.0.join("libpool.so"), scratch.0.join("aside.so"));
    std::fs::rename(&path, &aside).unwrap();
    assert_eq!(holders("t.packed.vtrace"), before);
    let bare = holders("t.vtrace");
    assert!(bare.contains("libpool.so: is not there any more") && !bare.contains("pool_grow"));
    let problems = |json: &str| {
        let all: Value = serde_json::from_str(json).unwrap();
        all["problems"].as_array().unwrap().len()
    };
    let found = (problems(&before), problems(&bare));
    assert_eq!(found, (1, 2), "only what was not packed is reported");

    // Replaced by another build of the same name.
    library(&scratch, 0xee);
    assert_eq!(holders("t.packed.vtrace"), before);
    let bare = holders("t.vtrace");
    // Packing now packs nothing of it, and says why.
    let (_, printed) = good(&scratch, "pack t.vtrace -o late.vtrace");
    for said in [&bare, &printed] {
        assert!(said.contains("another file than the one that was traced"), "{said}");
    }
    assert_eq!(holders("late.vtrace"), bare);
    // Found again, the names come, into what is packed too.
    std::fs::rename(&aside, &path).unwrap();
    scratch.text("pack late.vtrace -o later.vtrace");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(holders("later.vtrace"), before);
}

#[test]
fn everything_else_stays_and_packing_twice_adds_nothing() {
    let (scratch, _) = traced();
    scratch.text("pack t.vtrace");
    scratch.text("pack t.packed.vtrace -o again.vtrace");
    let [trace, packed, again] =
        ["t.vtrace", "t.packed.vtrace", "again.vtrace"].map(|name| read(&scratch, name));
    assert!(packed.len() > trace.len() && packed[..trace.len()] == trace[..]);
    assert!(again == packed, "the second time nothing is new");
    let (before, after) = (TraceReader::new(&trace).unwrap(), TraceReader::new(&packed).unwrap());
    assert!(before.events().eq(after.events()));
    let old: Vec<_> = before.definitions().collect();
    let mut all = after.definitions();
    let new: Vec<_> = (&mut all).collect();
    assert_eq!(new[..old.len()], old[..]);
    let names = |it: &Definition| matches!(it, Definition::Names { .. } | Definition::Text { .. });
    assert!(new[old.len()..].iter().all(names));
    assert!(after.damage().is_empty() && all.damage().is_empty());
}

#[test]
fn many_names_take_several_windows() {
    let scratch = Scratch::new();
    let own = std::env::current_exe().unwrap();
    let mut t = TraceBuilder::new();
    t.library(own.to_str().unwrap(), Vec::new(), BASE, 1 << 32);
    let size = std::fs::metadata(&own).unwrap().len();
    for id in 1..40 {
        let native: Vec<u64> = (0..400).map(|n| BASE + size / 20_000 * (id * 400 + n)).collect();
        t.stack(id as u32, &native, &[], &[]);
    }
    t.alloc_by(SECOND, Kind::Device, 1 << 40, MIB, 39);
    t.write(&scratch.0.join("t.vtrace"));
    scratch.text("pack t.vtrace");
    let (trace, packed) = (read(&scratch, "t.vtrace"), read(&scratch, "t.packed.vtrace"));
    let before = TraceReader::new(&trace).unwrap().definition_windows().len();
    let reader = TraceReader::new(&packed).unwrap();
    assert!(reader.definition_windows().len() > before + 1);
    let names = reader.definitions().filter(|it| matches!(it, Definition::Names { .. })).count();
    assert_eq!(names, 39 * 400);
    let holders = |file: &str| scratch.text(&format!("holders {file} --full --by stack"));
    assert_eq!(holders("t.vtrace"), holders("t.packed.vtrace"));
}

#[test]
fn nothing_is_replaced_unasked() {
    let scratch = Scratch::with(&training());
    scratch.write("there.vtrace", "keep me");
    std::fs::create_dir(scratch.0.join("dir")).unwrap();
    for (line, why) in [
        ("t.vtrace -o there.vtrace", "there.vtrace exists"),
        ("t.vtrace -o t.vtrace --force", "is also an input"),
        ("t.vtrace -o dir", "is a directory"),
        ("t.vtrace -o no/such/place.vtrace", "no/such/place.vtrace"),
        ("none.vtrace", "none.vtrace"),
    ] {
        scratch.fails(2, &format!("pack {line}"), why);
    }
    assert_eq!(read(&scratch, "there.vtrace"), b"keep me");
    scratch.text("pack t.vtrace -o there.vtrace --force");
    assert!(TraceReader::new(&read(&scratch, "there.vtrace")).is_ok());
    let left: Vec<_> = std::fs::read_dir(&scratch.0).unwrap().collect();
    assert_eq!(left.len(), 3, "{left:?}");
}

/// The newest run, and the same by its name; a directory is one.
#[test]
fn one_trace_goes_into_the_file_that_is_named() {
    let scratch = Scratch::new();
    let run = scratch.0.join("vramtrace-20260101-120000");
    std::fs::create_dir(&run).unwrap();
    training().write(&run.join("r0.vtrace"));
    std::fs::create_dir(scratch.0.join("there")).unwrap();
    for (line, made) in [
        ("-o demo.vtrace", "demo.vtrace"),
        ("vramtrace-20260101-120000 -o again.vtrace", "again.vtrace"),
        ("-o new/", "new/r0.vtrace"),
        ("-o there", "there/r0.vtrace"),
    ] {
        scratch.text(&format!("pack {line}"));
        assert!(TraceReader::new(&read(&scratch, made)).is_ok(), "{made}");
    }
}

#[test]
fn a_name_that_ends_with_gz_is_written_compressed() {
    let (scratch, _) = traced();
    std::fs::create_dir(scratch.0.join("run")).unwrap();
    scratch.text("pack t.vtrace -o plain.vtrace");
    scratch.text("pack t.vtrace -o run/small.vtrace.gz");
    let plain = read(&scratch, "plain.vtrace");
    assert!(gunzip(&read(&scratch, "run/small.vtrace.gz")) == plain);
    // A source of that name becomes a file of that name.
    scratch.text("pack run -o all/");
    assert!(gunzip(&read(&scratch, "all/small.vtrace.gz")) == plain, "there is nothing to add");
    assert!(scratch.text("holders all/small.vtrace.gz").contains("MiB"));
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
    let both = "pack vramtrace-20260101-120000/r0.vtrace vramtrace-20260101-120000/r1.vtrace";
    scratch.fails(2, both, "-o DIR");
    scratch.text(&format!("{both} -o two"));
    assert!(scratch.0.join("two/r1.vtrace").is_file());

    // The same trace twice in a directory counts once.
    std::fs::copy(packed.join("r0.vtrace"), run.join("r0.packed.vtrace")).unwrap();
    let (json, printed) = good(&scratch, "report --json vramtrace-20260101-120000");
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["processes"].as_array().unwrap().len(), 2);
    assert!(printed.contains("is a copy"), "{printed}");
}

#[test]
fn what_was_punched_out_or_cut_off_still_reads() {
    let (scratch, mut t) = traced();
    let trace = scratch.0.join("t.vtrace");
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
        // A file that is cut off says so; its copy has definitions behind the place.
        let all = scratch.json(&format!("holders {file} --at end"));
        format!("{:#}{:#}", all["holders"], all["problems"])
    };
    assert_eq!(holders("t.packed.vtrace"), holders("t.vtrace"));
    // Ends inside its last window.
    file.set_len(whole - 1000).unwrap();
    scratch.text("pack t.vtrace --force");
    assert_eq!(holders("t.packed.vtrace"), holders("t.vtrace"));
    std::fs::remove_file(scratch.0.join("libpool.so")).unwrap();
    assert!(holders("t.packed.vtrace").contains("pool_grow"));
    // Not even a window.
    file.set_len(4096).unwrap();
    scratch.text("pack t.vtrace --force");
    assert_eq!(read(&scratch, "t.vtrace"), read(&scratch, "t.packed.vtrace"));
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
    assert!(!scratch.0.join("t.packed.vtrace").exists());
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
    for (how, events) in [("end", "in order"), ("kill", "was not recorded")] {
        let scratch = Scratch::new();
        scratch.write("allocates.c", ALLOCATES);
        scratch.shell("gcc -O1 -g -o allocates allocates.c -ldl");
        let said = scratch.says(&["run", "--simulate", "--out", "t.vtrace", "./allocates", how]);
        assert_eq!(said.code == Some(0), how == "end", "{said:?}");
        let holders = || scratch.json("holders t.vtrace --by stack")["holders"][1].clone();
        let before = holders();
        assert!(functions(&before).contains(&"load_weights"), "{before:#}");
        // As on a machine without the program.
        std::fs::remove_file(scratch.0.join("allocates")).unwrap();
        assert_eq!(holders(), before);
        let report = scratch.text("report t.vtrace");
        assert!(report.contains(events), "{report}");
        scratch.text("verify t.vtrace");
        // There is nothing left to pack of the program.
        scratch.fails(0, "pack t.vtrace", "had names before");
    }
}
