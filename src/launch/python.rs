//! Finds the Python interpreter of the user's project and asks it for its version and site directories.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::{elf, library};
use crate::error::Failure;

/// A Python interpreter and what it printed about itself.
#[derive(Clone, Debug)]
pub struct Python {
    pub executable: PathBuf,
    pub version: (u32, u32),
    /// A virtual or conda environment: changes in it affect no other environment.
    pub is_environment: bool,
    pub site: PathBuf,
    pub user_site: PathBuf,
}

#[derive(Deserialize)]
struct Answer {
    version: (u32, u32),
    environment: bool,
    site: PathBuf,
    user: PathBuf,
}

const QUESTION: &str = "import json, os, site, sys
print(json.dumps({
    'version': sys.version_info[:2],
    'environment': sys.prefix != sys.base_prefix
        or os.path.isdir(os.path.join(sys.prefix, 'conda-meta')),
    'site': site.getsitepackages()[0],
    'user': site.getusersitepackages(),
}))";

impl Python {
    pub fn ask(executable: &Path) -> Result<Python, Failure> {
        let shown = executable.display();
        let output = Command::new(executable)
            .args(["-E", "-c", QUESTION])
            // A start hook of an earlier `vramtrace enable` must not re-execute this process.
            .env("VRAMTRACE", "0")
            .stdin(Stdio::null())
            .output()
            .map_err(|error| Failure::new(format!("{shown}: {error}; --python names another")))?;
        let answer: Answer = serde_json::from_slice(&output.stdout).map_err(|_| {
            let stderr = String::from_utf8_lossy(&output.stderr).trim().to_string();
            Failure::new(format!("{shown} does not run as Python 3: {stderr}"))
        })?;
        Ok(Python {
            executable: executable.to_path_buf(),
            version: answer.version,
            is_environment: answer.environment,
            site: answer.site,
            user_site: answer.user,
        })
    }
}

/// The Python of the active environment, else the one in PATH.
pub fn active() -> Result<PathBuf, Failure> {
    for variable in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        let root = std::env::var_os(variable).filter(|root| !root.is_empty());
        let python = root.map(|root| Path::new(&root).join("bin/python"));
        if let Some(python) = python.filter(|python| python.exists()) {
            return Ok(python);
        }
    }
    if let Some(projects) = instead_of_ours(OsStr::new("python3"))? {
        return Ok(projects);
    }
    elf::find_in_path(OsStr::new("python3"))
        .ok_or_else(|| Failure::new("no python3 in PATH: name one with --python"))
}

/// Under `uvx`, the PATH begins with an environment that holds this command and nothing of the
/// project. A bare `python` is then the project's: of VIRTUAL_ENV, or of the nearest `.venv`.
/// `None`: the command means what it says.
pub fn instead_of_ours(command: &OsStr) -> Result<Option<PathBuf>, Failure> {
    let own = library::own_executable()?;
    let Some(own_bin) = own.parent().filter(|bin| is_tool_environment(bin)) else {
        return Ok(None);
    };
    if !command.as_bytes().starts_with(b"python") || command.as_bytes().contains(&b'/') {
        return Ok(None);
    }
    let found = elf::find_in_path(command);
    if found.is_some_and(|found| found.parent() != Some(own_bin)) {
        return Ok(None);
    }
    let active = std::env::var_os("VIRTUAL_ENV").map(PathBuf::from);
    let here = std::env::current_dir()?;
    let above = here.ancestors().map(|directory| directory.join(".venv"));
    let mut all = active.into_iter().chain(above).map(|root| root.join("bin").join(command));
    match all.find(|python| python.exists() && python.parent() != Some(own_bin)) {
        Some(python) => Ok(Some(python)),
        None => Err(Failure::new(format!(
            "`{0}` is the one of the tool environment that runs vramtrace: it has none of your \
             packages, and neither VIRTUAL_ENV nor a .venv names your own. Activate the project's \
             environment, or use `uv run --with vramtrace vramtrace run {0} ...`",
            command.display()
        ))),
    }
}

/// Whether the directory is of an environment that uv (`uvx`, `uv tool run`) or pipx made for a tool.
fn is_tool_environment(bin: &Path) -> bool {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let of_uv = ["UV_CACHE_DIR", "UV_TOOL_DIR"].into_iter().filter_map(set);
    let parts: Vec<&OsStr> = bin.iter().collect();
    let begins = |part: &&OsStr, name: &str| part.as_bytes().starts_with(name.as_bytes());
    of_uv.map(PathBuf::from).any(|directory| bin.starts_with(directory))
        || parts.iter().any(|part| begins(part, "archive-v") || begins(part, "environments-v"))
        || parts.windows(2).any(|pair| pair[0] == "uv" && pair[1] == "tools")
        || parts.windows(2).any(|pair| pair[0] == "pipx" && pair[1] == "venvs")
}

/// The command, with a bare `python` replaced by the project's interpreter (see [`instead_of_ours`]).
pub fn resolved(mut command: Vec<OsString>) -> Result<Vec<OsString>, Failure> {
    if let Some(first) = command.first_mut()
        && let Some(python) = instead_of_ours(first)?
    {
        *first = python.into_os_string();
    }
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environments_of_tools_are_known_by_their_place() {
        for bin in [
            "/home/me/.cache/uv/archive-v0/Xk2/bin",
            "/home/me/.local/share/uv/tools/vramtrace/bin",
            "/home/me/.local/share/pipx/venvs/vramtrace/bin",
        ] {
            assert!(is_tool_environment(Path::new(bin)), "{bin}");
        }
        for bin in ["/home/me/project/.venv/bin", "/usr/bin", "/home/me/uv/bin"] {
            assert!(!is_tool_environment(Path::new(bin)), "{bin}");
        }
    }
}
