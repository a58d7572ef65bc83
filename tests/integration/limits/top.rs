//! `vramtrace top`: on a terminal and without one.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use testkit::{InteractiveProgram, Scratch, Setup, SharedMemory, eventually, sim_dir};

fn start(place: &SharedMemory) -> InteractiveProgram {
    InteractiveProgram::start(place.setup().cap("2GiB"))
}

/// The row of a process, by words.
fn row(text: &str, pid: u32) -> Option<Vec<String>> {
    let words = |line: &str| line.split_whitespace().map(String::from).collect::<Vec<_>>();
    text.lines().map(words).find(|words| words.first() == Some(&pid.to_string()))
}

#[test]
fn without_a_terminal_it_prints_once_and_ends() {
    let place = SharedMemory::new();
    let mut program = start(&place);
    assert_eq!(program.results("a 500, a 4000"), [0, 2]);
    let text = place.says(&[], "top");
    let words = row(&text, program.pid()).expect(&text);
    let line = words.join(" ");
    assert!(line.contains("interactive") && line.contains("2.00 GiB"), "{text}");
    assert!(words.contains(&"1".into()), "one refusal: {text}");
    assert!(text.starts_with("card"), "{text}");
    place.refuses("top --interval 0", "0.1 to 60");
}

#[test]
fn nvml_lists_the_processes_that_are_not_traced() {
    let place = SharedMemory::new();
    let state = Scratch::new();
    let setup = || {
        let setup = Setup::simulated().env("XDG_RUNTIME_DIR", &place.0);
        setup.env("VRAMTRACE_SIM_STATE", state.0.join("state"))
    };
    let mut traced = InteractiveProgram::start(setup().preload());
    let mut untraced = InteractiveProgram::start(setup());
    assert_eq!((traced.result("a 700"), untraced.result("a 900")), (0, 0));
    let look = |nvml: &str| {
        let library = format!("LD_LIBRARY_PATH={}", sim_dir().display());
        let state = format!("VRAMTRACE_SIM_STATE={}", state.0.join("state").display());
        let nvml = format!("VRAMTRACE_SIM_NVML={nvml}");
        place.says(&["env", "VRAMTRACE_SIM=1x24GiB", &library, &state, &nvml], "top")
    };
    let row = |text: &str, pid: u32| row(text, pid).map(|words| words.join(" "));
    let text = look("busy:37");
    let (mine, other) = (row(&text, traced.pid()).unwrap(), row(&text, untraced.pid()).unwrap());
    assert!(mine.contains("cuda:0 37 % 700.00 MiB 700.00 MiB 1.19 GiB - 0"), "{text}");
    assert!(other.contains("GPU 0 37 % - - 1.39 GiB untraced - - -"), "{text}");
    assert!(other.ends_with("(not traced)"), "{text}");
    let of_card = |line: &str| line.starts_with("GPU 0  2.60 GiB  24.00 GiB  37 %");
    assert!(text.lines().any(of_card), "{text}");
    // What is not known is not shown, and nothing waits for an answer that does not come.
    for (nvml, words) in [
        ("strangers", "NVML lists other pids"),
        ("absent", "without NVML"),
        ("hangs:0", "GPU 0"),
        ("lost:0", "GPU 0"),
    ] {
        let text = look(nvml);
        assert!(text.contains(words), "{nvml}: {text}");
        assert_eq!(row(&text, untraced.pid()), None, "{nvml}: {text}");
        let row = row(&text, traced.pid()).unwrap();
        assert!(row.contains("cuda:0 - 700.00 MiB"), "{nvml}: {text}");
    }
}

#[test]
fn a_process_that_grows_has_a_rate_and_the_time_until_it_is_full() {
    let place = SharedMemory::new();
    let (mut grows, mut steady) = (start(&place), start(&place));
    assert_eq!((grows.result("a 300"), steady.result("a 300")), (0, 0));
    // A verdict may be due later on a machine with much other work, which also makes pauses in the growth. A row
    // without a rate ends "- - COMMAND", one with a rate "RATE TIME UNIT COMMAND".
    let rate = |row: &[String]| match row {
        [.., rate, _, unit, _] if ["ms", "s", "min"].contains(&unit.as_str()) => {
            rate.replace(',', "").parse::<f64>().ok()
        }
        _ => None,
    };
    let look = || {
        for _ in 0..60 {
            let results = (grows.results("c 2, a 1"), steady.result("c 2"));
            assert_eq!(results, (vec![0, 0], 0));
            std::thread::sleep(Duration::from_millis(2));
        }
        let text = place.says(&[], "top");
        let [grows, steady] = [grows.pid(), steady.pid()].map(|pid| row(&text, pid).expect(&text));
        (rate(&grows), steady.join(" "), text)
    };
    let is_judged =
        |(rate, steady, _): &(Option<f64>, String, String)| rate.is_some() && !steady.contains('?');
    let (rate, steady, text) = eventually(look, is_judged);
    assert!(rate > Some(1.0), "{text}");
    assert!(steady.contains(" 0 - - interactive"), "{text}");
}

