//! What switches the recording off: files of the host and of the user, and orders to running processes.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use vramtrace_format::SwitchedBy;
use vramtrace_format::host_switch::{self, HOST_FILE, NoSwitch};

use crate::live_processes::places::Places;
use crate::live_processes::process;

#[derive(Debug, Default)]
pub struct Switches {
    /// Files that are there, each with why it does not count, if it does not.
    pub files: Vec<(PathBuf, Option<NoSwitch>)>,
    /// Processes of this user that `vramtrace record` has switched off.
    pub processes: Vec<u32>,
}

pub fn look() -> Switches {
    let user = Places::of_environment().runtime.map(|runtime| host_switch::of_user(&runtime));
    let files = [Some(PathBuf::from(HOST_FILE)), user].into_iter().flatten();
    let is_off = |off_by: &[SwitchedBy]| off_by.contains(&SwitchedBy::Order);
    let processes = process::all().0.into_iter().filter(|process| is_off(&process.off_by));
    Switches {
        files: files.filter_map(|file| said_by(&file).map(|said| (file, said.err()))).collect(),
        processes: processes.map(|process| process.pid).collect(),
    }
}

/// `None`: there is no such file.
fn said_by(file: &Path) -> Option<Result<(), NoSwitch>> {
    let about = file.symlink_metadata().ok()?;
    Some(host_switch::check(about.mode(), about.uid(), process::user()))
}

impl Switches {
    /// What keeps processes from being recorded, a line each.
    pub fn problems(&self) -> Vec<String> {
        let counting = self.files.iter().filter(|(_, why_not)| why_not.is_none());
        let line = |(file, _): &(PathBuf, _)| {
            format!("recording is off: {} exists; remove it to record", file.display())
        };
        counting.map(line).collect()
    }

    pub fn notes(&self) -> Vec<String> {
        let ignored = self.files.iter().filter_map(|(file, why_not)| {
            let why = why_not.as_ref()?;
            Some(format!("{}: {why}; it does not switch the recording off", file.display()))
        });
        let process = |pid: &u32| {
            format!("recording is off in process {pid}: vramtrace record on --pid {pid}")
        };
        ignored.chain(self.processes.iter().map(process)).collect()
    }
}
