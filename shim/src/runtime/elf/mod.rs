//! Symbols by reading the loaded objects' own tables.
//!
//! This library exports `dlsym`, so nothing here may call it. The real one, and the driver's functions
//! behind the exports of the same names, are found in the GNU hash tables of their objects.
//!
//! An object is found by an address in it, by its handle, or in the loader's list. NOT by
//! `dl_iterate_phdr`: the C library does not reset its lock in a forked child, so a child whose parent
//! had another thread in that function would wait forever.

mod image;
mod tables;

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;
use image::Image;
use tables::{Symbol, Tables};

/// The loader's record of an object; its address is also the object's `dlopen` handle.
#[derive(Clone, Copy)]
#[repr(C)]
struct LinkMap {
    base: usize,
    path: *const c_char,
    dynamic: usize,
    next: *const LinkMap,
    previous: *const LinkMap,
}

unsafe extern "C" {
    fn dladdr1(
        address: *const c_void,
        info: *mut libc::Dl_info,
        extra: *mut *mut LinkMap,
        flags: c_int,
    ) -> c_int;
}
const RTLD_DL_LINKMAP: c_int = 2;

/// A loaded object. The code that creates one ensures that it stays loaded while it is used.
#[derive(Clone, Copy)]
pub struct Object {
    map: *const LinkMap,
    tables: Option<Tables>,
}

/// The object in which an address lies.
pub fn object_at(address: usize) -> Option<Object> {
    // SAFETY: the loader's record of an object that contains code or data in use.
    unsafe { Object::linked(record_at(address)) }
}

/// The handle of that object; NULL: none. Unlike [`object_at`] it reads no table and makes no system call.
pub fn handle_at(address: usize) -> *mut c_void {
    record_at(address).cast()
}

fn record_at(address: usize) -> *mut LinkMap {
    let mut info = core::mem::MaybeUninit::uninit();
    let mut map: *mut LinkMap = null_mut();
    // SAFETY: both answers have room; the function accepts any address.
    let found =
        unsafe { dladdr1(address as *const c_void, info.as_mut_ptr(), &mut map, RTLD_DL_LINKMAP) };
    if found == 0 { null_mut() } else { map }
}

impl Object {
    /// # Safety
    /// `map` is the loader's record of an object that stays loaded.
    unsafe fn new(map: *const LinkMap) -> Object {
        let object = Object { map, tables: None };
        let LinkMap { base, dynamic, .. } = object.link();
        // SAFETY: the loader's record gives the base of an object, which stays loaded.
        let image = unsafe { Image::of_library(base, dynamic) };
        let image = image.or_else(|| match object.path().is_empty() {
            true => Image::of_program(base),
            false => None,
        });
        let tables = image.filter(|_| dynamic != 0);
        let tables = tables.and_then(|image| Tables::of(image, base, dynamic));
        Object { map, tables }
    }

    /// # Safety
    /// As for [`Object::new`], or NULL.
    unsafe fn linked(map: *const LinkMap) -> Option<Object> {
        // SAFETY: the record is of an object that stays loaded (see above).
        (!map.is_null()).then(|| unsafe { Object::new(map) })
    }

    /// # Safety
    /// The handle is one that [`Object::handle`] or `dlopen` gave, of an object that stays loaded.
    pub unsafe fn of_handle(handle: *mut c_void) -> Object {
        // SAFETY: the record is of an object that stays loaded (see above).
        unsafe { Object::new(handle.cast_const().cast()) }
    }

    /// The loader's record as it is now: the loader links new objects to it.
    fn link(&self) -> LinkMap {
        // SAFETY: the object stays loaded, and its record with it.
        unsafe { self.map.read_volatile() }
    }

    /// The handle that `dlopen` returns, without its reference.
    pub fn handle(&self) -> *mut c_void {
        self.map.cast_mut().cast()
    }

    /// The difference between addresses in memory and addresses in the file.
    pub fn base(&self) -> usize {
        self.link().base
    }

    /// Address and size of the function or variable that it defines under this name.
    pub fn symbol(&self, name: &[u8]) -> Option<(usize, usize)> {
        self.tables?.symbol(name, Symbol::is_in_memory)
    }

    /// Whether these bytes are data of this object's that the program may write to.
    pub fn is_data(&self, address: usize, length: usize) -> bool {
        self.tables.is_some_and(|tables| tables.is_data(address, length))
    }

