//! The program lives whatever is done to the files by which its pages are found, and wherever they
//! can hardly be made.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::{Group, InteractiveProgram, Program, Scratch, SharedMemory, permitted, vramtrace};

const MIB: u64 = 1 << 20;

type Damage = (&'static str, fn(&Path));

/// What a clean-up script, or a program gone wrong, does to a file.
const DAMAGES: [Damage; 5] = [
    ("cut short", |file| {
        fs::File::options().write(true).open(file).unwrap().set_len(0).unwrap();
    }),
    ("cut in the middle", |file| {
        fs::File::options().write(true).open(file).unwrap().set_len(4096).unwrap();
    }),
    ("overwritten", |file| fs::write(file, [0xA5; 100_000]).unwrap()),
    ("opened to others", |file| {
        fs::set_permissions(file, fs::Permissions::from_mode(0o666)).unwrap();
    }),
    ("removed", |file| fs::remove_file(file).unwrap()),
];

#[test]
fn a_process_lives_and_is_seen_whatever_becomes_of_its_live_page() {
    for (what, damage) in DAMAGES {
        let memory = SharedMemory::new();
        let mut process = InteractiveProgram::start(memory.setup());
        assert_eq!(process.result("a 100"), 0);
        memory.pages().iter().for_each(|page| damage(page));
        assert_eq!(process.result("c 100"), 0, "{what}");
        // Where the file was removed it comes again with the next copy, a second later at most.
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert_eq!(process.result("a 100"), 0, "{what}");
        let live = SharedMemory::live_bytes(&memory.ps(&[]), process.pid());
        assert_eq!(live, Some(200 * MIB), "{what}");
        memory.says(&[], &format!("cap --pid {} 1GiB", process.pid()));
        assert_eq!(process.result("a 1000"), 2, "{what}");
        process.finish();
        assert_eq!(memory.pages(), [] as [PathBuf; 0], "{what}");
    }
}

/// A shell that limits the length of files, in blocks of 1,024 bytes, and runs what follows.
fn file_limit(blocks: &str) -> [&str; 4] {
    ["bash", "-c", "ulimit -f \"$0\"; exec \"$@\"", blocks]
}

#[test]
fn files_of_no_length_do_for_pages() {
    for blocks in ["0", "1", "8"] {
        let (memory, group) = (SharedMemory::new(), Group::new(&format!("fsize-{blocks}")));
        let setup = memory.setup().env("VRAMTRACE_OUT", "off");
        let setup = setup.env("VRAMTRACE_CAP_GROUP", format!("{}:4GiB", group.0));
        let mut process = InteractiveProgram::start(setup.through(&file_limit(blocks)));
        assert_eq!((process.result("a 4000"), process.result("a 1000")), (2, 0), "{blocks}");
        let live = SharedMemory::live_bytes(&memory.ps(&[]), process.pid());
        assert_eq!(live, Some(1000 * MIB), "{blocks}");
    }
}

/// A shell with a /dev/shm of its own, made by these options of mount(8) and filled to its end, which
/// runs what follows.
fn small_memory(options: &str) -> [&str; 8] {
    const SCRIPT: &str = "mount -t tmpfs -o \"$0\" tmpfs /dev/shm && \
                          { head -c 1000000 /dev/zero > /dev/shm/fill; exec \"$@\"; } 2>&1";
    ["unshare", "--mount", "--propagation", "private", "sh", "-c", SCRIPT, options]
}

#[test]
fn a_job_is_capped_where_dev_shm_takes_no_file() {
    if !permitted(&small_memory("size=64k")) {
        return;
    }
    let program = Program::c("interactive");
    let run = |options: &str, launcher: &[&str]| {
        let scratch = Scratch::new();
        let input = scratch.0.join("input");
        fs::write(&input, "a 4000\na 1000\n").unwrap();
        let words = small_memory(options);
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args(launcher).arg(&program.0);
        let run = command.stdin(fs::File::open(input).unwrap()).current_dir(&scratch.0);
        let run = run.env_remove("XDG_RUNTIME_DIR").output().unwrap();
        (run.status.code().unwrap(), String::from_utf8_lossy(&run.stdout).into_owned())
    };
    let vramtrace = vramtrace().get_program().to_str().unwrap().to_owned();
    let job = [&*vramtrace, "run", "--simulate", "--job-cap", "4GiB", "--out", "t", "--"];
    // The root of the file system and the file that fills it are two.
    let (status, printed) = run("size=64k,nr_inodes=2", &job);
    assert_eq!(status, 0, "{printed}");
    assert!(printed.contains("ready\n2\n0\n"), "{printed}");
}
