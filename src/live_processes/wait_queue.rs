//! The queue of runs of this user that wait for memory, or that waited for it and run: a directory with a file for each,
//! whose name is its number. Each holds the lock on its file, which ends with its process: so one that was killed is
//! told from one that waits, in whatever namespaces they are. The directory's lock is held while files are looked at or
//! made.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use vramtrace_format::member::Namespaces;
use vramtrace_format::proc;
use vramtrace_reader::files::{Access, lock_within, try_lock};

use super::process::{self, user};
use super::{PageDirectory, PageProblem};

/// How long the directory's lock is waited for. It is held for a few system calls.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most bytes of a file that are read.
const MOST: usize = 64 << 10;

pub type Uuid = [u8; 16];

/// A place in the queue. Dropping it gives the place up.
pub struct Ticket {
    directory: PageDirectory,
    number: u64,
    /// Its lock says that this run lives.
    file: File,
    asked: Vec<(Uuid, u64)>,
}

/// What others of the queue have to do with the devices of a ticket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// Runs that asked earlier for one of these devices, and still wait.
    pub before: usize,
    /// Bytes of each device that runs asked for, and whose processes do not have them yet.
    pub claimed: HashMap<Uuid, u64>,
}

/// What a file holds, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    /// Pid and pid namespace of the run.
    pid: u32,
    namespace: u64,
    waits: bool,
    asked: Vec<(Uuid, u64)>,
}

fn directory() -> Result<PageDirectory, PageProblem> {
    let path = PageDirectory::shared_path(user());
    PageDirectory::make(&path, user())?;
    PageDirectory::make(&path.join("wait"), user())
}

fn problem(directory: &PageDirectory) -> impl Fn(io::Error) -> PageProblem + use<> {
    let path = directory.path().to_path_buf();
    move |error| PageProblem::Io(path.clone(), error)
}

impl Ticket {
    /// Takes the last place.
    pub fn take(asked: Vec<(Uuid, u64)>) -> Result<Ticket, PageProblem> {
        let directory = directory()?;
        let wrong = problem(&directory);
        let locked = Locked::of(&directory)?;
        let last = locked.living().map_err(&wrong)?.into_iter().map(|(number, _)| number).max();
        let mut number = last.unwrap_or(0);
        let file = loop {
            number += 1;
            match directory.opened().create(&name(number)) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => break made.map_err(&wrong)?,
            }
        };
        // Nobody else has it: the directory is locked, until the file says what is asked for.
        try_lock(&file).and_then(|_| write(&file, true, &asked)).map_err(&wrong)?;
        drop(locked);
        Ok(Ticket { file, number, asked, directory })
    }

    /// Looks at the others, and if `has_room` says that they leave enough, takes the memory: the run is to start.
    pub fn try_start(
        &self,
        has_room: impl FnOnce(&Others) -> bool,
    ) -> Result<(bool, Others), PageProblem> {
        let locked = Locked::of(&self.directory)?;
        let others = self.others(locked.living().map_err(problem(&self.directory))?);
        let starts = others.before == 0 && has_room(&others);
        if starts {
            write(&self.file, false, &self.asked).map_err(problem(&self.directory))?;
        }
        Ok((starts, others))
    }

    fn others(&self, living: Vec<(u64, Entry)>) -> Others {
        let mut others = Others::default();
        let is_mine = |device: &Uuid| self.asked.iter().any(|(mine, _)| mine == device);
        let living = living.into_iter().filter(|(number, _)| *number != self.number);
        let living: Vec<(u64, Entry)> =
            living.filter(|(_, entry)| entry.asked.iter().any(|(it, _)| is_mine(it))).collect();
        others.before =
            living.iter().filter(|(number, entry)| entry.waits && *number < self.number).count();
        let here = Namespaces::of_this_process().pid;
        // What processes of another pid namespace hold is not known: NVML counts it.
        let running = || living.iter().filter(|(_, it)| !it.waits && it.namespace == here);
        if running().next().is_none() {
            return others;
        }
        let held = Held::now();
        for (_, entry) in running() {
            for (device, bytes) in entry.asked.iter().filter(|(device, _)| is_mine(device)) {
                let left = bytes.saturating_sub(held.by(entry.pid, device));
                *others.claimed.entry(*device).or_default() += left;
            }
        }
        others
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // Others remove it too, once its lock is gone.
        let _ = self.directory.opened().remove(&name(self.number));
    }
}

fn write(file: &File, waits: bool, asked: &[(Uuid, u64)]) -> io::Result<()> {
    let (pid, namespace) = (std::process::id(), Namespaces::of_this_process().pid);
    let text = serde_json::to_vec(&Entry { pid, namespace, waits, asked: asked.to_vec() })?;
    file.write_all_at(&text, 0)?;
    file.set_len(text.len() as u64)
}

/// So that names sort as numbers do.
fn name(number: u64) -> OsString {
    format!("{number:020}").into()
}

/// The directory, locked by this process.
struct Locked<'d> {
    directory: &'d PageDirectory,
    /// An opening of its own: the lock ends with it.
    _lock: PageDirectory,
}

impl Locked<'_> {
    fn of(directory: &PageDirectory) -> Result<Locked<'_>, PageProblem> {
        let wrong = problem(directory);
        let lock = PageDirectory::open(directory.path(), user())?;
        match lock_within(lock.opened().file(), PATIENCE).map_err(&wrong)? {
            true => Ok(Locked { directory, _lock: lock }),
            false => Err(wrong(io::Error::other("another process keeps it locked (flock)"))),
        }
    }

    /// The runs that live. Files of others are removed.
    fn living(&self) -> io::Result<Vec<(u64, Entry)>> {
        let directory = self.directory.opened();
        let mut found = Vec::new();
        for file in directory.names()? {
            let Some(number) = file.to_str().and_then(|name| name.parse().ok()) else { continue };
            let opened = match directory.open(&file, Access::Read) {
                // It gave its place up.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            if try_lock(&opened)? {
                directory.remove(&file)?;
                continue;
            }
            let mut text = vec![0; MOST];
            let bytes = opened.read_at(&mut text, 0)?;
            // Not written by us: another version, or a full file system.
            if let Ok(entry) = serde_json::from_slice(&text[..bytes]) {
                found.push((number, entry));
            }
        }
        found.sort_by_key(|(number, _)| *number);
        Ok(found)
    }
}

/// What the recorded processes hold, and whose children they are.
struct Held {
    of: Vec<(u32, Uuid, u64)>,
}

impl Held {
    fn now() -> Held {
        let (processes, _) = process::all();
        let of = |process: process::LiveProcess| {
            let pid = process.pid;
            process.devices.into_iter().map(move |device| (pid, device.uuid, device.counted))
        };
        Held { of: processes.into_iter().flat_map(of).collect() }
    }

    /// Bytes of all processes that a run started.
    fn by(&self, run: u32, device: &Uuid) -> u64 {
        let of_run =
            self.of.iter().filter(|(pid, of, _)| of == device && proc::is_below(*pid, run));
        of_run.map(|(_, _, bytes)| *bytes).fold(0, u64::saturating_add)
    }
}
