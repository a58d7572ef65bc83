//! The text of `vramtrace doctor`: one screen of 24 lines of 80 characters, or all of its lines (--full).

use vramtrace_format::uuid;
use vramtrace_reader::units::{gib, limit, several};

use crate::doctor::{CommandFound, Findings, GENERAL_ESCAPES, Problem, version};
use crate::launch::library::Preloaded;

/// Characters of a line, and lines of a screen; the last one is the shell's prompt.
const WIDTH: usize = 80;
const LINES: usize = 23;
/// Width of the label column.
const INDENT: usize = 10;
/// How many of the devices, problems, entry points of a command and libraries a screen has.
const DEVICES: usize = 4;
const PROBLEMS: usize = 3;
const CALLS: usize = 4;
const PRELOADED: usize = 2;

/// Lines with a label.
#[derive(Default)]
struct Lines {
    full: bool,
    lines: Vec<String>,
}

impl Lines {
    /// A screen has lines of at most [`WIDTH`] characters.
    fn add(&mut self, word: &str, text: &str) {
        let mut line = format!("{word:INDENT$}");
        if self.full {
            return self.lines.push(line + text);
        }
        for (index, part) in text.split(' ').enumerate() {
            let used = line.chars().count();
            if index > 0 && used > INDENT && used + 1 + part.chars().count() > WIDTH {
                self.lines.push(std::mem::replace(&mut line, " ".repeat(INDENT)));
            } else if index > 0 {
                line.push(' ');
            }
            line.push_str(part);
        }
        self.lines.push(line);
    }

    /// A line that a screen does not have.
    fn detail(&mut self, word: &str, text: &str) {
        if self.full {
            self.add(word, text);
        }
    }

    /// Of all these a screen has only so many.
    fn some(&mut self, word: &str, most: usize, texts: impl Iterator<Item = String>) {
        let most = if self.full { usize::MAX } else { most };
        texts.take(most).for_each(|text| self.add(word, &text));
    }

    fn finish(mut self) -> String {
        if !self.full {
            self.lines.truncate(LINES - 1);
            self.lines.push("more      vramtrace doctor --full".to_string());
        }
        self.lines.join("\n") + "\n"
    }
}

/// What to do first, the problems, what is there.
pub fn text(findings: &Findings, problems: &[Problem], first: &str, full: bool) -> String {
    let mut lines = Lines { full, lines: Vec::new() };
    let verdict = match problems.len() {
        0 => "no problem found".to_string(),
        n => several(n as u64, "problem"),
    };
    lines.lines.push(format!("vramtrace {}: {verdict}", env!("CARGO_PKG_VERSION")));
    lines.add("first", first);
    lines.some("problem", PROBLEMS, problems.iter().map(|problem| problem.text.clone()));
    of_driver(&mut lines, findings);
    findings.notes().iter().for_each(|note| lines.add("note", note));
    match &findings.shim {
        Ok(shim) => {
            lines.add("recorder", &shim.path.display().to_string());
            lines.add("calls", &shim.coverage.summary());
            for (section, followed, of) in shim.coverage.sections() {
                lines.detail("", &format!("{section}: {followed} of {of} followed"));
            }
        }
        Err(why) => lines.detail("recorder", &format!("not found: {why}")),
    }
    let preloaded = |Preloaded { path, problem }: &Preloaded| {
        let problem = problem.as_ref().map_or("", |_| " (cannot be loaded)");
        format!("{path}{problem}")
    };
    lines.some("preload", PRELOADED, findings.preload.iter().map(preloaded));
    if let Some(cap) = &findings.cap {
        lines.add("cap", &cap.text);
        for found in cap.limits.iter().flatten() {
            lines.detail("", &format!("device {}: {}", found.ordinal, limit(found.cap_bytes)));
        }
    }
    if let Some(command) = &findings.command {
        of_command(&mut lines, command);
    }
    lines.add(
        "not seen",
        "static, setuid, musl and 32-bit programs, Go without cgo, dlmopen, and processes that \
         lost LD_PRELOAD (ssh, sudo, containers)",
    );
    lines.detail("", "(it is a cooperative recorder and cap, no security boundary)");
    for (what, why) in GENERAL_ESCAPES {
        lines.detail("", &format!("{what}: {why}"));
    }
    lines.finish()
}

