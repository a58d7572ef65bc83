//! Finds exported functions of this library whose beginning another library replaced by a jump to its own code, as
//! comfy-aimdo does: calls of these functions go through it. It hands on the requests of others, so memory belongs to what
//! called it. The trace gets the library ([`PATCHED_BY`]), for the reports that name who requested memory, and a
//! note. Looked at when the state is made, with the live page's call sites, before a refusal and at the end: never on the
//! path of a call.

use crate::driver::api::{Api, Family, Home};
use crate::hooks::process::state::Process;
use crate::runtime::entry_jump;
use crate::runtime::fallible::{TryPush, list_of};
use crate::runtime::lock::Lock;
use crate::runtime::mapped_modules::{self, Loaded};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use vramtrace_format::{Definition, PATCHED_BY};

/// Least time between two looks before refusals: a program may be refused in each step.
const LOOK_EVERY_NS: u64 = 100_000_000;
/// Most libraries that are kept. A further one is noted in the trace only.
const LIBRARIES_MOST: usize = 16;

pub struct PatchedEntries {
    /// Addresses of the exported functions. 0: not exported (a build for unit tests), not looked up, or noted already.
    entries: [AtomicUsize; Api::COUNT],
    are_found: AtomicBool,
    /// Time of the last look before a refusal; 0: none.
    looked_ns: AtomicU64,
    /// Paths of the libraries that replaced some, as the loader has them.
    libraries: Lock<Vec<String>>,
}

impl Default for PatchedEntries {
    fn default() -> PatchedEntries {
        PatchedEntries {
            entries: [const { AtomicUsize::new(0) }; Api::COUNT],
            are_found: AtomicBool::new(false),
            looked_ns: AtomicU64::new(0),
            libraries: Lock::new(Vec::new()),
        }
    }
}

impl PatchedEntries {
    pub fn libraries(&self) -> Vec<String> {
        self.libraries.lock().clone()
    }

    /// Looks before a refusal, if the last such look was some time ago.
    pub fn look_now_and_then(&self, p: &Process) {
        let (now_ns, last) = (p.clock.now_ns(), self.looked_ns.load(Ordering::Relaxed));
        if last == 0 || now_ns >= last.saturating_add(LOOK_EVERY_NS) {
            self.looked_ns.store(now_ns.max(1), Ordering::Relaxed);
            self.look(p);
        }
    }

    /// Looks at all followed functions of the driver, and notes what is new.
    pub fn look(&self, p: &Process) {
        if !self.are_found.load(Ordering::Acquire) {
            self.find_entries();
        }
        // The functions of each library. Its path is empty for the program itself; `None`: generated code.
        let mut all: Vec<(Option<String>, Vec<Api>)> = Vec::new();
        for api in Api::ALL.iter().copied() {
            let entry = &self.entries[api as usize];
            let address = entry.load(Ordering::Relaxed);
            let Some(library) = replaced_by(address) else { continue };
            if entry.swap(0, Ordering::Relaxed) == 0 {
                // Another thread notes it.
                continue;
            }
            // Without host memory it has no note.
            let _ = match all.iter_mut().find(|(known, _)| *known == library) {
                Some((_, functions)) => functions.try_push(api),
                None => list_of(1, [api].into_iter()).and_then(|one| all.try_push((library, one))),
            };
        }
        for (library, functions) in &all {
            if let Some(path) = library.as_deref().filter(|path| !path.is_empty())
                && self.add(path)
            {
                let (name, value) = (PATCHED_BY.into(), path.into());
                p.trace_writer.define(&Definition::Setting { name, value });
            }
            note(p, library.as_deref(), functions);
        }
    }

    /// Adds the library at this path. False: it is known, or there is no room.
    fn add(&self, path: &str) -> bool {
        let mut libraries = self.libraries.lock();
        let is_new =
            libraries.len() < LIBRARIES_MOST && !libraries.iter().any(|known| known == path);
        is_new && libraries.try_push(path.to_string()).is_ok()
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

#[cold]
fn note(p: &Process, library: Option<&str>, functions: &[Api]) {
    let Some(first) = functions.first().map(|api| api.name()) else { return };
    let by = match library {
        None => "generated code",
        Some("") => "the program",
        Some(path) => path,
    };
    let text = match functions.len() {
        1 => format!(
            "{by} replaced the beginning of {first}: its calls go through it, and memory belongs to what called it"
        ),
        n => format!(
            "{by} replaced the beginning of {first} and {} more functions: their calls go through it, and memory \
             belongs to what called them",
            n - 1
        ),
    };
    p.trace_writer.define(&Definition::Note { text });
}
