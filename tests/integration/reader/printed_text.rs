//! What a trace says of itself reaches the terminal without secrets and without characters that
//! terminals obey; names of traces that are none hang nothing.

use testkit::trace_builder::{SECOND, TraceBuilder};
use testkit::{InteractiveProgram, MIB, Program, Scratch, Setup, fifo, vramtrace};
use vramtrace_format::{Definition, Kind, TraceReader};

const KEY: &str = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz";

fn printed(scratch: &Scratch) -> String {
    let lines = ["report", "report --json", "holders", "leaks", "oom"];
    let exports = ["export --format csv -o -", "export --format perfetto -o -"];
    let mut all = String::new();
    for line in lines.into_iter().chain(exports) {
        let output = scratch.run(&format!("{line} t.vtrace"));
        for text in [output.stdout, output.stderr] {
            all.push_str(&String::from_utf8_lossy(&text));
        }
    }
    all
}

#[test]
fn a_secret_of_the_command_line_is_in_no_trace() {
    let setup = Setup::simulated().preload().arg("churn").arg(10).arg("--hf-token").arg("private1");
    let run = Program::c("endings").run(setup.arg(KEY).arg("--db-password=private2")).ok();
    let bytes = std::fs::read(run.only_trace()).unwrap();
    let has = |text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
    assert!(!has(KEY) && !has("private1") && !has("private2"));
    assert!(has("--hf-token") && has("--db-password=***"));
    let command = TraceReader::new(&bytes).unwrap().header().command.clone();
    assert_eq!(command[2..], ["10", "--hf-token", "***", "***", "--db-password=***"]);
}

#[test]
fn nor_is_one_of_an_older_trace_shown() {
    let mut t = TraceBuilder::new();
    t.header.command = ["python3", "train.py", "--hf-token", KEY].map(String::from).into();
    t.alloc(SECOND, Kind::Device, 1 << 40, MIB);
    let scratch = Scratch::with(&t);
    let all = printed(&scratch);
    assert!(!all.contains(KEY) && all.contains("--hf-token ***"), "{all}");

    scratch.text("pack t.vtrace -o packed.vtrace");
    let bytes = std::fs::read(scratch.0.join("packed.vtrace")).unwrap();
    assert!(!bytes.windows(KEY.len()).any(|part| part == KEY.as_bytes()), "nor is it packed");
    let command = TraceReader::new(&bytes).unwrap().header().command.clone();
    assert_eq!(command, ["python3", "train.py", "--hf-token", "***"]);
}

#[test]
fn ps_shows_none() {
    let setup = Setup::simulated().preload().arg("--hf-token").arg(KEY);
    let mut process = InteractiveProgram::start(setup);
    assert_eq!(process.result("a 16"), 0);
    let (listed, line) = (Scratch::new().text("ps --json"), Scratch::new().text("ps"));
    drop(process);
    assert!(!listed.contains(KEY) && listed.contains("--hf-token ***"), "{listed}");
    assert!(!line.contains(KEY), "{line}");
}

#[test]
fn no_text_of_a_trace_turns_the_terminal_around() {
    let scratch = Scratch::new();
    let evil = "a\u{202e}b\u{1b}]0;x\u{7}c\u{2066}d\u{9b}e\rf";
    let mut t = TraceBuilder::new().rank(0, 2);
    t.header.host = format!("host{evil}");
    t.header.command = vec![format!("python{evil}")];
    t.define(Definition::Note { text: format!("note{evil}") });
    t.code(1, &format!("function{evil}"), &format!("/home/me/{evil}.py"), 3);
    t.stack(1, &[], &[1], &[]);
    t.alloc_by(SECOND, Kind::Device, 1 << 40, MIB, 1);
    let name = format!("x{evil}.vtrace").replace('/', "_");
    t.write(&scratch.0.join(&name));
    let bad =
        |c: char| c != '\n' && c != '\t' && (c.is_control() || "\u{202e}\u{2066}".contains(c));
    let shown = |line: &str| {
        let args: &[&str] = &line.split(' ').collect::<Vec<_>>();
        let said = scratch.says(args);
        let text = [said.out, said.err].concat();
        assert!(!text.contains(bad), "{args:?}: {text:?}");
        // With colours, as a terminal gets it: then escapes are not taken out by the way.
        let mut forced = scratch.command(args);
        forced.env("CLICOLOR_FORCE", "1").env_remove("NO_COLOR");
        let said = testkit::Said::by(&mut forced);
        let text = [said.out, said.err].concat();
        assert!(!text.contains("\u{1b}]"), "{args:?}: {text:?}");
    };
    let lines = "report, report --json, holders --full, holders --json, leaks --full, oom";
    lines.split(", ").chain(["report --at 99"]).for_each(shown);
    // Several at once: the overview.
    std::fs::copy(scratch.0.join(&name), scratch.0.join("y.vtrace")).unwrap();
    t.header.pid += 1;
    t.header.uuid[3] ^= 1;
    t.header.host = "other".into();
    t.write(&scratch.0.join("z.vtrace"));
    shown("report .");
    shown("report --all .");
}

#[test]
fn a_fifo_with_a_traces_name_hangs_nothing() {
    let scratch = Scratch::new();
    fifo(&scratch.0.join("x.vtrace"));
    for args in [&["report", "x.vtrace"][..], &["report", "."], &["report"], &["holders"]] {
        let mut command = std::process::Command::new("timeout");
        command.arg("60").arg(vramtrace().get_program()).args(args);
        let status = command.current_dir(&scratch.0).output().unwrap().status;
        assert_eq!(status.code(), Some(2), "{args:?}");
    }
}

/// A terminal of 80 columns: nothing is wrapped a second time, which would put the rest of a line below its label.
#[test]
fn an_out_of_memory_fits_80_columns() {
    let scratch = Scratch::recorded("assets/recorded.vtrace.gz");
    let shown = |columns: Option<&str>, more: &[&str]| {
        let mut command = scratch.command(&[&["oom", "t.vtrace"], more].concat());
        command.env_remove("COLUMNS").envs(columns.map(|columns| ("COLUMNS", columns)));
        testkit::Said::by(&mut command).out
    };
    let widest = |text: &str| text.lines().map(|line| line.chars().count()).max().unwrap();
    for (columns, most) in [(None, 80), (Some("80"), 80), (Some("200"), 80), (Some("66"), 66)] {
        let text = shown(columns, &[]);
        let summary = text.split("\n\n").next().unwrap();
        assert!(widest(summary) <= most, "{columns:?}: {summary}");
        for line in summary.lines().skip(1) {
            let indent = line.len() - line.trim_start().len();
            assert!([2, 10, 15].contains(&indent), "{columns:?}: {line:?} in\n{summary}");
        }
        assert_eq!(shown(columns, &["--short"]).lines().next(), summary.lines().next());
    }
    let text = shown(Some("80"), &[]);
    assert!(widest(&text) <= 80, "{text}");
}
