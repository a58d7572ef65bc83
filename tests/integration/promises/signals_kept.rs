//! Signals are the program's: what it blocks stays pending for it, and a filter of system calls that answers by SIGSYS
//! reaches its handler, in the recorder's tasks too.

use testkit::{Program, Run, Setup};

#[track_caller]
fn as_bare(setup: impl Fn() -> Setup) -> Run {
    let program = Program::c("signals_kept");
    for change in [Setup::preload, |setup: Setup| setup.cap("8GiB")] {
        let ours = program.as_bare(setup(), change);
        assert!(ours.stderr.lines().all(|line| line.starts_with("vramtrace: ")), "{}", ours.stderr);
    }
    program.run(setup())
}

#[test]
fn signals_that_the_program_blocks_wait_for_it() {
    let numbers = [
        libc::SIGILL,
        libc::SIGBUS,
        libc::SIGSEGV,
        libc::SIGSYS,
        libc::SIGFPE,
        libc::SIGTRAP,
        libc::SIGABRT,
        libc::SIGTERM,
        libc::SIGUSR1,
    ];
    let each: String = numbers.iter().map(|number| format!("{number}\n")).collect();
    for how in ["wait", "descriptor", "small", "timer"] {
        let bare = as_bare(|| Setup::simulated().arg(how));
        assert_eq!((bare.stdout, bare.status), (each.clone(), 0), "{how}");
    }
    for how in ["handler", "jump"] {
        let bare = as_bare(|| Setup::simulated().arg(how));
        assert_eq!(bare.stdout, "9 handled, 0 elsewhere\n", "{how}");
    }
}

macro_rules! calls {
    ($($name:ident)*) => { [$((stringify!($name), libc::$name)),*] };
}

/// As sandboxes of browsers do, entered after the first calls.
#[test]
fn a_filter_that_answers_by_a_signal_reaches_the_programs_handler() {
    let calls = calls! {
        SYS_openat SYS_pwrite64 SYS_fallocate SYS_ftruncate SYS_lseek SYS_fstat SYS_newfstatat
        SYS_clone SYS_clone3 SYS_close_range SYS_unshare SYS_close SYS_rseq SYS_prctl SYS_tgkill
        SYS_sched_yield SYS_getpid SYS_getrandom SYS_process_vm_readv SYS_shmget SYS_shmat
        SYS_prlimit64 SYS_madvise SYS_gettid SYS_rt_sigtimedwait SYS_rt_sigpending SYS_memfd_create
    };
    for (name, call) in calls {
        for error in [libc::EPERM, libc::ENOSYS] {
            let bare = as_bare(|| Setup::simulated().arg("trap").arg(call).arg(error));
            assert_eq!((bare.stdout.as_str(), bare.status), ("done\n", 0), "{name}");
        }
    }
}
