//! Directories and traces that someone else wrote: no name in them makes a command wait, write elsewhere or
//! take more than a bounded amount of memory.

use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use testkit::trace_builder::{MS, TraceBuilder, training};
use testkit::{Scratch, fifo};
use vramtrace_format::header::run_id;
use vramtrace_format::window::WindowKind;
use vramtrace_format::{
    HEADER_BYTES, Header, Kind, SLOT, TailPlace, TraceReader, WindowHeader, WindowWriter, tail,
};

struct Ended {
    code: Option<i32>,
    /// What it printed.
    said: String,
    /// The most memory that it had, bytes.
    memory: u64,
}

/// Starts a command, and writes the most memory that it had, in KiB, to the file of the first argument. The
/// kernel gives a process the peak of the one that started it (`exec` keeps it), and the test process may have
/// taken hundreds of MiB: so a small process starts the command.
const MEASURED: &str = "import os, signal, sys
child = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ, setsigdef=[signal.SIGPIPE])
_, status, usage = os.wait4(child, 0)
with open(sys.argv[1], 'w') as file: file.write(str(usage.ru_maxrss))
code = os.waitstatus_to_exitcode(status)
if code < 0: os.kill(os.getpid(), -code)
os._exit(code)";

/// Runs a command that must end by itself.
#[track_caller]
fn ends(command: &Command) -> Ended {
    let directory = Scratch::new();
    let file = |name: &str| File::create(directory.0.join(name)).unwrap();
    let mut measured = Command::new("timeout");
    measured.args(["-k1", "60", "python3", "-S", "-c", MEASURED]).arg(directory.0.join("memory"));
    measured.arg(command.get_program()).args(command.get_args());
    measured.env_remove("LD_PRELOAD").env("NO_COLOR", "1");
    measured.current_dir(command.get_current_dir().unwrap_or(Path::new(".")));
    measured.stdin(Stdio::null()).stdout(file("out")).stderr(file("err"));
    let status = measured.status().unwrap();
    assert_ne!(status.code(), Some(124), "{command:?} does not end");
    let text = |name: &str| {
        String::from_utf8_lossy(&std::fs::read(directory.0.join(name)).unwrap()).into_owned()
    };
    let memory = text("memory").parse::<u64>().expect("the memory of the command") * 1024;
    Ended { code: status.code(), said: [text("out"), text("err")].concat(), memory }
}

impl Ended {
    #[track_caller]
    fn ok(self) -> Ended {
        assert_eq!(self.code, Some(0), "{}", self.said);
        self
    }
}

fn command(line: &str, scratch: &Scratch) -> Ended {
    ends(&scratch.command(&line.split(' ').collect::<Vec<_>>()))
}

const TAG: u64 = u64::from_le_bytes(*b"01234567");

/// A trace as a killed process leaves it: its header page says that a tail is there.
fn killed(path: &Path, run: Option<u64>) -> Header {
    let mut bytes = training().bytes();
    let header = TraceReader::new(&bytes).unwrap().header().clone();
    let header = Header { tail: Some(TailPlace::Beside), run, ..header };
    bytes[..HEADER_BYTES].copy_from_slice(&header.to_page());
    std::fs::write(path, bytes).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
    header
}

fn tail_of(trace: &Path) -> PathBuf {
    let name = tail::name(trace.file_name().unwrap().as_bytes(), TAG);
    trace.with_file_name(std::ffi::OsStr::from_bytes(&name))
}

/// A tail with an empty window of events at this slot.
fn tail(path: &Path, header: &Header, slot: u32) -> File {
    let words: Vec<_> = (0..SLOT / 8).map(|_| std::sync::atomic::AtomicU64::new(0)).collect();
    let window = WindowHeader {
        kind: WindowKind::Events,
        slots: 1,
        sequence: 1,
        slot,
        base_time_ns: 5 * MS,
        file: TAG,
    };
    WindowWriter::begin(&words, window);
    let bytes = words.into_iter().flat_map(|word| word.into_inner().to_ne_bytes());
    let bytes: Vec<u8> = bytes.collect();
    let file = OpenOptions::new().write(true).create_new(true).open(path).unwrap();
    file.write_all_at(&header.to_page(), 0).unwrap();
    file.write_all_at(&bytes, tail::TAIL_START as u64).unwrap();
    file.set_permissions(PermissionsExt::from_mode(0o400)).unwrap();
    file
}