fn of_driver(lines: &mut Lines, findings: &Findings) {
    let devices = findings.driver.as_ref().map_or(&[][..], |driver| &driver.devices);
    let driver = match &findings.driver {
        Ok(driver) => {
            let devices = several(devices.len() as u64, "device");
            format!("CUDA {}, {devices}", version(driver.version))
        }
        Err(_) => "not found".to_string(),
    };
    let nvml = match &findings.nvml {
        Ok(nvml) => format!("NVML {}", nvml.driver_version),
        Err(_) => "NVML not found".to_string(),
    };
    lines.add("driver", &format!("{driver}; {nvml}"));
    let device = devices.iter().map(|device| {
        let id = if lines.full { uuid::text(&device.uuid, false) + ", " } else { String::new() };
        format!("{}: {}, {id}{}", device.ordinal, device.name, gib(device.total_bytes))
    });
    lines.some("", DEVICES, device.collect::<Vec<_>>().into_iter());
    if let Err(why) = &findings.nvml {
        lines.detail("nvml", &format!("not found: {why}"));
    }
    let machine = &findings.machine;
    lines.detail("module", machine.kernel_module.as_deref().unwrap_or("not loaded"));
    for node in &machine.nodes {
        lines.detail("node", &format!("{}: {}", node.path.display(), node.access.name()));
    }
    match &machine.runtime {
        Some(runtime) => {
            let text = format!("CUDA {}, {}", version(runtime.version), runtime.library);
            lines.detail("runtime", &text);
        }
        None => lines.detail("runtime", "none in the directories of the loader"),
    }
}

fn of_command(lines: &mut Lines, command: &CommandFound) {
    if let Some(executable) = &command.executable {
        lines.detail("command", &executable.display().to_string());
    }
    let Some(used) = &command.used else { return };
    let ended = match (used.exit_code, used.signal) {
        (_, Some(signal)) => format!("ended by signal {signal}"),
        (code, None) => format!("exit {}", code.unwrap_or_default()),
    };
    let processes = match used.processes {
        1 => "1 process with a trace".to_string(),
        n => format!("{n} processes with a trace"),
    };
    lines.add("command", &format!("{ended}; {processes}"));
    let driver = if used.simulated { "simulated" } else { "real" };
    lines.detail("", &format!("on the {driver} driver"));
    let calls =
        used.allocations.iter().map(|(api, n)| format!("{api}: {}", several(*n, "allocation")));
    lines.some("", CALLS, calls);
    let refused: u64 = used.refusals.values().sum();
    if refused > 0 {
        lines.add("refused", &several(refused, "request"));
    }
    for (api, count) in &used.refusals {
        lines.detail("", &format!("{api}: {count} refused"));
    }
    for library in &used.patched_by {
        let text = format!("{library} replaced functions of the recorder: its calls go through it");
        lines.add("replaced", &text);
    }
    if used.allocations.is_empty() {
        let seen = if used.with_shim { "" } else { "; a process without the recorder is not seen" };
        lines.add("", &format!("no GPU memory was taken{seen}"));
    }
    used.notes.iter().for_each(|note| lines.detail("note", note));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_has_24_lines_of_80_characters_whatever_was_found() {
        let mut screen = Lines::default();
        for n in 0..40 {
            screen.add("problem", &format!("{n} {}", "words of a long sentence ".repeat(9)));
        }
        let text = screen.finish();
        assert_eq!(text.lines().count(), LINES);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.ends_with("vramtrace doctor --full\n"));
    }
}
