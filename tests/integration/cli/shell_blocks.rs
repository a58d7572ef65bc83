//! The commands that README.md and the pages of docs/problems/ give to paste: every `sh` block runs, over
//! the simulated driver, and ends with status 0. (`pages.rs` runs the `console` blocks, and compares what
//! they print.)
//!
//! `python` is that of an empty virtual environment, `pytest` and `llama-server` scripts that run the pages' train.py, `main.py` and
//! `generate.py` copies of it, and process 4711 a program that waits. VRAM_RECORDS names a file, as in a job of Slurm.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::{InteractiveProgram, Scratch, Setup, bin_dir, repository, shim, sim_dir};

/// The insides of the `sh` blocks, with the numbers of their first lines.
fn blocks(page: &str) -> Vec<(usize, String)> {
    let mut all: Vec<(usize, String)> = Vec::new();
    let mut fence = None;
    for (at, line) in page.lines().enumerate() {
        match (line.strip_prefix("```"), fence) {
            (Some(language), None) => {
                fence = Some(language);
                if language == "sh" {
                    all.push((at + 2, String::new()));
                }
            }
            (Some(_), Some(_)) => fence = None,
            (None, Some("sh")) => {
                let (_, block) = all.last_mut().expect("begun above");
                block.push_str(line);
                block.push('\n');
            }
            (None, _) => {}
        }
    }
    all
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
    let scratch = Scratch::new();
    for entry in fs::read_dir(repository().join("docs/programs")).unwrap().flatten() {
        if entry.path().is_file() {
            fs::copy(entry.path(), scratch.0.join(entry.file_name())).unwrap();
        }
    }
    let made = Command::new("python3")
        .args(["-m", "venv", "--without-pip", "venv"])
        .current_dir(&scratch.0)
        .status();
    assert!(made.is_ok_and(|status| status.success()), "python3 -m venv");
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

/// Standard output and error of the block where it fails.
fn run(block: &str, project: &Path) -> Result<(), String> {
    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", block]).current_dir(project).env_remove("LD_PRELOAD");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("VRAMTRACE") {
            shell.env_remove(name);
        }
    }
    let mut path = OsString::from(project.join("venv/bin"));
    for part in [bin_dir().into_os_string(), std::env::var_os("PATH").unwrap()] {
        path.push(":");
        path.push(part);
    }
    shell.env("VRAM_RECORDS", project.join("records.jsonl"));
    shell.env("PATH", path).env("LD_LIBRARY_PATH", sim_dir()).env("VRAMTRACE_SIM", "1x24GiB");
    let ended = shell.output().unwrap();
    if ended.status.success() {
        return Ok(());
    }
    let [stdout, stderr] = [&ended.stdout, &ended.stderr].map(|text| String::from_utf8_lossy(text));
    Err(format!("{}\n{stdout}{stderr}", ended.status))
}

#[test]
fn every_sh_block_runs() {
    shim();
    let waiting = InteractiveProgram::start(Setup::simulated().preload());
    let (mut wrong, mut count) = (Vec::new(), 0);
    for page in pages() {
        let all = blocks(&fs::read_to_string(&page).unwrap());
        if all.is_empty() {
            continue;
        }
        let project = project();
        for (line, block) in all {
            count += 1;
            let block = block.replace("4711", &waiting.pid().to_string());
            if let Err(failure) = run(&block, &project.0) {
                wrong.push(format!("{}:{line}: {failure}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count >= 6, "{count} blocks");
}