/// A run in a directory in which others may write: `make` makes files with its number, as they could, and its command
/// puts them there.
fn run_that_finds(scratch: &Scratch, make: impl FnOnce(Option<u64>) + Send, script: &str) {
    std::fs::create_dir_all(scratch.0.join("shared")).unwrap();
    let (marker, made) = (scratch.0.join("marker"), scratch.0.join("made"));
    let script = format!(
        "printf %s \"$VRAMTRACE_RUN\" > begun && mv begun marker; until [ -e made ]; do sleep 0.01; done; {script}"
    );
    let run = scratch.command(&["run", "--out", "shared/", "--", "sh", "-c", &script]);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !marker.exists() {
                assert!(!ended.load(Relaxed), "the command did not begin");
                std::thread::sleep(Duration::from_millis(10));
            }
            make(Some(run_id(&std::fs::read(&marker).unwrap())));
            std::fs::write(&made, "").unwrap();
        });
        let said = ends(&run);
        ended.store(true, Relaxed);
        said.ok();
    });
    std::fs::remove_file(marker).unwrap();
    std::fs::remove_file(made).unwrap();
}

#[test]
fn a_run_writes_a_tail_into_no_file_that_another_name_leads_to() {
    let scratch = Scratch::new();
    let victim = scratch.0.join("victim");
    for planted in ["link", "hard"] {
        let place = scratch.0.join(planted);
        std::fs::create_dir_all(&place).unwrap();
        let trace = place.join("evil.vtrace");
        let mut before = Vec::new();
        let make = |run| {
            let header = killed(&victim, run);
            before = std::fs::read(&victim).unwrap();
            match planted {
                "link" => symlink(&victim, &trace).unwrap(),
                _ => std::fs::hard_link(&victim, &trace).unwrap(),
            }
            tail(&tail_of(&trace), &header, 2);
        };
        let script = match planted {
            "link" => "cp -a link/. shared/",
            _ => "ln hard/evil.vtrace shared/ && cp -a hard/.evil* shared/",
        };
        run_that_finds(&scratch, make, script);
        assert!(std::fs::read(&victim).unwrap() == before, "{planted}: it was written over");
        std::fs::remove_dir_all(scratch.0.join("shared")).unwrap();
        std::fs::remove_dir_all(&place).unwrap();
    }
}

/// The same files without a trap: they are put together. Not so where somebody else may have written them.
#[test]
fn a_run_puts_together_a_trace_and_a_tail_of_its_own_user_alone() {
    for (whose, change) in [
        ("own", "true"),
        ("open to others", "chmod 666 shared/t.vtrace"),
        ("of another user", "chown 65534 shared/t.vtrace"),
        ("with a tail of another user", "chown 65534 shared/.t.vtrace*"),
    ] {
        if change.starts_with("chown") && testkit::user() != 0 {
            continue;
        }
        let scratch = Scratch::new();
        let place = scratch.0.join("planted");
        std::fs::create_dir(&place).unwrap();
        let make = |run| {
            let header = killed(&place.join("t.vtrace"), run);
            tail(&tail_of(&place.join("t.vtrace")), &header, 2);
        };
        run_that_finds(&scratch, make, &format!("cp -a planted/. shared/ && {change}"));
        let left = tail_of(&scratch.0.join("shared/t.vtrace")).exists();
        assert_eq!(left, whose != "own", "{whose}");
    }
}

#[test]
fn a_tail_or_a_library_that_is_no_file_is_not_waited_for() {
    let scratch = Scratch::new();
    let place = scratch.0.join("planted");
    std::fs::create_dir(&place).unwrap();
    let trace = place.join("t.vtrace");
    killed(&trace, None);
    fifo(&tail_of(&trace));
    for words in ["report", "verify", "oom", "pack -o out.vtrace"] {
        let ended = command(&format!("{words} planted/t.vtrace"), &scratch);
        assert!(ended.code.is_some(), "{words}: {}", ended.said);
        assert!(words != "report" || ended.said.contains("without its tail"), "{}", ended.said);
    }
    let again = |run| drop(killed(&trace, run));
    run_that_finds(&scratch, again, "cp -a planted/. shared/");

    for (name, library) in [("fifo", "lib.fifo"), ("device", "/dev/zero"), ("proc", "/proc/kmsg")] {
        let path = scratch.0.join(library);
        if name == "fifo" {
            fifo(&path);
        }
        let mut t = TraceBuilder::new();
        t.module(path.to_str().unwrap(), 0x1000_0000);
        t.stack(1, &[0x1000_0010], &[], &[]);
        t.alloc_by(MS, Kind::Device, 0x200_0000, 3 << 20, 1);
        t.write(&scratch.0.join(format!("{name}.vtrace")));
        let said = command(&format!("holders {name}.vtrace"), &scratch).ok().said;
        assert!(said.contains(&format!("{}+0x10", path.file_name().unwrap().display())), "{said}");
        assert!(said.contains("its functions have no names"), "{said}");
    }
}