    pub fn contains(&self, address: usize) -> bool {
        core::ptr::eq(record_at(address), self.map)
    }

    /// Path as it was loaded; empty for the program itself.
    pub fn path(&self) -> &CStr {
        let path = self.link().path;
        // SAFETY: the loader's text, which lives as long as the object.
        if path.is_null() { c"" } else { unsafe { CStr::from_ptr(path) } }
    }

    pub fn soname(&self) -> Option<&CStr> {
        self.tables?.soname()
    }

    /// Whether the last part of the path, or the soname, begins with `start`.
    pub fn is_named(&self, start: &str) -> bool {
        let path = self.path().to_bytes();
        let last = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        last.starts_with(start.as_bytes())
            || self.soname().is_some_and(|name| name.to_bytes().starts_with(start.as_bytes()))
    }

    /// Addresses in other objects that the loader has written into this one's tables.
    pub fn references(&self) -> impl Iterator<Item = usize> {
        self.tables.into_iter().flat_map(Tables::references)
    }

    /// Address of the function that it defines under this name.
    pub fn function(&self, name: &[u8]) -> Option<usize> {
        Some(self.tables?.symbol(name, Symbol::is_function)?.0)
    }

    /// Before it in load order.
    fn previous(&self) -> Option<Object> {
        // SAFETY: a link of the loader's list. Only objects that were loaded at start are visited, and
        // those stay.
        unsafe { Object::linked(self.link().previous) }
    }

    /// Behind it in load order.
    fn next(&self) -> Option<Object> {
        // SAFETY: a link of the loader's list. Only objects that were loaded at start are visited, and
        // those stay.
        unsafe { Object::linked(self.link().next) }
    }
}

/// The loader's list, in load order. The first is the program itself.
fn first() -> *const LinkMap {
    #[repr(C)]
    struct Debug {
        version: c_int,
        first: *const LinkMap,
    }
    unsafe extern "C" {
        /// The loader's, for debuggers.
        static _r_debug: Debug;
    }
    // SAFETY: set before the program starts.
    unsafe { (&raw const _r_debug.first).read_volatile() }
}

/// The handle of the program itself: the first in the loader's list.
pub fn first_object() -> usize {
    first() as usize
}

/// The base of the object with this handle, and the handle of the next one. `None`: there is no such
/// object.
///
/// # Safety
/// `handle` is 0, or of an object that stays in the loader's list during the call.
pub unsafe fn link(handle: usize) -> Option<(usize, usize)> {
    let map = handle as *const LinkMap;
    // SAFETY: the record of an object in the loader's list (see above). It is read volatile, since the
    // loader may be writing it.
    let map = if map.is_null() { return None } else { unsafe { map.read_volatile() } };
    Some((map.base, map.next as usize))
}

/// This library itself, found in the loader's list without a lock, so that hooks can call this.
fn own() -> Option<Object> {
    unsafe extern "C" {
        /// Each object has its own; this is ours.
        static _DYNAMIC: u64;
    }
    let ours = &raw const _DYNAMIC as usize;
    // SAFETY: links of the loader's list. The walk ends at this library, which is never unloaded.
    unsafe {
        let next = |map: &*const LinkMap| {
            let next = map.read_volatile().next;
            (!next.is_null()).then_some(next)
        };
        let mut all = std::iter::successors(Some(first()).filter(|map| !map.is_null()), next);
        let map = all.find(|map| map.read_volatile().dynamic == ours);
        map.map(|map| Object::new(map)).or_else(|| object_at(own as *const () as usize))
    }
}

/// The function of this name in the first object after this library in load order; if there is none, in
/// one before it.
///
/// The loader's list is read without a lock. Only objects that were loaded at start are visited: they
/// stay loaded, and only the last of them is later linked to a new one. `dl_iterate_phdr` is not
/// called, because a sanitizer's runtime calls `dlsym` before its own version of that function works.
pub fn function_after_us(name: &[u8]) -> Option<usize> {
    let [found] = functions_after_us([name]);
    found
}

/// The same for several names, by one walk.
pub fn functions_after_us<const NAMES: usize>(names: [&[u8]; NAMES]) -> [Option<usize>; NAMES] {
    let Some(own) = own() else { return [None; NAMES] };
    let before = std::iter::successors(own.previous(), Object::previous);
    first_in(objects_after(&own).chain(before), names)
}

