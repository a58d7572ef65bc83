//! NVTX's door. The headers that programs and libraries are built with look, at their first use,
//! for a library named in NVTX_INJECTION64_PATH, call its `InitializeInjectionNvtx2`, and let it
//! put functions of its own in place of ones that do nothing. Each binary with such headers does
//! so by itself. Where another tool is named there, we are not called.

use super::{depth, errno, shield};
use crate::hooks::mark;
use crate::process::{self, Process};
use crate::say;
use core::ffi::{CStr, c_char, c_int, c_void};
use std::borrow::Cow;
use vramtrace_format::StopReason;

/// Of export tables.
const CALLBACKS: u32 = 1;
/// Modules of functions: without and with domains.
const CORE: c_int = 1;
const CORE2: c_int = 5;

/// Function tables are arrays of places of function pointers.
type Slots = *mut *mut *const c_void;

#[repr(C)]
struct Callbacks {
    struct_size: usize,
    module_table: Option<unsafe extern "C" fn(c_int, *mut Slots, *mut u32) -> c_int>,
}

/// The attributes of an event; of what follows the message nothing is needed.
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

/// # Safety
/// Called by NVTX, with its function.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[allow(non_snake_case)]
pub unsafe extern "C" fn InitializeInjectionNvtx2(
    export_table: Option<unsafe extern "C" fn(u32) -> *const c_void>,
) -> c_int {
    let Some(export_table) = export_table else { return 0 };
    let callbacks = unsafe { export_table(CALLBACKS) }.cast::<Callbacks>();
    if callbacks.is_null() || unsafe { (*callbacks).struct_size } < size_of::<Callbacks>() {
        return 0;
    }
    let Some(table) = (unsafe { (*callbacks).module_table }) else { return 0 };
    let modules: [(c_int, &[(usize, *const c_void)]); 2] = [
        (
            CORE,
            &[
                (1, mark_ex as _),
                (2, mark_a as _),
                (3, mark_w as _),
                (4, start_ex as _),
                (5, start_a as _),
                (6, start_w as _),
                (7, end as _),
                (8, push_ex as _),
                (9, push_a as _),
                (10, push_w as _),
                (11, pop as _),
            ],
        ),
        (
            CORE2,
            &[
                (1, domain_mark as _),
                (2, domain_start as _),
                (3, domain_end as _),
                (4, domain_push as _),
                (5, domain_pop as _),
                (10, register_a as _),
                (11, register_w as _),
                (12, create_a as _),
                (13, create_w as _),
            ],
        ),
    ];
    let mut any = 0;
    for (module, functions) in modules {
        let (mut slots, mut count): (Slots, u32) = (core::ptr::null_mut(), 0);
        if unsafe { table(module, &mut slots, &mut count) } == 0 || slots.is_null() {
            continue;
        }
        for (id, function) in functions.iter().filter(|(id, _)| *id < count as usize) {
            // SAFETY: the table has that many places; a place may be null.
            unsafe {
                let place = *slots.add(*id);
                if !place.is_null() {
                    place.write(*function);
                    any = 1;
                }
            }
        }
    }
    any
}

/// Runs a hook of marks: nothing of ours unwinds into the program, errno stays.
fn run<R: Default>(hook: impl FnOnce(Option<&'static Process>) -> R) -> R {
    let Some(_depth) = depth::enter() else { return R::default() };
    let kept = errno::get();
    let outcome = shield::catch(|| {
        let process = process::existing();
        let result = hook(process);
        if let Some(process) = process {
            process.recorder.after_block(process);
        }
        result
    });
    errno::set(kept);
    outcome.unwrap_or_else(|_| {
        if let Some(process) = process::existing().filter(|p| p.entry.first_panic()) {
            say::line(format_args!(
                "internal error in a mark of NVTX; recording ends here, the program goes on"
            ));
            process.recorder.stop(StopReason::Panic, 0);
        }
        R::default()
    })
}

/// # Safety
/// Null, or a string.
unsafe fn text<'t>(message: *const c_char) -> Cow<'t, str> {
    if message.is_null() {
        return Cow::Borrowed("");
    }
    unsafe { CStr::from_ptr(message) }.to_string_lossy()
}

/// # Safety
/// Null, or a string of 32-bit characters.
unsafe fn wide(message: *const u32) -> Cow<'static, str> {
    let mut out = String::new();
    let mut at = message;
    while !at.is_null() && out.len() < mark::LONGEST {
        match unsafe { at.read() } {
            0 => break,
            code => out.push(char::from_u32(code).unwrap_or('?')),
        }
        at = unsafe { at.add(1) };
    }
    out.into()
}

/// # Safety
/// Null, or attributes as their fields say.
unsafe fn message<'t>(attributes: *const Attributes) -> Cow<'t, str> {
    let needed = core::mem::offset_of!(Attributes, message) + size_of::<usize>();
    if attributes.is_null() || usize::from(unsafe { (*attributes).size }) < needed {
        return Cow::Borrowed("");
    }
    let Attributes { message_type, message, .. } = unsafe { attributes.read() };
    match message_type {
        ASCII => unsafe { text(message.cast()) },
        WIDE => unsafe { wide(message.cast()) },
        REGISTERED => mark::registered(message as usize).into(),
        _ => Cow::Borrowed(""),
    }
}

macro_rules! marks {
    ($( $name:ident ( $($arg:ident: $ty:ty),* ) -> $out:ty = $hook:ident ( $domain:expr, $text:expr ); )*) => { $(
        unsafe extern "C" fn $name($($arg: $ty),*) -> $out {
            run(|process| mark::$hook(process, $domain, &unsafe { $text }))
        }
    )* };
}

type Text = *const c_char;
type Wide = *const u32;
type Event = *const Attributes;
/// A handle that we gave out.
type Domain = usize;

marks! {
    mark_ex(event: Event) -> () = moment(0, message(event));
    mark_a(name: Text) -> () = moment(0, text(name));
    mark_w(name: Wide) -> () = moment(0, wide(name));
    start_ex(event: Event) -> u64 = start(0, message(event));
    start_a(name: Text) -> u64 = start(0, text(name));
    start_w(name: Wide) -> u64 = start(0, wide(name));
    push_ex(event: Event) -> c_int = push(0, message(event));
    push_a(name: Text) -> c_int = push(0, text(name));
    push_w(name: Wide) -> c_int = push(0, wide(name));
    domain_mark(domain: Domain, event: Event) -> () = moment(domain, message(event));
    domain_start(domain: Domain, event: Event) -> u64 = start(domain, message(event));
    domain_push(domain: Domain, event: Event) -> c_int = push(domain, message(event));
}

unsafe extern "C" fn end(range: u64) {
    run(|process| mark::end(process, range));
}

unsafe extern "C" fn domain_end(_domain: Domain, range: u64) {
    run(|process| mark::end(process, range));
}

unsafe extern "C" fn pop() -> c_int {
    run(|process| mark::pop(process, 0))
}

unsafe extern "C" fn domain_pop(domain: Domain) -> c_int {
    run(|process| mark::pop(process, domain))
}

unsafe extern "C" fn register_a(_domain: Domain, name: Text) -> usize {
    run(|_| mark::register(&unsafe { text(name) }))
}

unsafe extern "C" fn register_w(_domain: Domain, name: Wide) -> usize {
    run(|_| mark::register(&unsafe { wide(name) }))
}

unsafe extern "C" fn create_a(name: Text) -> usize {
    run(|_| mark::register(&unsafe { text(name) }))
}

unsafe extern "C" fn create_w(name: Wide) -> usize {
    run(|_| mark::register(&unsafe { wide(name) }))
}
