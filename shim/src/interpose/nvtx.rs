//! NVTX's injection interface. The headers that programs and libraries are built with look, at their first use,
//! for a library named in NVTX_INJECTION64_PATH, call its `InitializeInjectionNvtx2`, and let it
//! put its own functions in place of ones that do nothing. Each binary with such headers does
//! so by itself. Where another tool is named there, we are not called. `vramtrace run` sets the variable
//! where it is unset; the library itself never changes the environment.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};
use std::borrow::Cow;

/// Number of the table of callbacks.
const CALLBACKS: u32 = 1;
/// Modules of functions: without and with domains.
pub const CORE: c_int = 1;
pub const CORE2: c_int = 5;

/// Function tables are arrays of places of function pointers.
type Slots = *const Option<&'static AtomicPtr<c_void>>;

#[repr(C)]
pub struct Callbacks {
    struct_size: usize,
    module_table: Option<extern "C" fn(c_int, &mut Slots, &mut u32) -> c_int>,
}

/// The attributes of an event; fields after the message are left out.
#[repr(C)]
pub struct Attributes {
    version: u16,
    size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    message: *const c_void,
}

const _: () = assert!(size_of::<Attributes>() == 48);

const ASCII: i32 = 1;
const WIDE: i32 = 2;
const REGISTERED: i32 = 3;

/// What `InitializeInjectionNvtx2` is called with. It gives a table that begins with its size and is there for good.
pub type ExportTable = Option<unsafe extern "C" fn(u32) -> Option<&'static Callbacks>>;

/// Functions of one module, each with its number in the module's table.
pub type Module<'a> = (c_int, &'a [(usize, *const c_void)]);

/// Puts the functions into NVTX's tables. 1: some were taken.
///
/// # Safety
/// `export_table` is NVTX's own; each function has the type of its number.
pub unsafe fn install(export_table: ExportTable, modules: &[Module]) -> c_int {
    let Some(export_table) = export_table else { return 0 };
    // SAFETY: NVTX's function.
    let callbacks = unsafe { export_table(CALLBACKS) };
    let whole = callbacks.filter(|table| table.struct_size >= size_of::<Callbacks>());
    let Some(table) = whole.and_then(|table| table.module_table) else { return 0 };
    let mut any = 0;
    for &(module, functions) in modules {
        let (mut slots, mut count): (Slots, u32) = (core::ptr::null(), 0);
        if table(module, &mut slots, &mut count) == 0 || slots.is_null() {
            continue;
        }
        // SAFETY: the table has that many places.
        let slots = unsafe { core::slice::from_raw_parts(slots, count as usize) };
        for (id, function) in functions {
            if let Some(Some(place)) = slots.get(*id) {
                place.store(function.cast_mut(), Ordering::Relaxed);
                any = 1;
            }
        }
    }
    any
}

/// A text that the program passes to a function of NVTX: null, or bytes that end with 0, until that
/// function returns. NVTX makes these, and each `Wide` and `Event`; nothing here does.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Text(*const c_char);

impl Text {
    pub fn read(&self) -> Cow<'_, str> {
        if self.0.is_null() {
            return Cow::Borrowed("");
        }
        // SAFETY: not null, so bytes that end with 0. The result lives no longer than `self`.
        unsafe { CStr::from_ptr(self.0) }.to_string_lossy()
    }
}

/// The same of 32-bit characters.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Wide(*const u32);

impl Wide {
    pub fn read(&self, longest: usize) -> String {
        let mut out = String::new();
        let mut at = self.0;
        while !at.is_null() && out.len() < longest {
            // SAFETY: no further than the 0 that ends the text.
            match unsafe { at.read() } {
                0 => break,
                code => out.push(char::from_u32(code).unwrap_or('?')),
            }
            at = at.wrapping_add(1);
        }
        out
    }
}

/// Null, or the attributes of an event. They begin with their size, and their message is of the type
/// that they give.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Event(*const Attributes);

impl Event {
    /// Its text. `registered` has the texts that were registered, by their handle.
    pub fn message(
        &self,
        longest: usize,
        registered: impl FnOnce(usize) -> &'static str,
    ) -> Cow<'_, str> {
        let needed = core::mem::offset_of!(Attributes, message) + size_of::<usize>();
        // SAFETY: null, or attributes that begin with their size.
        if self.0.is_null() || usize::from(unsafe { (*self.0).size }) < needed {
            return Cow::Borrowed("");
        }
        // SAFETY: the attributes are at least as long as the fields that are read.
        let Attributes { message_type, message, .. } = unsafe { self.0.read() };
        match message_type {
            ASCII => Text(message.cast()).read().into_owned().into(),
            WIDE => Wide(message.cast()).read(longest).into(),
            REGISTERED => registered(message as usize).into(),
            _ => Cow::Borrowed(""),
        }
    }
}
