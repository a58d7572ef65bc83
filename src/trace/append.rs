//! Adds definitions to the file of an ended trace, behind its windows.

use std::io;

use vramtrace_format::Definition;

use super::Trace;
use super::own::{check_own, header_of};
use crate::files::{Access, Directory};

impl Trace {
    /// Nothing that is in the file changes. An error if its process runs, if others may have written the file, or if
    /// it changed since this was opened.
    pub fn append(&self, definitions: &[Definition]) -> io::Result<()> {
        if self.is_running() {
            return Err(io::Error::other("its process is running"));
        }
        let (directory, name) = Directory::of(self.path())?;
        let file = directory.open(name, Access::Write)?;
        check_own(&file)?;
        if file.metadata()?.len() != self.len()
            || header_of(&file)?.file_tag() != self.header().file_tag()
        {
            return Err(io::Error::other("it changed since it was read"));
        }
        self.write_behind(definitions, &file)
    }
}
