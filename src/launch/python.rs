//! Finds the Python interpreter of the user's project and asks it for its version and site directories.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::elf;
use crate::error::Failure;

/// What a Python interpreter says about itself.
#[derive(Clone, Debug, Deserialize)]
pub struct Python {
    #[serde(skip)]
    pub executable: PathBuf,
    pub version: (u32, u32),
    /// A virtual or conda environment: changes in it affect no other environment.
    pub is_environment: bool,
    pub site: PathBuf,
    pub user_site: PathBuf,
}

const QUESTION: &str = "import json, os, site, sys
print(json.dumps({
    'version': sys.version_info[:2],
    'is_environment': sys.prefix != sys.base_prefix
        or os.path.isdir(os.path.join(sys.prefix, 'conda-meta')),
    'site': site.getsitepackages()[0],
    'user_site': site.getusersitepackages(),
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
        let python: Python = serde_json::from_slice(&output.stdout).map_err(|_| {
            let stderr = String::from_utf8_lossy(&output.stderr).trim().to_string();
            Failure::new(format!("{shown} does not run as Python 3: {stderr}"))
        })?;
        Ok(Python { executable: executable.to_path_buf(), ..python })
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
    elf::find_in_path(OsStr::new("python3"))
        .ok_or_else(|| Failure::new("no python3 in PATH: name one with --python"))
}
