//! The exported functions, one for each line of the table. A program reaches them by linking against
//! the driver (this library precedes it in the search order), or by a pointer that a hooked look-up
//! returned. Hooks run only from here, so that each call is handled once.
#![allow(non_snake_case, clippy::too_many_arguments, clippy::missing_safety_doc)]

use crate::driver::api::Api;
use crate::driver::cuda::*;
use crate::driver::param::{In, Out};
use crate::driver::table::table;
use crate::driver::{depth, pointers};
use crate::hooks::call::handler_exits::deferred;
use crate::hooks::call::{self, Frame, Row};
use crate::hooks::entry::proc_address;
use crate::hooks::families::*;
use crate::runtime::opaque;
use core::ffi::{c_char, c_void};
use core::ptr::null_mut;
use vramtrace_format::Kind;

macro_rules! exports {
    ($( $title:literal $family:ident in $home:ident { $(
        $( $name:ident $since:literal ),+ : $arguments:tt => $hook:tt
    )* } )*) => {
        $($($( export!($home $name $arguments => $hook); )+)*)*

        /// The function that a look-up returns in place of the real one.
        pub fn replacement(api: Api) -> *mut c_void {
            let hook = match api { $($($( Api::$name => $name as *const (), )+)*)* };
            hook.cast_mut().cast()
        }
    };
}

/// Before a jump to another function: conditional jumps go to this place, in two bytes, and not there, in six.
#[inline(always)]
fn short_jumps() {
    // SAFETY: no instruction.
    #[cfg(not(miri))]
    unsafe {
        core::arch::asm!("", options(nomem, nostack, preserves_flags))
    };
}

/// The real function at this address, with the types that its row names. `row`: of this row, or the call ends here.
macro_rules! real {
    ($real:expr, ($($ty:ty),*) -> $result:ty) => {{
        // SAFETY: the real function of this row, with the types that the row names.
        let real: unsafe extern "C-unwind" fn($($ty),*) -> $result = unsafe { core::mem::transmute($real) };
        real
    }};
    (row $name:ident, ($($ty:ty),*)) => {
        match pointers::function(Api::$name) {
            Some(real) => real!(real, ($($ty),*) -> CUresult),
            None => return Api::$name.missing(Api::$name.home().is_found()),
        }
    };
}

const fn is_per_thread(name: &str) -> bool {
    matches!(name.as_bytes(), [.., b'_', b'p', b't', b's', b'z'])
}

macro_rules! row {
    ($name:ident ( $($arg:ident: $ty:ty),* )) => {
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy)]
        struct $name {
            real: unsafe extern "C-unwind" fn($($ty),*) -> CUresult,
            $($arg: $ty,)*
        }

        impl Row for $name {
            const API: Api = Api::$name;
            const IS_PER_THREAD: bool = is_per_thread(stringify!($name));

            #[inline(always)]
            unsafe fn make(&self) -> CUresult {
                // SAFETY: the program has made this call.
                unsafe { (self.real)($(self.$arg),*) }
            }
        }
    };
}

/// Runs a hook of the program's call, which `real` makes. The arguments are taken from the call: the closure keeps nothing.
macro_rules! hooked {
    ($name:ident, $real:expr, ($($arg:ident),*), $hook:ident $(:: $rest:ident)? $(( $($passed:tt)* ))?) => {{
        let row = $name { real: $real, $($arg),* };
        // SAFETY: the program's own call, with its arguments.
        let Some(guard) = depth::enter() else { return unsafe { row.make() } };
        // SAFETY: this is the program's call, and `frame` ends with it.
        let frame = unsafe { Frame::new(row, guard) };
        let result = call::run(&frame, |call| {
            #[allow(unused_variables)]
            let $name { $($arg,)* .. } = call.row;
            $hook $(:: $rest)? (call, $($($passed)*)?)
        });
        frame.end();
        result
    }};
}