/// `vramtrace top` on a terminal of script(1), which ends with the test, also with one that fails.
struct Terminal {
    shell: Child,
    keys: Option<ChildStdin>,
    got: Arc<Mutex<Vec<u8>>>,
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if let Ok(None) = self.shell.try_wait() {
            // script(1) ends what it started when it is asked to end.
            let _ = Command::new("kill").arg(self.shell.id().to_string()).status();
            let _ = self.shell.wait();
        }
    }
}

impl Terminal {
    fn open(place: &SharedMemory, columns: u32, rows: u32) -> Terminal {
        let top = env!("CARGO_BIN_EXE_vramtrace");
        let size = format!("stty cols {columns} rows {rows}");
        let mut shell = Command::new("script")
            .args(["-qec", &format!("{size}; exec {top} top --interval 0.2"), "/dev/null"])
            .env("XDG_RUNTIME_DIR", &place.0)
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script(1) of util-linux");
        let got = Arc::new(Mutex::new(Vec::new()));
        let (into, mut out) = (got.clone(), shell.stdout.take().unwrap());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = out.read(&mut bytes) {
                into.lock().unwrap().extend_from_slice(&bytes[..n]);
            }
        });
        let keys = shell.stdin.take();
        Terminal { shell, keys, got }
    }

    fn bytes(&self) -> String {
        String::from_utf8_lossy(&self.got.lock().unwrap()).into_owned()
    }

    /// Waits until the screen shows all of these words.
    #[track_caller]
    fn wait(&self, words: &[&str]) {
        let shows_all = |screen: &String| words.iter().all(|word| screen.contains(word));
        eventually(|| screen(&self.bytes()), shows_all);
    }

    /// Types the keys, and waits for these words.
    #[track_caller]
    fn press(&mut self, keys: &str, words: &[&str]) {
        self.keys.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
        self.wait(words);
    }
}

/// What a terminal shows after these bytes, line by line. Of the sequences it knows those that place the cursor.
fn screen(bytes: &str) -> String {
    let mut cells = vec![vec![' '; 240]; 60];
    let (mut row, mut column) = (0, 0);
    let mut signs = bytes.chars();
    while let Some(sign) = signs.next() {
        if sign == '\u{1b}' {
            let opened = signs.next() == Some('[');
            let mut parameters = String::new();
            let end = signs.by_ref().take_while(|_| opened).find(|sign| {
                parameters.push(*sign);
                sign.is_ascii_alphabetic()
            });
            let numbers: Vec<usize> = parameters
                .trim_end_matches(|sign: char| sign.is_ascii_alphabetic())
                .split(';')
                .map(|number| number.parse().unwrap_or(1))
                .collect();
            match end {
                Some('H') => {
                    row = numbers[0].saturating_sub(1);
                    column = numbers.get(1).map_or(0, |column| column.saturating_sub(1));
                }
                Some('J') => cells.iter_mut().for_each(|row| row.fill(' ')),
                _ => {}
            }
        } else if let Some(cell) = cells.get_mut(row).and_then(|row| row.get_mut(column))
            && !sign.is_control()
        {
            *cell = sign;
            column += 1;
        }
    }
    let line = |cells: &Vec<char>| cells.iter().collect::<String>().trim_end().to_string();
    cells.iter().map(line).collect::<Vec<String>>().join("\n")
}

#[test]
fn on_a_terminal_a_process_is_opened_and_its_growth_is_shown() {
    let place = SharedMemory::new();
    let mut program = start(&place);
    assert_eq!(program.result("a 300"), 0);
    let mut terminal = Terminal::open(&place, 100, 24);
    terminal.wait(&["300.00 MiB", "interactive", "/ filter"]);
    // The other processes of this machine are no part of this.
    let filter = format!("filter: {}", program.pid());
    terminal.press(&format!("/{}\r", program.pid()), &[&filter, "Enter open"]);
    terminal.press("\r", &["since opened", "Esc back", "300.00 MiB"]);
    assert_eq!(program.result("a 200"), 0);
    terminal.wait(&["+200.00 MiB"]);
    // The last line lists keys again.
    terminal.press("\u{1b}[A", &["Esc back"]);
    terminal.keys.as_mut().unwrap().write_all(b"q").unwrap();
    assert_eq!(terminal.shell.wait().unwrap().code(), Some(0));
    let all = terminal.bytes();
    let [on, off] = ["h", "l"].map(|end| format!("\u{1b}[?1049{end}"));
    assert!(all.contains(&on) && all.contains(&off), "the screen comes back");
}
