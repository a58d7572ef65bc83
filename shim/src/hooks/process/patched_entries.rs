//! Finds exported functions of this library whose beginning another library replaced by a jump to its own code, as
//! comfy-aimdo does. The trace gets the library ([`PATCHED_BY`]), for the reports that name who requested memory, and one
//! note. Looked at when the state is made, with the live page's call sites, before a refusal and at the end: never on the
//! path of a call.

use crate::driver::api::{Api, Family, Home};
use crate::hooks::process::state::Process;
use crate::model::attribution::patchers::Patchers;
use crate::runtime::entry_jump;
use crate::runtime::fallible::{TryPush, list_of};
use crate::runtime::mapped_modules::{self, Loaded};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use vramtrace_format::{Definition, PATCHED_BY};

/// Addresses of the exported functions. 0: not exported (a build for unit tests), or not looked up.
static ENTRIES: [AtomicUsize; Api::COUNT] = [const { AtomicUsize::new(0) }; Api::COUNT];
static ARE_FOUND: AtomicBool = AtomicBool::new(false);
const _: () = assert!(Api::COUNT <= Patchers::FUNCTIONS);

/// When functions that are found get their note.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Noted {
    AtOnce,
    /// Once another look finds no more: the library may be between two of the functions that it replaces.
    OnceSettled,
}

/// Looks at all followed functions of the driver, and notes what is new.
pub fn look(p: &Process, noted: Noted) {
    if !ARE_FOUND.load(Ordering::Acquire) {
        find_entries();
    }
    // The functions of each library. Its path is empty for the program itself; `None`: generated code.
    let mut all: Vec<(Option<String>, Vec<Api>)> = Vec::new();
    let is_new = |api: &Api| is_followed(*api) && !p.patchers.is_noted(*api as usize);
    for api in Api::ALL.iter().copied().filter(is_new) {
        let Some(library) = replaced_by(ENTRIES[api as usize].load(Ordering::Relaxed)) else {
            continue;
        };
        if let Some(path) = library.as_deref().filter(|path| !path.is_empty())
            && p.patchers.add(path)
        {
            let (name, value) = (PATCHED_BY.into(), path.into());
            p.trace_writer.define(&Definition::Setting { name, value });
        }
        let known = all.iter_mut().find(|(known, _)| *known == library);
        let added = match known {
            Some((_, functions)) => functions.try_push(api),
            None => list_of(1, [api].into_iter()).and_then(|one| all.try_push((library, one))),
        };
        if added.is_err() {
            break;
        }
    }
    let count = all.iter().map(|(_, functions)| functions.len()).sum();
    if count == 0 || !p.patchers.is_settled(count) && noted == Noted::OnceSettled {
        return;
    }
    for (library, functions) in &mut all {
        functions.retain(|api| p.patchers.note(*api as usize));
        note(p, library.as_deref(), functions);
    }
}

fn is_followed(api: Api) -> bool {
    api.home() == Home::Cuda && api.family() != Family::Noted
}

fn ours() -> Option<Loaded> {
    mapped_modules::holding(look as *const () as usize)
}

#[cold]
fn find_entries() {
    let Some(ours) = ours() else { return };
    // SAFETY: this library stays loaded.
    let object = unsafe { ours.object() };
    for api in Api::ALL.iter().copied().filter(|api| is_followed(*api)) {
        let entry = object.function(api.name().as_bytes()).unwrap_or(0);
        ENTRIES[api as usize].store(entry, Ordering::Relaxed);
    }
    ARE_FOUND.store(true, Ordering::Release);
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
