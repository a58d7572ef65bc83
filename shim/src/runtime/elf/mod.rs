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
use core::iter::successors;
use core::mem::MaybeUninit;
use core::ptr::{NonNull, null_mut};
use image::Plain;
pub use image::{Image, program_page};
use tables::{Tables, is_function, is_in_memory};

/// What the loader knows of an object.
#[derive(Clone, Copy)]
#[repr(C)]
struct LinkMap {
    base: usize,
    path: *const c_char,
    dynamic: usize,
    next: *const LinkMap,
    previous: *const LinkMap,
}

/// The loader's record of an object that stays loaded while this is used: it contains code or data in use, or was loaded at
/// start. Only objects that were loaded at start are visited by the loader's list, without its lock: they stay, and only the
/// last of them is later linked to a new one. The address is also the object's `dlopen` handle.
#[derive(Clone, Copy, PartialEq)]
struct Record(NonNull<LinkMap>);

impl Record {
    fn of(map: *const LinkMap) -> Option<Record> {
        NonNull::new(map.cast_mut()).map(Record)
    }

    /// As it is now: the loader links new objects to it.
    fn read(self) -> LinkMap {
        // SAFETY: the object stays loaded, and its record with it.
        unsafe { self.0.read_volatile() }
    }

    /// In load order. The first is the program itself.
    fn first() -> Option<Record> {
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
        Record::of(unsafe { (&raw const _r_debug.first).read_volatile() })
    }

    /// Of the object in which an address lies.
    fn holding(address: usize) -> Option<Record> {
        unsafe extern "C" {
            fn dladdr1(
                address: *const c_void,
                info: *mut libc::Dl_info,
                extra: *mut *mut LinkMap,
                flags: c_int,
            ) -> c_int;
        }
        const RTLD_DL_LINKMAP: c_int = 2;
        let (mut info, mut map) = (MaybeUninit::uninit(), null_mut());
        let address = address as *const c_void;
        // SAFETY: both answers have room; the function accepts any address.
        let found = unsafe { dladdr1(address, info.as_mut_ptr(), &mut map, RTLD_DL_LINKMAP) };
        if found == 0 { None } else { Record::of(map) }
    }

    fn handle(self) -> *mut c_void {
        self.0.as_ptr().cast()
    }
}

/// A loaded object. The code that creates one ensures that it stays loaded while it is used.
#[derive(Clone, Copy)]
pub struct Object {
    record: Record,
    tables: Option<Tables>,
}

/// The object in which an address of code or data in use lies.
pub fn object_at(address: usize) -> Option<Object> {
    Record::holding(address).map(Object::new)
}

/// The handle of that object; NULL: none. Unlike [`object_at`] it reads no table and makes no system call.
pub fn handle_at(address: usize) -> *mut c_void {
    Record::holding(address).map_or(null_mut(), Record::handle)
}

impl Object {
    fn new(record: Record) -> Object {
        let object = Object { record, tables: None };
        let LinkMap { base, dynamic, .. } = record.read();
        // If the object is linked to addresses other than 0, the base is a difference and not the address of a header:
        // a small one where the object lies near those addresses, else an address at which there may be nothing.
        let near = dynamic.checked_sub(base).is_some_and(|distance| distance < 1 << 32);
        let pages =
            [Some(base).filter(|_| near && base != 0), object.path().is_empty().then(program_page)];
        // SAFETY: the loader's record gives the base of an object, which stays loaded.
        let image = pages.into_iter().flatten().find_map(|page| unsafe { Image::at(page, base) });
        let image = image.filter(|_| dynamic != 0);
        Object { tables: image.and_then(|image| Tables::of(image, dynamic)), ..object }
    }

    /// # Safety
    /// As for [`Object::opened`], and not NULL.
    pub unsafe fn of_handle(handle: *mut c_void) -> Object {
        // SAFETY: the caller's contract.
        Object::new(Record(unsafe { NonNull::new_unchecked(handle.cast()) }))
    }

    /// # Safety
    /// NULL, or a handle that [`Object::handle`] or `dlopen` gave, of an object that stays loaded.
    pub unsafe fn opened(handle: *mut c_void) -> Option<Object> {
        Record::of(handle.cast()).map(Object::new)
    }

    /// The handle that `dlopen` returns, without its reference.
    pub fn handle(&self) -> *mut c_void {
        self.record.handle()
    }

    /// The difference between addresses in memory and addresses in the file.
    pub fn base(&self) -> usize {
        self.record.read().base
    }

    /// Address and size of the function or variable that it defines under this name.
    pub fn symbol(&self, name: &[u8]) -> Option<(usize, usize)> {
        self.tables?.symbol(name, is_in_memory)
    }

