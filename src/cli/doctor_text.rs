//! The text of `vramtrace doctor`: one screen of 24 lines of 80 characters, or everything (--full).

use vramtrace_format::uuid;
use vramtrace_reader::units::{gib, limit, several};

use crate::doctor::coverage::Handling;
use crate::doctor::usage::DriverUsage;
use crate::doctor::{CommandFound, Findings, GENERAL_ESCAPES};
use crate::launch::child::Status;

/// Characters of a line, and lines of a screen; the last one is the shell's prompt.
const WIDTH: usize = 80;
const LINES: usize = 23;
/// Width of the label column.
const INDENT: usize = 10;
/// How many devices, problems and entry points of a command are listed.
const DEVICES: usize = 4;
const PROBLEMS: usize = 3;
const CALLS: usize = 4;

macro_rules! line {
    ($out:expr, $($text:tt)*) => {{
        $out.push_str(&format!($($text)*));
        $out.push('\n');
    }};
}

/// One screen: what to do first, the problems, what is there.
pub fn short(findings: &Findings, problems: &[String]) -> String {
    let mut screen = Screen::default();
    let verdict = match problems.len() {
        0 => "no problem found".to_string(),
        n => several(n as u64, "problem"),
    };
    screen.add("", &format!("vramtrace {}: {verdict}", env!("CARGO_PKG_VERSION")));
    screen.add("first", &findings.first_step());
    for problem in problems.iter().take(PROBLEMS) {
        screen.add("problem", problem);
    }
    let driver = match &findings.driver {
        Ok(driver) => {
            format!("CUDA {}, {}", version(driver.version), several_devices(driver.devices.len()))
        }
        Err(_) => "not found".to_string(),
    };
    let nvml = match &findings.nvml {
        Ok(nvml) => format!("NVML {}", nvml.driver_version),
        Err(_) => "NVML not found".to_string(),
    };
    screen.add("driver", &format!("{driver}; {nvml}"));
    let devices = findings.driver.as_ref().map_or(&[][..], |driver| &driver.devices);
    for device in devices.iter().take(DEVICES) {
        let (ordinal, total) = (device.ordinal, gib(device.total_bytes));
        screen.add("", &format!("{:INDENT$}{ordinal}: {}, {total}", "", device.name));
    }
    for note in findings.notes() {
        screen.add("note", &note);
    }
    if let Ok(shim) = &findings.shim {
        let coverage = &shim.coverage;
        screen.add("recorder", &shim.path.display().to_string());
        screen.add(
            "calls",
            &format!(
                "{} entry points: {} followed, {} noted, {} passed to the driver",
                coverage.entries.len(),
                coverage.count(Handling::Followed),
                coverage.count(Handling::Noted),
                coverage.count(Handling::Passed)
            ),
        );
    }
    for (path, problem) in findings.preload.iter().take(2) {
        let problem = problem.as_ref().map_or("", |_| " (cannot be loaded)");
        screen.add("preload", &format!("{}{problem}", path.display()));
    }
    if let Some(cap) = &findings.cap {
        screen.add("cap", &cap.text);
    }
    if let Some(command) = &findings.command {
        of_command(&mut screen, command);
    }
    screen.add(
        "not seen",
        "static, setuid, musl and 32-bit programs, Go without cgo, dlmopen, and processes that \
         lost LD_PRELOAD (ssh, sudo, containers)",
    );
    screen.finish()
}

fn of_command(screen: &mut Screen, command: &CommandFound) {
    let Some(used) = &command.used else { return };
    let processes = match used.processes {
        1 => "1 process with a trace".to_string(),
        n => format!("{n} processes with a trace"),
    };
    screen.add("command", &format!("{}; {processes}", status(used.status)));
    for (api, count) in used.allocations.iter().take(CALLS) {
        screen.add("", &format!("{:INDENT$}{api}: {}", "", several(*count, "allocation")));
    }
    let refused: u64 = used.refusals.values().sum();
    if refused > 0 {
        screen.add("refused", &several(refused, "request"));
    }
    for library in &used.patched_by {
        let text = format!("{library} replaced functions of the recorder: its calls go through it");
        screen.add("replaced", &text);
    }
    if used.allocations.is_empty() {
        screen.add("", &format!("{:INDENT$}no GPU memory was taken{}", "", seen_by(used)));
    }
}

fn several_devices(n: usize) -> String {
    several(n as u64, "device")
}

/// Lines of at most [`WIDTH`] characters.
#[derive(Default)]
struct Screen {
    lines: Vec<String>,
}

impl Screen {
    fn add(&mut self, word: &str, text: &str) {
        let indent = if word.is_empty() { 0 } else { INDENT };
        let mut line = format!("{word:indent$}");
        for (index, part) in text.split(' ').enumerate() {
            let used = line.chars().count();
            if index > 0 && used > indent && used + 1 + part.chars().count() > WIDTH {
                self.lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
            } else if index > 0 {
                line.push(' ');
            }
            line.push_str(part);
        }
        self.lines.push(line);
    }

    fn finish(mut self) -> String {
        let rest = "more      vramtrace doctor --full";
        self.lines.truncate(LINES - 1);
        self.lines.push(rest.to_string());
        self.lines.join("\n") + "\n"
    }
}