#[test]
fn a_tail_takes_the_memory_of_its_windows_alone() {
    const MOST: u64 = 256 << 20;
    let scratch = Scratch::new();
    let trace = scratch.0.join("t.vtrace");
    let header = killed(&trace, None);
    for (slot, length) in [(2, 1 << 40), (2, 6 << 30), (1 << 20, 1 << 20), (u32::MAX, 1 << 20)] {
        let path = tail_of(&trace);
        let file = tail(&path, &header, slot);
        file.set_len(length).unwrap();
        for words in ["report", "verify"] {
            let ended = command(&format!("{words} t.vtrace"), &scratch).ok();
            assert!(ended.memory < MOST, "{slot}, {length}: {} bytes", ended.memory);
        }
        std::fs::remove_file(path).unwrap();
    }
    // `Scratch` verifies what is left.
    tail(&tail_of(&trace), &header, 2);
}

/// Nor does a command that is killed while it writes.
#[test]
fn an_output_that_cannot_be_written_leaves_nothing() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.0.join("to")).unwrap();
    let mut t = TraceBuilder::new();
    for n in 0..500 {
        t.alloc(MS * (n + 1), Kind::Device, 0x200_0000 + (n << 22), 3 << 20);
    }
    t.write(&scratch.0.join("t.vtrace"));
    let export = format!("exec {}/vramtrace export t.vtrace", testkit::bin_dir().display());
    for limit in ["ulimit -f 8", "trap '' XFSZ; ulimit -f 8"] {
        let script = format!("{limit}; {export} --format csv -o to/out.csv");
        let ended = ends(Command::new("bash").args(["-c", &script]).current_dir(&scratch.0));
        assert_ne!(ended.code, Some(0));
        let left: Vec<_> = std::fs::read_dir(scratch.0.join("to")).unwrap().collect();
        assert!(left.is_empty(), "{limit}: {left:?}");
    }
}

/// Its debug information is 256 MiB of zeros.
#[test]
fn a_library_that_unpacks_without_end_gives_no_more_than_its_symbols() {
    let scratch = Scratch::new();
    scratch.write("bomb.c", "int grow(int x) { return x + 1; }\n");
    File::create(scratch.0.join("zeros")).unwrap().set_len(256 << 20).unwrap();
    let symbols = scratch.shell(
        "gcc -shared -fPIC -o plain.so bomb.c && \
        objcopy --add-section .debug_info=zeros plain.so big.so && \
        objcopy --compress-debug-sections=zlib big.so bomb.so && nm bomb.so",
    );
    let bomb = scratch.0.join("bomb.so");
    assert!(bomb.metadata().unwrap().len() < 1 << 20);
    let grow = symbols.lines().find(|line| line.ends_with(" grow")).unwrap();
    let grow = u64::from_str_radix(grow.split(' ').next().unwrap(), 16).unwrap();
    let mut t = TraceBuilder::new();
    t.library(bomb.to_str().unwrap(), Vec::new(), 0x1000_0000, 0x10_0000);
    t.stack(1, &[0x1000_0001 + grow], &[], &[]);
    t.alloc_by(MS, Kind::Device, 0x200_0000, 3 << 20, 1);
    t.write(&scratch.0.join("t.vtrace"));
    let ended = command("holders t.vtrace", &scratch);
    for part in ["grow", "bomb.so: its debug information"] {
        assert!(ended.said.contains(part), "{}", ended.said);
    }
    assert!(ended.memory < 128 << 20, "{}", ended.memory);
}

#[test]
fn no_cell_of_a_spreadsheet_is_a_formula() {
    let mut t = TraceBuilder::new();
    t.code(1, "=HYPERLINK(A1)", "@SUM(A1).py", 7);
    t.code(2, "+1", "-2+3", 7);
    t.stack(1, &[], &[1, 2], &[]);
    t.stack(2, &[], &[2, 1], &[]);
    t.alloc_by(MS, Kind::Device, 0x200_0000, 3 << 20, 1);
    t.alloc_by(MS, Kind::Device, 0x400_0000, 3 << 20, 2);
    let csv = Scratch::with(&t).text("export t.vtrace --format csv -o -");
    assert!(csv.contains(",'@SUM(A1).py:7") && csv.contains(",'-2+3"), "{csv}");
    let mut cells = csv.lines().flat_map(|line| line.split(','));
    assert_eq!(cells.find(|cell| cell.starts_with(['=', '+', '-', '@'])), None);
}
