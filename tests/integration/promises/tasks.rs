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
    let program = Program::c("tasks");
    let bare = program.run(tasks(how));
    for cap in [false, true] {
        let setup = tasks(how).preload();
        let ours = program.run(if cap { setup.cap("8GiB") } else { setup });
        assert_eq!((&ours.stdout, ours.status), (&bare.stdout, bare.status), "{}", ours.stderr);
        assert_eq!(ours.stderr, "", "cap {cap}");
        assert_eq!(ours.traces().len(), 1);
    }
    bare
}

/// The C library calls `exit` on the thread that ends last, and counts threads that it made.
#[test]
fn the_handlers_of_exit_run_on_the_programs_last_thread() {
    let bare = as_bare("last");
    assert_eq!(bare.stdout, "at the end: on the worker's thread, SIGTERM is free\n");
    assert_eq!(bare.status, -libc::SIGTERM);
}

#[test]
fn a_program_of_one_thread_is_alone_after_each_call() {
    let bare = as_bare("alone");
    assert!(bare.stdout.contains("most = 1\n"), "{}", bare.stdout);
}

/// Python reads the number of tasks in /proc/self/stat.
#[test]
fn python_forks_without_a_warning() {
    for (minor, python) in testkit::pythons().into_iter().filter(|(minor, _)| *minor >= 12) {
        let setup = || Setup::simulated().arg("-W").arg("always").arg("-c").arg(MADE);
        let bare = Program(python.clone()).run(setup());
        assert_eq!((bare.stdout.as_str(), bare.stderr.as_str()), ("0\n5\n", ""), "{minor}");
        let ours = Program(python).run(setup().preload().cap("8GiB"));
        assert_eq!((&ours.stdout, &ours.stderr), (&bare.stdout, &bare.stderr), "{minor}");
        assert_eq!(ours.status, 0, "{minor}");
    }
}
