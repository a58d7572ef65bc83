//! Whether the recording is to be off: by an order, or by a file of the host or of the user
//! ([`vramtrace_format::host_switch`]). [`super::switch`] follows it.

use crate::runtime::log;
use crate::runtime::secure_dir;
use crate::runtime::system;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use vramtrace_format::SwitchedBy;
use vramtrace_format::host_switch::{self, HOST_FILE, NoSwitch};

pub struct Switch {
    /// The file of the host, and that of the user.
    files: [Option<CString>; 2],
    pub by_order: bool,
    pub by_file: bool,
    /// The state to which the recording returns.
    pub before: u32,
    /// The process ends: nothing switches the recording any more.
    pub ended: bool,
    /// The line about a file that does not count was printed.
    reported: bool,
}

impl Switch {
    /// `runtime`: the runtime directory, as the environment names it. `before`: the state of the recorder at its start.
    pub fn new(runtime: Option<&Path>, before: u32) -> Switch {
        let user = runtime.filter(|path| path.is_absolute()).map(host_switch::of_user);
        let file = |path: &Path| CString::new(path.as_os_str().as_bytes()).ok();
        Switch {
            files: [file(Path::new(HOST_FILE)), user.as_deref().and_then(file)],
            by_order: false,
            by_file: false,
            before,
            ended: false,
            reported: false,
        }
    }

    /// Reads the files. A system call for each.
    pub fn read_files(&mut self) {
        let said: [Option<Result<(), NoSwitch>>; 2] =
            std::array::from_fn(|index| said_by(self.files[index].as_deref()?));
        self.by_file = said.contains(&Some(Ok(())));
        for (file, said) in self.files.iter().zip(said) {
            if let (Some(file), Some(Err(why)), false) = (file, said, self.reported) {
                self.reported = true;
                log::line(format_args!(
                    "{}: {why}; it does not switch the recording off",
                    file.to_string_lossy()
                ));
            }
        }
    }

    pub fn off_by(&self) -> Option<SwitchedBy> {
        match (self.by_order, self.by_file) {
            (true, _) => Some(SwitchedBy::Order),
            (false, true) => Some(SwitchedBy::HostFile),
            (false, false) => None,
        }
    }
}

/// `None`: there is no such file. No link is followed.
fn said_by(file: &CStr) -> Option<Result<(), NoSwitch>> {
    // SAFETY: a struct of our own, for which zeros are a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    (system::stat_of_name(libc::AT_FDCWD, file, &mut stat) == 0)
        .then(|| host_switch::check(stat.st_mode, stat.st_uid, secure_dir::user()))
}
