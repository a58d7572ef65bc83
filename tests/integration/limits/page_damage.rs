//! The program lives whatever is done to the files by which its pages are found, and wherever they
//! can hardly be made.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::{
    Group, InteractiveProgram, Program, Scratch, Setup, SharedMemory, permitted, vramtrace,
};

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

/// All files in a directory, at any depth; or the file itself.
fn files(path: &Path) -> Vec<PathBuf> {
    match fs::read_dir(path) {
        Ok(entries) => entries.flat_map(|entry| files(&entry.unwrap().path())).collect(),
        Err(_) => vec![path.into()],
    }
}

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

#[test]
fn members_live_and_share_whatever_becomes_of_their_groups_page() {
    for (what, damage) in DAMAGES {
        let (group, state) = (Group::new("damage"), Scratch::new());
        let setup = crate::groups::members(&group, &state, "4GiB");
        let mut members = [(); 2].map(|()| InteractiveProgram::start(setup.clone()));
        let [a, b] = &mut members;
        assert_eq!(a.result("a 2000"), 0);
        files(&group.directory()).iter().for_each(|file| damage(file));
        assert_eq!((b.result("a 2000"), b.result("c 10")), (2, 0), "{what}");
        assert_eq!((a.result("f"), b.result("a 2000")), (0, 0), "{what}");
        assert_eq!(a.result("a 2000"), 2, "{what}");
        members.iter_mut().for_each(InteractiveProgram::finish);
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
fn a_job_is_capped_where_dev_shm_is_full_and_refused_where_it_takes_no_file() {
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
    let (status, printed) = run("size=64k", &job);
    assert_eq!(status, 0, "{printed}");
    assert!(printed.contains("ready\n2\n0\n"), "{printed}");
    // The root of the file system and the file that fills it are two.
    let (status, printed) = run("size=64k,nr_inodes=2", &job);
    assert_eq!(status, 2, "{printed}");
    assert!(printed.contains("--job-cap: /dev/shm/vramtrace-"), "{printed}");
    assert!(printed.contains("/dev/shm is full (64.00 KiB, 2 files)"), "{printed}");
    assert!(printed.contains("nothing was run") && !printed.contains("ready"), "{printed}");
}

#[test]
fn a_group_that_finds_no_place_is_refused_with_the_size_of_dev_shm() {
    if !permitted(&small_memory("size=64k")) {
        return;
    }
    // Room for the directory, not for the group's own.
    let setup = Setup::simulated().preload().env("VRAMTRACE_CAP_GROUP", "job:4GiB");
    let setup = setup.through(&small_memory("size=64k,nr_inodes=3"));
    let refused = Program::c("interactive").run(setup);
    let printed = format!("{}{}", refused.stdout, refused.stderr);
    assert_eq!(refused.status, 98, "{printed}");
    for part in ["VRAMTRACE_CAP_GROUP=job: ", "/dev/shm is full (64.00 KiB, 3 files)"] {
        assert!(refused.stdout.contains(part), "{printed}");
    }
}