    /// Whether these bytes are data of this object's that the program may write to.
    pub fn is_data(&self, address: usize, length: usize) -> bool {
        self.tables.is_some_and(|tables| tables.image.is_data(address, length))
    }

    pub fn contains(&self, address: usize) -> bool {
        Record::holding(address) == Some(self.record)
    }

    /// Path as it was loaded; empty for the program itself.
    pub fn path(&self) -> &CStr {
        let path = self.record.read().path;
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
        Some(self.tables?.symbol(name, is_function)?.0)
    }

    /// Before it in load order.
    fn previous(&self) -> Option<Object> {
        Record::of(self.record.read().previous).map(Object::new)
    }

    /// Behind it in load order.
    fn next(&self) -> Option<Object> {
        Record::of(self.record.read().next).map(Object::new)
    }

    /// The objects after this one that were loaded at start, in load order: up to the C library and the
    /// loader.
    fn those_after(&self) -> impl Iterator<Item = Object> + use<> {
        let (mut library, mut loader) = (false, false);
        successors(self.next(), Object::next).take_while(move |object| {
            let last = library && loader;
            library |= object.is_named("libc.so.");
            loader |= object.is_named("ld-linux");
            !last
        })
    }
}

/// The handle of the program itself: the first in the loader's list.
pub fn first_object() -> usize {
    Record::first().map_or(0, |record| record.handle() as usize)
}

/// The base of the object with this handle, and the handle of the next one. `None`: there is no such
/// object.
///
/// # Safety
/// `handle` is 0, or of an object that stays in the loader's list during the call.
pub unsafe fn link(handle: usize) -> Option<(usize, usize)> {
    let LinkMap { base, next, .. } = Record::of(handle as *const LinkMap)?.read();
    Some((base, next as usize))
}

/// This library itself, found in the loader's list without a lock, so that hooks can call this.
fn own() -> Option<Object> {
    unsafe extern "C" {
        /// Each object has its own; this is ours.
        static _DYNAMIC: u64;
    }
    let ours = &raw const _DYNAMIC as usize;
    // The walk ends at this library, which is never unloaded.
    let mut all = successors(Record::first(), |record| Record::of(record.read().next));
    let found = all.find(|record| record.read().dynamic == ours).map(Object::new);
    found.or_else(|| object_at(own as *const () as usize))
}

/// The functions of these names, each in the first object after this library in load order that has it; if there is none,
/// in one before it.
///
/// `dl_iterate_phdr` is not called, because a sanitizer's runtime calls `dlsym` before its own version of that function works.
pub fn functions_after_us<const NAMES: usize>(names: [&[u8]; NAMES]) -> [Option<usize>; NAMES] {
    let Some(own) = own() else { return [None; NAMES] };
    let before = successors(own.previous(), Object::previous);
    first_in(own.those_after().chain(before), names)
}

/// The same for one name.
pub fn function_after_us(name: &[u8]) -> Option<usize> {
    functions_after_us([name])[0]
}

/// The objects that were loaded at start, the program first.
fn of_the_start() -> impl Iterator<Item = Object> {
    let program = Record::first().map(Object::new);
    program.into_iter().flat_map(|program| core::iter::once(program).chain(program.those_after()))
}

/// Whether the object with this handle was loaded at start, so that it is never unloaded.
pub fn is_of_the_start(handle: *const c_void) -> bool {
    of_the_start().any(|one| one.handle().cast_const() == handle)
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
    object_at(address)?.those_after().find_map(|object| object.function(name))
}

/// The functions of these names in the first objects, of those loaded at start, the program among them.
pub fn startup_functions<const NAMES: usize>(names: [&[u8]; NAMES]) -> [Option<usize>; NAMES] {
    first_in(of_the_start(), names)
}

/// Address and size of the variable of this name in the first object, of those loaded at start, after
/// this library.
pub fn startup_variable(name: &[u8]) -> Option<(usize, usize)> {
    own()?.those_after().find_map(|object| object.symbol(name))
}

/// The value, or of several the one of this number, that a variable of the C library's or the loader's has.
pub fn startup_value<T: Plain>(name: &[u8], number: usize) -> Option<T> {
    let value = |object: Object| {
        let tables = object.tables?;
        let (at, _) = tables.symbol(name, is_in_memory)?;
        tables.image.get(at + number * size_of::<T>())
    };
    own()?.those_after().find_map(value)
}

/// The C library's function of this name, even if an object before it defines one.
pub fn c_library_function(name: &[u8]) -> Option<usize> {
    own()?.those_after().find(|object| object.is_named("libc.so."))?.function(name)
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
        let loader = successors(libc.next(), Object::next)
            .chain(successors(libc.previous(), Object::previous));
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
