//! Programs that never touch CUDA do not notice us: same output, same status, no file, no driver.

mod support;

use std::path::PathBuf;
use std::process::Command;
use support::{Scratch, command, on_path, shim, text};

/// Runs it bare and preloaded, in a fresh directory each, after `prepare` in both.
#[track_caller]
fn same(program: PathBuf, arguments: &[&str], prepare: impl Fn(&Scratch)) {
    let run = |preload: bool| {
        let dir = Scratch::new();
        prepare(&dir);
        let before = dir.files();
        let mut command = command(&program, &dir.0);
        command.args(arguments).env("TZ", "UTC").env("LC_ALL", "C").env_remove("LD_LIBRARY_PATH");
        if preload {
            command.env("LD_PRELOAD", shim());
        }
        let output = command.output().unwrap();
        let traces: Vec<_> = dir.files().into_iter().filter(|f| !before.contains(f)).collect();
        assert!(!traces.iter().any(|file| file.contains("vtrace")), "{traces:?}");
        text(&output).replace(dir.0.to_str().unwrap(), "DIR")
    };
    let (bare, ours) = (run(false), run(true));
    assert!(bare == ours, "{} {arguments:?}\nbare\n{bare}\npreloaded\n{ours}", program.display());
}

#[track_caller]
fn same_in(name: &str, arguments: &[&str]) {
    match on_path(name) {
        Some(program) => same(program, arguments, |_| {}),
        None => testkit::skip(&format!("other_programs: no {name}")),
    }
}

#[test]
fn bash_runs_as_without_us() {
    same_in("bash", &["-c", "for i in 1 2 3; do echo $i $(ls / | wc -l); done; (exit 7); echo $?"]);
    same_in("bash", &["-c", "kill -TERM $$"]);
    same_in("bash", &["-c", "echo to stderr >&2; exit 3"]);
    same_in("bash", &["-c", "grep -c libcuda /proc/self/maps"]);
}

#[test]
fn git_runs_as_without_us() {
    let script = "git init -q . && echo a > a && git add a && \
        git -c user.name=n -c user.email=e commit -q -m one --date=2001-01-01T00:00:00Z && \
        git log --format='%an %ad %s' && git status --short && git fsck";
    same_in("bash", &["-c", script]);
}

#[test]
fn python_runs_as_without_us() {
    let script = "
import ctypes, subprocess, sys, threading, hashlib, json, ssl, sqlite3, socket, os
print(sys.version_info[:2], json.dumps({'a': 1}), hashlib.sha256(b'x').hexdigest())
lib = ctypes.CDLL(None)
print(lib.getppid() == os.getppid(), hasattr(lib, 'cuInit'), hasattr(lib, 'nvmlInit_v2'))
print(subprocess.run(['sh', '-c', 'exit 5']).returncode)
t = [threading.Thread(target=lambda: sum(range(1000))) for _ in range(8)]
[x.start() for x in t]; [x.join() for x in t]
pid = os.fork()
if pid == 0: os._exit(4)
print(os.waitpid(pid, 0)[1])
print('libcuda' in open('/proc/self/maps').read())
sys.exit(9)
";
    let found = testkit::pythons();
    for minor in 8..=13 {
        match found.iter().find(|(known, _)| *known == minor) {
            // Its warning about fork among threads depends on how fast the threads leave.
            Some((_, python)) => same(python.clone(), &["-W", "ignore", "-c", script], |_| {}),
            None => testkit::skip_here(&format!("other_programs: no Python 3.{minor}")),
        }
    }
}

#[test]
fn node_runs_as_without_us() {
    let script = "const c = require('child_process'); \
        console.log(process.versions.node, c.execSync('echo child').toString()); \
        new (require('worker_threads').Worker)('console.log(1)', {eval: true})";
    same_in("node", &["-e", script]);
}

#[test]
fn compilers_run_as_without_us() {
    let script = "echo 'int main(void){return 42;}' > m.c && gcc -O2 m.c -o m && ./m; echo $?; \
        echo 'int main({' > bad.c && gcc bad.c -o bad; echo $?";
    same_in("bash", &["-c", script]);
    let script = "printf '[package]\\nname = \"example\"\\n[workspace]\\n' > Cargo.toml && mkdir src && \
        echo 'fn main() { println!(\"hello\"); std::process::exit(5) }' > src/main.rs && \
        cargo check -q --offline && cargo run -q --offline; echo $?";
    same_in("bash", &["-c", script]);
}

#[test]
fn common_tools_run_as_without_us() {
    same_in("perl", &["-e", "print join(',', map { $_ * 2 } 1..5), qq{\\n}; exit 6"]);
    same_in("java", &["-version"]);
    same_in("gdb", &["--batch", "-ex", "print 1+1"]);
    same_in("valgrind", &["-q", "--error-exitcode=9", "/bin/true"]);
    same_in("strace", &["-V"]);
    same_in("tar", &["--version"]);
    same_in("ssh", &["-V"]);
}

#[test]
fn threads_that_fork_run_as_without_us() {
    let dir = Scratch::new();
    let program = dir.compile("forks", "forks", &["-pthread", "-ldl"]);
    same(program, &[], |_| {});
}

/// A program with AddressSanitizer wants to be first; with the check off it runs with us too.
#[test]
fn a_program_with_address_sanitizer_runs_as_without_us() {
    let dir = Scratch::new();
    let source = dir.0.join("a.c");
    std::fs::write(&source, "int main(void){return 3;}").unwrap();
    let built = Command::new("cc")
        .args(["-fsanitize=address", "-o"])
        .arg(dir.0.join("a"))
        .arg(&source)
        .output();
    if !built.is_ok_and(|output| output.status.success()) {
        testkit::skip("other_programs: no AddressSanitizer");
        return;
    }
    let output = command(dir.0.join("a"), &dir.0)
        .env("LD_PRELOAD", shim())
        .env("ASAN_OPTIONS", "verify_asan_link_order=0:detect_leaks=0")
        .output()
        .unwrap();
    assert_eq!(text(&output), "exit status: 3\n");
}