/// Everything that was found.
pub fn full(findings: &Findings, problems: &[String], all: bool) -> String {
    let mut out = String::new();
    let lines = &mut out;
    match &findings.driver {
        Ok(driver) => {
            line!(
                lines,
                "driver    CUDA {}, devices: {}",
                version(driver.version),
                driver.devices.len()
            );
            for device in &driver.devices {
                line!(
                    lines,
                    "          {} {} {} {}",
                    device.ordinal,
                    device.name,
                    uuid::text(&device.uuid, false),
                    gib(device.total_bytes)
                );
            }
        }
        Err(why) => line!(lines, "driver    not found: {why}"),
    }
    match &findings.nvml {
        Ok(nvml) => {
            line!(lines, "nvml      driver {}, devices: {}", nvml.driver_version, nvml.devices)
        }
        Err(why) => line!(lines, "nvml      not found: {why}"),
    }
    let machine = &findings.machine;
    let module = machine.kernel_module.as_deref().unwrap_or("not loaded");
    line!(lines, "module    {module}");
    for node in &machine.nodes {
        line!(lines, "node      {}: {}", node.path.display(), node.access.name());
    }
    match &machine.runtime {
        Some(runtime) => {
            line!(lines, "runtime   CUDA {}, {}", version(runtime.version), runtime.library)
        }
        None => line!(lines, "runtime   none in the directories of the loader"),
    }
    for note in findings.notes() {
        line!(lines, "note      {note}");
    }
    match &findings.shim {
        Ok(shim) => {
            let coverage = &shim.coverage;
            line!(lines, "recorder  {}", shim.path.display());
            line!(
                lines,
                "          {} entry points: {} followed, {} noted, {} passed to the driver",
                coverage.entries.len(),
                coverage.count(Handling::Followed),
                coverage.count(Handling::Noted),
                coverage.count(Handling::Passed)
            );
            for (section, followed, of) in coverage.sections() {
                line!(lines, "          {section}: {followed} of {of} followed");
                let of_section = coverage.entries.iter().filter(|e| e.section == section);
                for entry in of_section.filter(|_| all) {
                    line!(lines, "            {:<52} {}", entry.name, entry.how.name());
                }
            }
        }
        Err(why) => line!(lines, "recorder  not found: {why}"),
    }
    for (path, problem) in &findings.preload {
        let problem = problem.as_ref().map_or(String::new(), |why| format!(": {why}"));
        line!(lines, "preload   {}{problem}", path.display());
    }
    if let Some(cap) = &findings.cap {
        match &cap.limits {
            Ok(limits) if limits.is_empty() => {
                line!(lines, "cap       {}: applies to no device", cap.text)
            }
            Ok(limits) => {
                for (ordinal, bytes) in limits {
                    line!(lines, "cap       device {ordinal}: {}", limit(*bytes));
                }
            }
            Err(why) => line!(lines, "cap       {why}"),
        }
    }
    if let Some(command) = &findings.command {
        add_command(lines, command);
    }
    line!(lines, "not seen  (it is a cooperative recorder and cap, no security boundary)");
    line!(lines, "          static, setuid and musl programs; Go without cgo; 32-bit programs");
    for (what, why) in GENERAL_ESCAPES {
        line!(lines, "          {what}: {why}");
    }
    match problems {
        [] => line!(lines, "no problem found"),
        problems => {
            line!(lines, "problems:");
            for problem in problems {
                line!(lines, "  {problem}");
            }
        }
    }
    line!(lines, "first     {}", findings.first_step());
    out
}

fn add_command(lines: &mut String, command: &CommandFound) {
    if let Some(executable) = &command.executable {
        line!(lines, "command   {}", executable.path.display());
    }
    let Some(used) = &command.used else { return };
    line!(
        lines,
        "          {}; processes with a trace: {}; {}",
        status(used.status),
        used.processes,
        if used.simulated { "on the simulated driver" } else { "on the real driver" },
    );
    for (api, count) in &used.allocations {
        line!(lines, "          {api}: {count} allocations");
    }
    for (api, count) in &used.refusals {
        line!(lines, "          {api}: {count} refused");
    }
    if used.allocations.is_empty() {
        line!(lines, "          no GPU memory was taken through the driver{}", seen_by(used));
    }
    for note in &used.notes {
        line!(lines, "          note: {note}");
    }
}

fn seen_by(used: &DriverUsage) -> &'static str {
    if used.with_shim { "" } else { "; a process without the recorder is not seen" }
}

fn status(status: Status) -> String {
    match status {
        Status::Exited(code) => format!("exit {code}"),
        Status::Signalled(signal) => format!("ended by signal {signal}"),
    }
}

pub fn version(version: u32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_has_24_lines_of_80_characters_whatever_was_found() {
        let mut screen = Screen::default();
        for n in 0..40 {
            screen.add("problem", &format!("{n} {}", "words of a long sentence ".repeat(9)));
        }
        let text = screen.finish();
        assert_eq!(text.lines().count(), LINES);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.ends_with("vramtrace doctor --full\n"));
    }
}
