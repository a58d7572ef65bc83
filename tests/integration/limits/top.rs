//! `vramtrace top`: on a terminal and without one.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use testkit::{InteractiveProgram, Scratch, Setup, vramtrace};

/// A runtime directory of the test's own, in memory, as live pages must be.
fn runtime() -> Scratch {
    let path = format!(
        "/dev/shm/vramtrace-test-top-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    );
    std::fs::create_dir_all(&path).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
    Scratch::at(path.into())
}

fn start(place: &Scratch) -> InteractiveProgram {
    let setup = Setup::simulated().preload().env("XDG_RUNTIME_DIR", &place.0);
    InteractiveProgram::start(setup.cap("2GiB"))
}

#[test]
fn without_a_terminal_it_prints_once_and_ends() {
    let place = runtime();
    let mut program = start(&place);
    assert_eq!((program.result("a 500"), program.result("a 4000")), (0, 2));
    let top = vramtrace().arg("top").env("XDG_RUNTIME_DIR", &place.0).output().unwrap();
    assert_eq!(top.status.code(), Some(0));
    let text = String::from_utf8(top.stdout).unwrap();
    let line = text.lines().find(|line| line.contains(&program.pid().to_string())).expect(&text);
    let words: Vec<&str> = line.split_whitespace().collect();
    assert!(line.contains("interactive") && line.contains("2.00 GiB"), "{text}");
    assert!(words.contains(&"1"), "one refusal: {text}");
    assert!(text.starts_with("card"), "{text}");
    let wrong = vramtrace().args(["top", "--interval", "0"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("0.1 to 60"));
}

/// Ends with the test, also with one that fails.
struct Terminal(std::process::Child);

impl Drop for Terminal {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            // script(1) ends what it started when it is asked to end.
            let _ = Command::new("kill").arg(self.0.id().to_string()).status();
            let _ = self.0.wait();
        }
    }
}

/// Waits until the terminal has got all of these words since a place in what it got.
fn wait(got: &Mutex<Vec<u8>>, from: usize, words: &[&str]) {
    let began = Instant::now();
    loop {
        let seen = String::from_utf8_lossy(&got.lock().unwrap()[from..]).into_owned();
        if words.iter().all(|word| seen.contains(word)) {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{words:?} in {seen:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn on_a_terminal_a_process_is_opened_and_its_growth_is_shown() {
    let place = runtime();
    let mut program = start(&place);
    assert_eq!(program.result("a 300"), 0);
    let top = env!("CARGO_BIN_EXE_vramtrace");
    // script(1) gives it a terminal.
    let shell = Command::new("script")
        .args([
            "-qec",
            &format!("stty cols 100 rows 24; exec {top} top --interval 0.2"),
            "/dev/null",
        ])
        .env("XDG_RUNTIME_DIR", &place.0)
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script(1) of util-linux");
    let mut shell = Terminal(shell);
    let got = Arc::new(Mutex::new(Vec::new()));
    let (into, mut out) = (got.clone(), shell.0.stdout.take().unwrap());
    let reader = std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(n @ 1..) = out.read(&mut bytes) {
            into.lock().unwrap().extend_from_slice(&bytes[..n]);
        }
    });
    // Cells that stay as they were are not written again: a word that falls on another may have holes.
    let mut keys = shell.0.stdin.take().unwrap();
    wait(&got, 0, &["0.29", "interactive", "filter", "pause"]);
    // The other processes of this machine are no part of this.
    keys.write_all(format!("/{}\r", program.pid()).as_bytes()).unwrap();
    wait(&got, 0, &["filter:"]);
    let from = got.lock().unwrap().len();
    keys.write_all(b"\r").unwrap();
    wait(&got, from, &["opened", "back", "300.00"]);
    let from = got.lock().unwrap().len();
    assert_eq!(program.result("a 200"), 0);
    wait(&got, from, &["+200.00"]);
    keys.write_all(b"q").unwrap();
    assert_eq!(shell.0.wait().unwrap().code(), Some(0));
    drop(keys);
    reader.join().unwrap();
    let all = String::from_utf8_lossy(&got.lock().unwrap()).into_owned();
    assert!(
        all.contains("\u{1b}[?1049h") && all.contains("\u{1b}[?1049l"),
        "the screen comes back"
    );
}
