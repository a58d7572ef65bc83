//! Outputs that are kept: what commands print of a test's traces is in a file of `tests/data/kept/`.
//!
//! A command of that file is a line behind `$`, with what it printed below it: stdout as it is, lines of stderr behind
//! `!`, and the exit status unless it is 0. Of `COMMAND | PATH ...`, the values at these places of its JSON document alone:
//! `ooms.0.pid`, `holders.*.bytes`. `BLESS=1` writes the files anew.

use std::fmt::Write;

use serde_json::Value;

use crate::{Scratch, repository};

impl Scratch {
    /// What the commands print is what is kept under this name.
    #[track_caller]
    pub fn prints(&self, kept: &str, lines: &[&str]) {
        let mut printed = String::new();
        lines.iter().for_each(|line| self.print(line, &mut printed));
        is_kept(kept, &printed);
    }

    fn print(&self, line: &str, to: &mut String) {
        writeln!(to, "$ {line}").unwrap();
        let (command, paths) = line.split_once(" | ").unwrap_or((line, ""));
        let output = self.run(command);
        let [stdout, stderr] =
            [output.stdout, output.stderr].map(|b| String::from_utf8(b).unwrap());
        if output.status.code() != Some(0) {
            writeln!(to, "{}", output.status).unwrap();
        }
        if paths.is_empty() {
            stdout.lines().for_each(|line| writeln!(to, "{}", line.trim_end()).unwrap());
        } else {
            let document = serde_json::from_str(&stdout).unwrap_or(Value::Null);
            for path in paths.split(' ') {
                let parts: Vec<&str> = path.split('.').collect();
                writeln!(to, "{path}: {}", value_at(&document, &parts)).unwrap();
            }
        }
        stderr.lines().for_each(|line| writeln!(to, "! {}", line.trim_end()).unwrap());
    }
}

/// The text is what is kept under this name.
#[track_caller]
pub fn is_kept(kept: &str, printed: &str) {
    let path = repository().join(format!("tests/data/kept/{kept}.txt"));
    if std::env::var_os("BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, printed).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = expected.lines().zip(printed.lines()).position(|(was, is)| was != is);
    let at = differs.unwrap_or(expected.lines().count().min(printed.lines().count()));
    let line = |text: &str| text.lines().nth(at).unwrap_or("(no such line)").to_string();
    assert!(
        printed == expected,
        "{}:{} (BLESS=1 writes it anew)\n- {}\n+ {}\nin\n{printed}",
        path.display(),
        at + 1,
        line(&expected),
        line(printed)
    );
}

fn value_at(value: &Value, path: &[&str]) -> Value {
    let Some((first, rest)) = path.split_first() else { return value.clone() };
    let all = value.as_array().map_or(&[][..], Vec::as_slice);
    match first.parse::<usize>() {
        Ok(index) => value_at(all.get(index).unwrap_or(&Value::Null), rest),
        Err(_) if *first == "*" => all.iter().map(|item| value_at(item, rest)).collect(),
        Err(_) => value_at(&value[*first], rest),
    }
}