/// A hook of a function of PyTorch's, which has no call that is run. Without destructors: see `hooks/call/handler_exits.rs`.
#[inline(always)]
fn plain_or_deferred<R>(hook: impl FnOnce() -> R) -> R {
    if depth::is_plain() { hook() } else { deferred(hook) }
}

macro_rules! export {
    // Of PyTorch. The register behind the arguments is for the place of the call, which says whose library this is: `called` has
    // it as its last argument.
    (torch $register:literal $register_aarch64:literal, $name:ident ( $($arg:ident: $ty:ty),* ) -> $result:ty { $($item:item)* }) => {
        pub use $name::$name;
        mod $name {
            use super::*;

            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[unsafe(naked)]
            #[unsafe(link_section = concat!(".text.passing.", stringify!($name)))]
            pub unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> $result {
                #[cfg(target_arch = "x86_64")]
                core::arch::naked_asm!(
                    // This stub, which is the first one in its section, and what it jumps to are on the same lines of the cache.
                    ".balign 64",
                    ".cfi_startproc",
                    "endbr64",
                    concat!("mov ", $register, ", [rsp]"),
                    "jmp {called}",
                    ".cfi_endproc",
                    called = sym called,
                );
                #[cfg(target_arch = "aarch64")]
                core::arch::naked_asm!(
                    ".balign 64",
                    ".cfi_startproc",
                    // `bti c`
                    "hint 34",
                    concat!("mov ", $register_aarch64, ", x30"),
                    "b {called}",
                    ".cfi_endproc",
                    called = sym called,
                );
            }

            $($item)*
        }
    };
    (hooked $register:literal $register_aarch64:literal, $name:ident ( $($arg:ident: $ty:ty),* ) -> $result:ty => $hook:path) => {
        export!(torch $register $register_aarch64, $name ( $($arg: $ty),* ) -> $result {
            unsafe extern "C-unwind" fn called($($arg: $ty,)* caller: usize) -> $result {
                plain_or_deferred(move || $hook(Api::$name, $($arg,)* caller))
            }
        });
    };
    (Torch $name:ident $arguments:tt => { torch :: out_of_memory $passed:tt }) => {
        export!(hooked "r8" "x4", $name $arguments -> () => torch::out_of_memory);
    };
    // Its argument, a structure, is in two registers.
    (Torch $name:ident $arguments:tt => { torch_streams :: set_current $passed:tt }) => {
        export!(hooked "rdx" "x2", $name $arguments -> () => torch_streams::set_current);
    };
    // Of another library of PyTorch than the others. It has no arguments, and returns a number that is the caller's.
    (Torch $name:ident $arguments:tt => { torch_nodes :: made $passed:tt }) => {
        export!(hooked "rdi" "x0", $name $arguments -> u64 => torch_nodes::made);
    };
    // Asks for a number, at each request of a block: what is known of the caller takes neither a lock nor the loader.
    (Torch $name:ident ( $a:ident: $A:ty ) => { torch_requests :: divisions $passed:tt }) => {
        export!(torch "rsi" "x1", $name ($a: $A) -> u64 {
            #[unsafe(link_section = concat!(".text.passing.", stringify!($name)))]
            unsafe extern "C-unwind" fn called($a: $A, caller: usize) -> u64 {
                if let Some(real) = torch_requests::passed(Api::$name, caller) {
                    let real = real!(real, ($A) -> u64);
                    // SAFETY: the program's own call, with its arguments.
                    return unsafe { real($a) };
                }
                short_jumps();
                noted($a, caller)
            }

            #[inline(never)]
            extern "C-unwind" fn noted($a: $A, caller: usize) -> u64 {
                torch_requests::divisions(Api::$name, $a, caller)
            }
        });
    };
    // Blocks: a program makes millions.
    (Torch $name:ident $arguments:tt => { torch :: memory $passed:tt }) => {
        export!(torch "r9" "x5", $name $arguments -> () {
            // The last calls are jumps, and none needs a place on the stack.
            #[unsafe(link_section = concat!(".text.passing.", stringify!($name)))]
            unsafe extern "C-unwind" fn called(
                at: *mut c_void,
                size: i64,
                allocated: usize,
                reserved: usize,
                device: u64,
                caller: usize,
            ) {
                let report = torch::Report { at, size, allocated, reserved, device };
                if let Some(real) = torch_samples::passed(Api::$name, caller, report) {
                    let real = real!(real, (*mut c_void, i64, usize, usize, u64) -> ());
                    // SAFETY: the program's own call, with its arguments.
                    return unsafe { real(at, size, allocated, reserved, device) };
                }
                short_jumps();
                let place = torch_entry::Place::new(Api::$name, caller);
                // SAFETY: the program's own call, with its arguments.
                unsafe { torch_entry::not_passed(at, size, allocated, reserved, device, place) }
            }
        });
    };
    // Launches: a program makes thousands a second, and only the first one of a function matters.
    ($home:ident $name:ident ( $($arg:ident: $ty:ty),* ) => { launch :: first ( $function:ident ) }) => {
        row!($name ( $($arg: $ty),* ));
        // On one line of the cache.
        #[cfg(not(miri))]
        core::arch::global_asm!(
            concat!(".pushsection .text.passing.", stringify!($name), ",\"ax\",@progbits"),
            ".balign 64",
            ".popsection",
        );
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(link_section = concat!(".text.passing.", stringify!($name)))]
        pub unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> CUresult {
            if let Some(real) = launch::passed(Api::$name, $function) {
                let real = real!(real, ($($ty),*) -> CUresult);
                // SAFETY: the program's own call, with its arguments.
                return unsafe { real($($arg),*) };
            }
            #[inline(never)]
            unsafe extern "C-unwind" fn looked_up($($arg: $ty),*) -> CUresult {
                let real = real!(row $name, ($($ty),*));
                if launch::is_known($function) {
                    // SAFETY: the program's own call, with its arguments.
                    return unsafe { real($($arg),*) };
                }
                // SAFETY: the program's own call, with its arguments.
                deferred(move || unsafe { first(real, $($arg),*) })
            }
            #[cold]
            #[inline(never)]
            unsafe fn first(
                real: unsafe extern "C-unwind" fn($($ty),*) -> CUresult,
                $($arg: $ty),*
            ) -> CUresult {
                hooked!($name, real, ($($arg),*), launch::first($function))
            }
            // Of a function that the compiler does not know the arguments on the stack stay where they are.
            let other = opaque::address(looked_up as *const () as usize);
            let real = real!(other, ($($ty),*) -> CUresult);
            // SAFETY: the program's own call, with its arguments.
            unsafe { real($($arg),*) }
        }
    };
    // A query that libraries make at each of their calls: its answer is read, and nothing else is done.
    ($home:ident $name:ident ( $($arg:ident: $ty:ty),* ) => { torch_streams :: capture_info $passed:tt }) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> CUresult {
            let real = real!(row $name, ($($ty),*));
            // SAFETY: the program's own call, with its arguments.
            let result = unsafe { real($($arg),*) };
            if result == 0 {
                torch_streams::capture_info $passed;
            }
            result
        }
    };
    ($home:ident $name:ident ( $($arg:ident: $ty:ty),* ) => { $($hook:tt)+ }) => {
        row!($name ( $($arg: $ty),* ));
        // Without destructors: see `hooks/call/handler_exits.rs`.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> CUresult {
            #[inline(never)]
            unsafe extern "C-unwind" fn hooked($($arg: $ty),*) -> CUresult {
                let real = real!(row $name, ($($ty),*));
                hooked!($name, real, ($($arg),*), $($hook)+)
            }
            if depth::is_plain() {
                // SAFETY: the program's own call, with its arguments.
                return unsafe { hooked($($arg),*) };
            }
            // SAFETY: the program's own call, with its arguments.
            deferred(move || unsafe { hooked($($arg),*) })
        }
    };
}

table!(exports);