/// Whether the object with this handle was loaded at start, so that it is never unloaded.
pub fn is_of_the_start(handle: *const c_void) -> bool {
    // SAFETY: the program's own record, which stays.
    let program = unsafe { Object::linked(first()) };
    let mut all =
        program.into_iter().flat_map(|one| core::iter::once(one).chain(objects_after(&one)));
    all.any(|one| one.map.cast() == handle)
}

/// The functions of these names, each in the first of the objects that has it.
fn first_in<const NAMES: usize>(
    objects: impl Iterator<Item = Object>,
    names: [&[u8]; NAMES],
) -> [Option<usize>; NAMES] {
    let mut found = [None; NAMES];
    for object in objects {
        for (found, name) in found.iter_mut().zip(names) {
            *found = found.or_else(|| object.function(name));
        }
        if found.iter().all(Option::is_some) {
            break;
        }
    }
    found
}

/// The function of this name in the first object, of those loaded at start, after the one that contains
/// the address.
pub fn function_after(address: usize, name: &[u8]) -> Option<usize> {
    let object = object_at(address)?;
    objects_after(&object).find_map(|object| object.function(name))
}

/// The function of this name in the first object, of those loaded at start, the program among them.
pub fn startup_function(name: &[u8]) -> Option<usize> {
    let [found] = startup_functions([name]);
    found
}

/// The same for several names, by one walk.
pub fn startup_functions<const NAMES: usize>(names: [&[u8]; NAMES]) -> [Option<usize>; NAMES] {
    // SAFETY: the program's own record, which stays.
    let Some(program) = (unsafe { Object::linked(first()) }) else { return [None; NAMES] };
    first_in(std::iter::once(program).chain(objects_after(&program)), names)
}

/// Address and size of the variable of this name in the first object, of those loaded at start, after
/// this library.
pub fn startup_variable(name: &[u8]) -> Option<(usize, usize)> {
    objects_after(&own()?).find_map(|object| object.symbol(name))
}

/// The C library's function of this name, even if an object before it defines one.
pub fn c_library_function(name: &[u8]) -> Option<usize> {
    let library = objects_after(&own()?).find(|object| object.is_named("libc.so."))?;
    library.function(name)
}

/// The objects after this one that were loaded at start, in load order: up to the C library and the
/// loader.
fn objects_after(object: &Object) -> impl Iterator<Item = Object> + use<> {
    let (mut library, mut loader) = (false, false);
    std::iter::successors(object.next(), Object::next).take_while(move |object| {
        let last = library && loader;
        library |= object.is_named("libc.so.");
        loader |= object.is_named("ld-linux");
        !last
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_the_linker_found() {
        // Not through dlsym: the test binary's own references.
        let getppid = libc::getppid as *const () as usize;
        let object = object_at(getppid).unwrap();
        assert!(object.is_named("libc.so"));
        assert!(object.contains(libc::getpid as *const () as usize));
        assert!(!object.contains(object_at as *const () as usize));
        assert_eq!(object.function(b"getppid"), Some(getppid));
        assert_eq!(object.function(b"no_such_function_anywhere"), None);
        assert_eq!(function_after_us(b"getppid"), Some(getppid));
        assert!(own().is_some_and(|own| own.contains(object_at as *const () as usize)));
        // SAFETY: the C library stays.
        let again = unsafe { Object::of_handle(object.handle()) };
        assert_eq!(again.function(b"getppid"), Some(getppid));
    }

    #[test]
    fn the_program_and_what_libraries_use_of_others() {
        let own = own().unwrap();
        let libc = object_at(libc::getppid as *const () as usize).unwrap();
        assert!(own.references().any(|address| libc.contains(address)));
        let loader = std::iter::successors(libc.next(), Object::next)
            .chain(std::iter::successors(libc.previous(), Object::previous));
        let mut all = loader.filter(|object| object.function(b"__tls_get_addr").is_some());
        assert!(all.next().is_some());
        let mut program = own;
        while let Some(before) = program.previous() {
            program = before;
        }
        assert!(program.path().is_empty() && program.tables.is_some());
    }

    #[test]
    fn an_address_of_nobody() {
        assert!(object_at(16).is_none());
        assert_eq!(function_after_us(b"no_such_function_anywhere"), None);
    }
}
