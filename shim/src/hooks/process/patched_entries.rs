//! Finds exported functions of this library whose beginning another library replaced by a jump to its own code, as
//! comfy-aimdo does: calls of these functions go through it. It hands on the requests of others, so memory belongs to what
//! called it. The trace gets the library ([`PATCHED_BY`]), for the reports that name who requested memory, and a
//! note. Looked at when the state is made, with the live page's call sites, before a post-mortem and at the end: never on
//! the path of a call.

use crate::driver::api::{Api, Family, Home};
use crate::hooks::process::state::Process;
use crate::runtime::entry_jump;
use crate::runtime::fallible::TryPush;
use crate::runtime::lock::Lock;
use crate::runtime::mapped_modules::{self, Loaded};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use vramtrace_format::{Definition, PATCHED_BY};

/// Most libraries that are noted.
const LIBRARIES_MOST: usize = 16;

pub struct PatchedEntries {
    /// Addresses of the exported functions. 0: not exported (a build for unit tests), not looked up, or noted already.
    entries: [AtomicUsize; Api::COUNT],
    are_found: AtomicBool,
    /// Paths of the libraries that replaced some, as the loader has them; or what stands for them in the note.
    libraries: Lock<Vec<String>>,
}

impl Default for PatchedEntries {
    fn default() -> PatchedEntries {
        PatchedEntries {
            entries: [const { AtomicUsize::new(0) }; Api::COUNT],
            are_found: AtomicBool::new(false),
            libraries: Lock::new(Vec::new()),
        }
    }
}

impl PatchedEntries {
    pub fn libraries(&self) -> Vec<String> {
        self.libraries.lock().clone()
    }

    /// Looks at all followed functions of the driver, and notes what is new.
    pub fn look(&self, p: &Process) {
        if !self.are_found.load(Ordering::Acquire) {
            self.find_entries();
        }
        for api in Api::ALL.iter().copied() {
            let entry = &self.entries[api as usize];
            let Some(library) = replaced_by(entry.load(Ordering::Relaxed)) else { continue };
            // Otherwise another thread notes it.
            if entry.swap(0, Ordering::Relaxed) != 0 {
                self.note(p, api, library);
            }
        }
    }

    /// Notes what replaced the beginning of this function, once for each library.
    #[cold]
    fn note(&self, p: &Process, api: Api, library: Option<String>) {
        let path = library.as_deref().filter(|path| !path.is_empty());
        let by = path.unwrap_or(if library.is_none() { "generated code" } else { "the program" });
        let mut known = self.libraries.lock();
        if known.len() == LIBRARIES_MOST
            || known.iter().any(|one| one == by)
            || known.try_push(by.to_string()).is_err()
        {
            return;
        }
        drop(known);
        if let Some(path) = path {
            let (name, value) = (PATCHED_BY.into(), path.into());
            p.trace_writer.define(&Definition::Setting { name, value });
        }
        let text = format!(
            "{by} replaced the beginning of {}: its calls, and those of other functions that it replaced, go through \
             it, and memory belongs to what called them",
            api.name()
        );
        p.trace_writer.define(&Definition::Note { text });
    }

    #[cold]
    fn find_entries(&self) {
        let Some(ours) = ours() else { return };
        // SAFETY: this library stays loaded.
        let object = unsafe { ours.object() };
        for api in Api::ALL.iter().copied().filter(|api| is_followed(*api)) {
            let entry = object.function(api.name().as_bytes()).unwrap_or(0);
            self.entries[api as usize].store(entry, Ordering::Relaxed);
        }
        self.are_found.store(true, Ordering::Release);
    }
}

fn is_followed(api: Api) -> bool {
    api.home() == Home::Cuda && api.family() != Family::Noted
}

fn ours() -> Option<Loaded> {
    mapped_modules::holding(is_followed as *const () as usize)
}

/// The path of the library to which the code at an entry jumps; inner `None`: it leads to no library. Outer `None`: it
/// does not jump, or within this library.
fn replaced_by(entry: usize) -> Option<Option<String>> {
    if entry == 0 {
        return None;
    }
    // SAFETY: code of this library, which stays mapped. Another thread may be writing it: a part of a jump is no jump.
    let code = unsafe { (entry as *const [u8; 8]).read_volatile() };
    if !entry_jump::may_be_jump(code) {
        return None;
    }
    let destination = entry_jump::destination(entry, |at| mapped_modules::holding(at).is_some())?;
    match mapped_modules::holding(destination) {
        Some(library) if Some(library) == ours() => None,
        // A path that cannot be read is looked at again.
        Some(library) => Some(Some(library.path_read_carefully()?)),
        None => Some(None),
    }
}
