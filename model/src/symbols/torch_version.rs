//! The version of PyTorch that a process used.

use vramtrace_format::Header;

use super::{known_names, path_of};
use crate::trace::{Definitions, TORCH_VERSION};

/// Maximum size of a `version.py` in bytes.
const MAX_BYTES: usize = 4096;

/// `2.11.0+cu128`: from the trace, else from the installation beside its libc10_cuda.so, if that is the library of
/// the run.
pub fn torch_version(definitions: &Definitions, header: &Header) -> Option<String> {
    if let Some(known) = definitions.setting(TORCH_VERSION) {
        return Some(known.to_string());
    }
    let modules = definitions.stacks().modules();
    let library = modules.iter().find(|module| {
        let name = module.path.rsplit('/').next().unwrap_or_default();
        name.starts_with("libc10_cuda.so")
    })?;
    let path = path_of(library, header);
    // A wheel has torch/lib/libc10_cuda.so and torch/version.py.
    let files = definitions.files()?;
    let text = files.map(&path.parent()?.parent()?.join("version.py")).ok()?;
    known_names::names(files, &path, &library.build_id, &[]).ok()?;
    version_in(std::str::from_utf8(text.get(..MAX_BYTES).unwrap_or(&text)).ok()?)
        .map(str::to_string)
}

fn version_in(text: &str) -> Option<&str> {
    let line = text.lines().find_map(|line| line.strip_prefix("__version__"))?;
    let value = line.trim_start().strip_prefix('=')?.trim();
    let quote = value.chars().next().filter(|c| "'\"".contains(*c))?;
    value[1..].split(quote).next().filter(|version| !version.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_in_version_py() {
        let text = "from typing import Optional\n\n__all__ = ['__version__']\n\
            __version__ = '2.15.0+cu132'\ndebug = False\n";
        assert_eq!(version_in(text), Some("2.15.0+cu132"));
        assert_eq!(version_in("__version__ = \"2.0.1\"\n"), Some("2.0.1"));
        for bad in ["", "__version__ = 2", "__version__ = ''", "version = '2.1'"] {
            assert_eq!(version_in(bad), None, "{bad}");
        }
    }
}
