//! The recorder's tasks in a program's process: none that outlives a call, none that runs the program's code.

use std::time::Duration;
use testkit::{Program, Run, Setup};

const MADE: &str = "import ctypes, os
print(ctypes.CDLL('libcuda.so.1').cuInit(0))
child = os.fork()
if child == 0: os._exit(5)
print(os.WEXITSTATUS(os.waitpid(child, 0)[1]))";

fn tasks(how: &str) -> Setup {
    Setup::simulated().arg(how).timeout(Duration::from_secs(20))
}

#[track_caller]
fn as_bare(how: &str) -> Run {
    let [ours, capped] = [Setup::preload, |setup: Setup| setup.cap("8GiB")]
        .map(|change| Program::c("tasks").as_bare(tasks(how), change).quiet());
    assert_eq!((ours.traces().len(), capped.traces().len()), (1, 1));
    ours
}

/// The C library calls `exit` on the thread that ends last, and counts threads that it made.
#[test]
fn the_handlers_of_exit_run_on_the_programs_last_thread() {
    let ended = as_bare("last");
    assert_eq!(ended.stdout, "at the end: on the worker's thread, SIGTERM is free\n");
    assert_eq!(ended.status, -libc::SIGTERM);
}

#[test]
fn a_program_of_one_thread_is_alone_after_each_call() {
    assert!(as_bare("alone").stdout.contains("most = 1\n"));
}

/// Python reads the number of tasks in /proc/self/stat.
#[test]
fn python_forks_without_a_warning() {
    for (minor, python) in testkit::pythons().into_iter().filter(|(minor, _)| *minor >= 12) {
        let setup = Setup::simulated().arg("-W").arg("always").arg("-c").arg(MADE);
        let ours = Program(python).as_bare(setup, |setup| setup.cap("8GiB")).quiet().ok();
        assert_eq!(ours.stdout, "0\n5\n", "{minor}");
    }
}
