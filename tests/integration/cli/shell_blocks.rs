//! The commands that README.md and the pages of docs/problems/ give to paste: every `sh` block runs, over
//! the simulated driver, and ends with status 0. (`pages.rs` runs the `console` blocks, and compares what
//! they print.)
//!
//! `python` is that of an empty virtual environment, `pytest` and `llama-server` scripts that run the pages' train.py, `main.py` and
//! `generate.py` copies of it, and process 4711 a program that waits. VRAM_RECORDS names a file, as in a job of Slurm.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::{InteractiveProgram, Said, Scratch, Setup, bin_dir, repository, shim, sim_dir};

/// The insides of a page's blocks of a language, with the indices of their first lines.
pub fn blocks<'p>(page: &'p str, language: &str) -> Vec<(usize, Vec<&'p str>)> {
    let mut all: Vec<(usize, Vec<&str>)> = Vec::new();
    let mut fence = None;
    for (at, line) in page.lines().enumerate() {
        match (line.strip_prefix("```"), fence) {
            (Some(of), None) => {
                fence = Some(of);
                if of == language {
                    all.push((at + 1, Vec::new()));
                }
            }
            (Some(_), Some(_)) => fence = None,
            (None, Some(of)) if of == language => all.last_mut().unwrap().1.push(line),
            (None, _) => {}
        }
    }
    all
}

/// A shell as a reader has it, that finds programs here first.
pub fn shell(script: &str, directory: &Path, first: &[PathBuf]) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", script]).current_dir(directory).env_remove("LD_PRELOAD");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("VRAMTRACE") {
            shell.env_remove(name);
        }
    }
    let path = std::env::var_os("PATH").unwrap();
    let known = std::env::split_paths(&path);
    let path = first.iter().cloned().chain([bin_dir()]).chain(known);
    shell.env("PATH", std::env::join_paths(path).unwrap());
    shell
}

fn pages() -> Vec<PathBuf> {
    let problems = fs::read_dir(repository().join("docs/problems")).unwrap();
    let mut pages: Vec<PathBuf> = problems.map(|entry| entry.unwrap().path()).collect();
    pages.push(repository().join("README.md"));
    pages.sort();
    pages
}

/// A directory as a reader has it: the programs of the pages, and a virtual environment.
fn project() -> Scratch {
    let scratch = Scratch::with_programs();
    scratch.shell("python3 -m venv --without-pip venv");
    for name in ["main.py", "generate.py"] {
        fs::copy(scratch.0.join("train.py"), scratch.0.join(name)).unwrap();
    }
    for name in ["pytest", "llama-server"] {
        let script = scratch.0.join("venv/bin").join(name);
        fs::write(&script, "#!/bin/sh\nexec python train.py\n").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    }
    scratch
}

/// What it says of the block where it fails.
fn run(block: &str, project: &Path) -> Option<Said> {
    let mut shell = shell(block, project, &[project.join("venv/bin")]);
    shell.env("VRAM_RECORDS", project.join("records.jsonl"));
    let said = Said::by(shell.env("LD_LIBRARY_PATH", sim_dir()).env("VRAMTRACE_SIM", "1x24GiB"));
    (said.code != Some(0)).then_some(said)
}

#[test]
fn every_sh_block_runs() {
    shim();
    let waiting = InteractiveProgram::start(Setup::simulated().preload());
    let (mut wrong, mut count) = (Vec::new(), 0);
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let all = blocks(&text, "sh");
        if all.is_empty() {
            continue;
        }
        let project = project();
        for (line, block) in all {
            count += 1;
            let block = block.join("\n").replace("4711", &waiting.pid().to_string());
            if let Some(said) = run(&block, &project.0) {
                wrong.push(format!("{}:{}: {said:?}", page.display(), line + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count >= 6, "{count} blocks");
}
