//! A filter of system calls denies, one after the other, what the library would like to ask for.
//! The program prints what it prints without us under the same filter, and a cap that was asked for
//! is kept or refuses. docs/ENV.md has the list of what is lost with each call.

mod support;

use std::path::{Path, PathBuf};
use support::{Scratch, command, shim, text};

macro_rules! calls {
    ($($name:ident)*) => { [$((stringify!($name), libc::$name)),*] };
}

const CALLS: [(&str, i64); 39] = calls! {
    SYS_openat SYS_getrandom SYS_process_vm_readv SYS_fallocate SYS_ftruncate SYS_pwrite64
    SYS_shmget SYS_shmat SYS_shmctl SYS_readlink SYS_readlinkat SYS_statx SYS_newfstatat SYS_fstat
    SYS_uname SYS_sched_yield SYS_madvise SYS_memfd_create SYS_prctl SYS_tgkill SYS_mkdir
    SYS_mkdirat SYS_unlink SYS_rename SYS_fcntl SYS_flock SYS_getdents64 SYS_sched_getaffinity
    SYS_sigaltstack SYS_rt_sigtimedwait SYS_rt_sigpending SYS_geteuid SYS_prlimit64 SYS_clone3
    SYS_clone SYS_msync SYS_getpid SYS_close_range SYS_unshare
};

struct Filtered {
    dir: Scratch,
    program: PathBuf,
    deny: PathBuf,
}

impl Filtered {
    fn new() -> Filtered {
        let dir = Scratch::new();
        dir.driver();
        let program = dir.compile("linked", "linked", &["-L.", "-l:libcuda.so.1"]);
        let deny = dir.compile("deny", "deny.so", &["-shared", "-fPIC"]);
        Filtered { dir, program, deny }
    }

    fn run(&self, preloads: &[&Path], (_, call): (&str, i64), error: i32, cap: bool) -> String {
        let names: Vec<_> = preloads.iter().map(|path| path.to_str().unwrap()).collect();
        let mut command = command(&self.program, &self.dir.0);
        command.env("LD_PRELOAD", names.join(":")).env("VRAMTRACE_OUT", "here/");
        command.env("DENY_CALL", call.to_string()).env("DENY_ERROR", error.to_string());
        command.env("XDG_RUNTIME_DIR", &self.dir.0);
        if cap {
            command.env("VRAMTRACE_CAP", "8GiB");
        }
        text(&command.output().unwrap())
    }
}

#[test]
fn the_program_is_as_under_the_same_filter_without_us() {
    let filtered = Filtered::new();
    for call in CALLS {
        for error in [libc::EPERM, libc::ENOSYS] {
            for cap in [false, true] {
                let bare = filtered.run(&[&filtered.deny], call, error, cap);
                let ours = filtered.run(&[&shim(), &filtered.deny], call, error, cap);
                let is_ours = |line: &&str| line.starts_with("vramtrace: ");
                assert!(ours.lines().filter(is_ours).count() <= 1, "{call:?} {error}: {ours}");
                let rest: Vec<&str> = ours.lines().filter(|line| !is_ours(line)).collect();
                assert_eq!(rest, bare.lines().collect::<Vec<_>>(), "{call:?} {error} cap {cap}");
            }
        }
    }
}

/// `std`'s random keys of hash maps panic at an error of getrandom that it does not expect.
#[test]
fn no_random_numbers_change_nothing() {
    let filtered = Filtered::new();
    for error in [libc::EPERM, libc::ENOSYS, libc::EACCES] {
        for cap in [false, true] {
            let call = ("getrandom", libc::SYS_getrandom);
            let got = filtered.run(&[&shim(), &filtered.deny], call, error, cap);
            assert_eq!(got, "0 0 1 0 reached 1 1\nexit status: 0\n", "{error} cap {cap}");
        }
    }
}
