//! The exported functions, one for each line of the table. A program reaches them by linking against
//! the driver (this library precedes it in the search order), or by a pointer that a hooked look-up
//! returned. Hooks run only from here, so that each call is handled once.
#![allow(non_snake_case, clippy::too_many_arguments, clippy::missing_safety_doc)]

use crate::driver::api::Api;
use crate::driver::cuda::*;
use crate::driver::param::{In, Out};
use crate::driver::table::table;
use crate::driver::{depth, pointers};
use crate::hooks::call;
use crate::hooks::call::Call;
use crate::hooks::call::handler_exits::deferred;
use crate::hooks::families::{launch, torch_calls, torch_entry, torch_requests, torch_samples};
use crate::runtime::opaque;
use core::ffi::{c_char, c_void};

/// A function's address in a static.
pub struct Hook(pub *const ());
// SAFETY: addresses of functions, which are there for good.
unsafe impl Sync for Hook {}

macro_rules! exports {
    ($( $title:literal $family:ident in $home:ident { $(
        $name:ident $since:literal ( $($arg:ident: $ty:ty),* ) => $hook:ident $(:: $rest:ident)*;
    )* } )*) => {
        $($( export!($home $name ( $($arg: $ty),* ) => $hook $(:: $rest)*); )*)*

        /// The pointers that look-ups return in place of the real functions.
        pub static HOOKS: [Hook; Api::COUNT] = [ $($( Hook($name as *const ()), )*)* ];
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

/// Runs a hook of the program's call, which `real` makes. The arguments are taken from the call: the closure keeps nothing.
macro_rules! hooked {
    ($name:ident, $real:expr, ($($arg:ident),*), $($hook:tt)+) => {{
        // SAFETY: the program's own call, with its arguments.
        let Some(guard) = depth::enter() else { return unsafe { $real($($arg),*) } };
        // SAFETY: this is the program's call, and `call` ends with it.
        let call = unsafe { Call::new(Api::$name, $real, ($($arg,)*), guard) };
        let result = call::run(&call, |process, call| {
            #[allow(unused_variables)]
            let ($($arg,)*) = call.arguments();
            body!(Api::$name, process, call, ($($arg),*), $($hook)+)
        });
        call.end();
        result
    }};
}

/// A hook of a function of PyTorch's, which has no call that is run. Without destructors: see `hooks/call/handler_exits.rs`.
#[inline(always)]
fn plain_or_deferred<R>(hook: impl FnOnce() -> R) -> R {
    if depth::is_plain() { hook() } else { deferred(hook) }
}

macro_rules! export {
    // Called by PyTorch, not by the program.
    (Torch $name:ident (
        $a:ident: $A:ty, $b:ident: $B:ty, $c:ident: $C:ty, $d:ident: $D:ty
    ) => $($hook:tt)+) => {
        export!(torch "r8" "x4", $name ($a: $A, $b: $B, $c: $C, $d: $D) -> () {
            unsafe extern "C-unwind" fn called($a: $A, $b: $B, $c: $C, $d: $D, caller: usize) {
                let real = torch_calls::real(Api::$name, caller);
                plain_or_deferred(move || torch_calls::run(Api::$name, |process| {
                    crate::hooks::families::$($hook)+(process, Api::$name, $a, $b, $c, $d)
                }));
                if let Some(real) = real {
                    let real = real!(real, ($A, $B, $C, $D) -> ());
                    // SAFETY: the program's own call, with its arguments.
                    unsafe { real($a, $b, $c, $d) }
                }
            }
        });
    };
    // Blocks: a program makes millions.
    (Torch $name:ident (
        $a:ident: $A:ty, $b:ident: $B:ty, $c:ident: $C:ty, $d:ident: $D:ty, $e:ident: $E:ty
    ) => torch :: memory) => {
        export!(torch "r9" "x5", $name ($a: $A, $b: $B, $c: $C, $d: $D, $e: $E) -> () {
            // The last calls are jumps, and none needs a place on the stack.
            #[unsafe(link_section = concat!(".text.passing.", stringify!($name)))]
            unsafe extern "C-unwind" fn called($a: $A, $b: $B, $c: $C, $d: $D, $e: $E, caller: usize) {
                if let Some(real) = torch_samples::passed(Api::$name, caller, $a, $b, $c, $d, $e) {
                    let real = real!(real, ($A, $B, $C, $D, $E) -> ());
                    // SAFETY: the program's own call, with its arguments.
                    return unsafe { real($a, $b, $c, $d, $e) };
                }
                short_jumps();
                // SAFETY: the program's own call, with its arguments.
                unsafe { not_passed($a, $b, $c, $d, $e, caller) }
            }

            const REPORTED: unsafe extern "C-unwind" fn($A, $B, $C, $D, $E, usize) = match Api::$name {
                Api::_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE => torch_entry::block_reported,
                _ => torch_entry::block_reported_signed,
            };

            #[inline(never)]
            unsafe extern "C-unwind" fn not_passed($a: $A, $b: $B, $c: $C, $d: $D, $e: $E, caller: usize) {
                // SAFETY: the program's own call, with its arguments.
                unsafe {
                    match depth::is_plain() {
                        true => REPORTED($a, $b, $c, $d, $e, caller),
                        false => not_plain($a, $b, $c, $d, $e, caller),
                    }
                }
            }

            #[cold]
            #[inline(never)]
            unsafe extern "C-unwind" fn not_plain($a: $A, $b: $B, $c: $C, $d: $D, $e: $E, caller: usize) {
                // SAFETY: the program's own call, with its arguments.
                deferred(move || unsafe { REPORTED($a, $b, $c, $d, $e, caller) })
            }
        });
    };
    // Sets the caller's stream: its argument, a structure, is in two registers.
    (Torch $name:ident ( $a:ident: $A:ty, $b:ident: $B:ty ) => $($hook:tt)+) => {
        export!(torch "rdx" "x2", $name ($a: $A, $b: $B) -> () {
            unsafe extern "C-unwind" fn called($a: $A, $b: $B, caller: usize) {
                plain_or_deferred(move || crate::hooks::families::$($hook)+($a, $b, caller))
            }
        });
    };
    // Asks for a number, at each request of a block: what is known of the caller takes neither a lock nor the loader.
    (Torch $name:ident ( $a:ident: $A:ty ) => $($hook:tt)+) => {
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
                crate::hooks::families::$($hook)+(Api::$name, $a, caller)
            }
        });
    };
    // Of another library of PyTorch than the others. It has no arguments, and returns a number that is the caller's.
    (Torch $name:ident () => $($hook:tt)+) => {
        export!(torch "rdi" "x0", $name () -> u64 {
            unsafe extern "C-unwind" fn called(caller: usize) -> u64 {
                plain_or_deferred(move || crate::hooks::families::$($hook)+(Api::$name, caller))
            }
        });
    };
    // The register behind the arguments is for the place of the call, which says whose library this is: `called` has it as its
    // last argument.
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
    // Launches: a program makes thousands a second, and only the first one of a function matters.
    // A macro cannot distinguish types: the hook's name says where the function stands.
    ($home:ident $name:ident ( $config:ident: $C:ty, $function:ident: $F:ty $(, $arg:ident: $ty:ty)* ) => launch :: kernel_ex) => {
        export!(of $function, $name ( $config: $C, $function: $F $(, $arg: $ty)* ) => launch::kernel_ex);
    };
    ($home:ident $name:ident ( $function:ident: $F:ty $(, $arg:ident: $ty:ty)* ) => launch :: $hook:ident) => {
        export!(of $function, $name ( $function: $F $(, $arg: $ty)* ) => launch::$hook);
    };
    (of $function:ident, $name:ident ( $($arg:ident: $ty:ty),* ) => $($hook:tt)+) => {
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
                hooked!($name, real, ($($arg),*), $($hook)+)
            }
            // Of a function that the compiler does not know the arguments on the stack stay where they are.
            let other = opaque::address(looked_up as *const () as usize);
            let real = real!(other, ($($ty),*) -> CUresult);
            // SAFETY: the program's own call, with its arguments.
            unsafe { real($($arg),*) }
        }
    };
    // A query that libraries make at each of their calls: its answer is read, and nothing else is done.
    ($home:ident $name:ident ( $stream:ident: $S:ty, $status:ident: $T:ty, $id:ident: $I:ty $(, $arg:ident: $ty:ty)* ) => torch_streams :: capture_info) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C-unwind" fn $name($stream: $S, $status: $T, $id: $I $(, $arg: $ty)*) -> CUresult {
            let real = real!(row $name, ($S, $T, $I $(, $ty)*));
            // SAFETY: the program's own call, with its arguments.
            let result = unsafe { real($stream, $status, $id $(, $arg)*) };
            if result == 0 {
                crate::hooks::families::torch_streams::capture_info($status, $id);
            }
            result
        }
    };
    ($home:ident $name:ident ( $($arg:ident: $ty:ty),* ) => $($hook:tt)+) => {
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

macro_rules! body {
    ($api:expr, $process:ident, $call:expr, ($($arg:expr),*), pass) => {{
        let _ = $process;
        $call.leave_if_requested();
        $call.forward()
    }};
    ($api:expr, $process:ident, $call:expr, ($($arg:expr),*), note) => {{
        $process.usage.note(&$process.trace_writer, $api);
        $call.leave_if_requested();
        $call.forward()
    }};
    ($api:expr, $process:ident, $call:expr, ($($arg:expr),*), proc_address::$version:ident) => {{
        super::proc_address::$version($process, $call, $($arg),*)
    }};
    ($api:expr, $process:ident, $call:expr, ($($arg:expr),*), $($hook:tt)+) => {{
        crate::hooks::families::$($hook)+($process, $call, $($arg),*)
    }};
}

table!(exports);

/// The function that a look-up returns in place of the real one.
pub fn replacement(api: Api) -> *mut c_void {
    HOOKS[api as usize].0 as *mut c_void
}
