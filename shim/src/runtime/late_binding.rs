//! Functions of libgcc_s, libpthread and libdl, looked up when they are first called.
//!
//! This library is loaded into every process. A library that it needs is mapped and relocated at each
//! start, and libgcc_s asks for the processor's features too. So the linker finds these names here: each
//! is a jump through a slot, and the first call fills the slot. `std` calls them as well.
//!
//! They are hidden: no other object is bound to them. What is found is what the loader would have bound
//! at start: the first definition in load order. There is one unwinder in the process, since an exception
//! that passes through two ends it.
//!
//! Before glibc 2.34, libpthread and libdl are libraries of their own; CUDA's driver needs both.

use super::trampoline::{Verdict, trampoline};
use super::{elf, loader};
use core::ffi::{CStr, c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering};

/// What a function that the process does not have returns.
enum Missing {
    Returns(usize),
    Aborts,
}
use Missing::{Aborts, Returns};

struct Function {
    name: &'static CStr,
    library: &'static CStr,
    missing: Missing,
}

const UNWINDER: &CStr = c"libgcc_s.so.1";
/// `_URC_FATAL_PHASE1_ERROR`: the exception was not raised.
const NOT_RAISED: usize = 3;

/// Defines the table, the slots and the functions. The index is the place in the list.
macro_rules! functions {
    ($count:literal: $($index:literal $name:literal $library:expr, $missing:expr;)*) => {
        static FUNCTIONS: [Function; $count] = [$(Function {
            name: match CStr::from_bytes_with_nul(concat!($name, "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!(),
            },
            library: $library,
            missing: $missing,
        }),*];
        static SLOTS: [AtomicUsize; $count] = [const { AtomicUsize::new(0) }; $count];

        $(
            #[cfg(target_arch = "x86_64")]
            core::arch::global_asm!(
                concat!(".pushsection .text.late.", $name, ",\"ax\",@progbits"),
                concat!(".globl ", $name),
                concat!(".hidden ", $name),
                concat!(".type ", $name, ", @function"),
                concat!($name, ":"),
                ".cfi_startproc",
                "endbr64",
                concat!("mov rax, qword ptr [rip + {slots} + 8 * ", $index, "]"),
                "test rax, rax",
                "jz 2f",
                "jmp rax",
                "2:",
                concat!("mov eax, ", $index),
                "jmp {first_call}",
                ".cfi_endproc",
                concat!(".size ", $name, ", . - ", $name),
                ".popsection",
                slots = sym SLOTS,
                first_call = sym first_call,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::global_asm!(
                concat!(".pushsection .text.late.", $name, ",\"ax\",@progbits"),
                ".p2align 2",
                concat!(".globl ", $name),
                concat!(".hidden ", $name),
                concat!(".type ", $name, ", @function"),
                concat!($name, ":"),
                ".cfi_startproc",
                // `bti c`
                "hint 34",
                concat!("adrp x16, {slots} + 8 * ", $index),
                concat!("add x16, x16, :lo12:{slots} + 8 * ", $index),
                "ldr x16, [x16]",
                "cbz x16, 2f",
                "br x16",
                "2:",
                concat!("mov w9, ", $index),
                "b {first_call}",
                ".cfi_endproc",
                concat!(".size ", $name, ", . - ", $name),
                ".popsection",
                slots = sym SLOTS,
                first_call = sym first_call,
            );
        )*
    };
}

functions! { 20:
    0 "_Unwind_Backtrace" UNWINDER, Returns(NOT_RAISED);
    1 "_Unwind_DeleteException" UNWINDER, Aborts;
    2 "_Unwind_GetDataRelBase" UNWINDER, Aborts;
    3 "_Unwind_GetIP" UNWINDER, Aborts;
    4 "_Unwind_GetIPInfo" UNWINDER, Aborts;
    5 "_Unwind_GetLanguageSpecificData" UNWINDER, Aborts;
    6 "_Unwind_GetRegionStart" UNWINDER, Aborts;
    7 "_Unwind_GetTextRelBase" UNWINDER, Aborts;
    8 "_Unwind_RaiseException" UNWINDER, Returns(NOT_RAISED);
    9 "_Unwind_Resume" UNWINDER, Aborts;
    10 "_Unwind_SetGR" UNWINDER, Aborts;
    11 "_Unwind_SetIP" UNWINDER, Aborts;
    12 "dladdr1" c"libdl.so.2", Returns(0);
    13 "pthread_attr_setstacksize" c"libpthread.so.0", Returns(libc::ENOSYS as usize);
    14 "pthread_create" c"libpthread.so.0", Returns(libc::EAGAIN as usize);
    15 "pthread_key_create" c"libpthread.so.0", Returns(libc::EAGAIN as usize);
    16 "pthread_key_delete" c"libpthread.so.0", Returns(libc::EINVAL as usize);
    17 "pthread_mutex_trylock" c"libpthread.so.0", Returns(libc::EBUSY as usize);
    18 "pthread_setspecific" c"libpthread.so.0", Returns(libc::EINVAL as usize);
    19 "_Unwind_GetCFA" UNWINDER, Aborts;
}

/// Looks the function up and jumps there, with the arguments and the stack of the call: the unwinder
/// begins at the caller's frame. None of the functions takes more than four arguments.
#[unsafe(naked)]
unsafe extern "C" fn first_call() {
    trampoline!(looked_up)
}

extern "C" fn looked_up(_: usize, _: usize, _: usize, _: usize, index: u32) -> Verdict {
    let index = index as usize;
    let jump = bind(index);
    match FUNCTIONS[index].missing {
        Aborts if jump == 0 => std::process::abort(),
        Aborts => Verdict { jump, answer: null_mut() },
        Returns(result) => Verdict { jump, answer: result as *mut c_void },
    }
}

/// Racing threads find the same address. A function that is not there is looked for again at the next call.
#[cold]
fn bind(index: usize) -> usize {
    let Function { name, library, .. } = &FUNCTIONS[index];
    let address = elf::startup_functions([name.to_bytes()])[0]
        .or_else(|| in_library(library, name, libc::RTLD_LAZY));
    let address = address.unwrap_or(0);
    SLOTS[index].store(address, Ordering::Relaxed);
    address
}

/// For a process that got the library after its start, or does not have it yet: it stays loaded.
fn in_library(library: &CStr, name: &CStr, flags: c_int) -> Option<usize> {
    // SAFETY: NULL, or the loader's handle of an object that is never closed.
    unsafe { elf::Object::opened(loader::dlopen(library, flags)) }?.function(name.to_bytes())
}

/// Looks up those that the process has, where the loader may be called: later, the functions for threads do not take
/// its lock. Loads nothing, which would call the program's malloc; nor does it look for a libgcc_s that came after the
/// start: where there is none, the loader would search its directories.
pub fn bind_loaded() {
    let found = elf::startup_functions(FUNCTIONS.each_ref().map(|one| one.name.to_bytes()));
    for ((slot, found), Function { name, library, .. }) in SLOTS.iter().zip(found).zip(&FUNCTIONS) {
        if slot.load(Ordering::Relaxed) != 0 {
            continue;
        }
        let mut address = found;
        if address.is_none() && *library != UNWINDER {
            address = in_library(library, name, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        }
        slot.store(address.unwrap_or(0), Ordering::Relaxed);
    }
}

/// Whether the unwinder was found: a call of it loads nothing.
pub fn has_unwinder() -> bool {
    SLOTS[0].load(Ordering::Relaxed) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This test program is linked to no libgcc_s: what catches its panics is found here.
    #[test]
    fn each_is_found_where_the_loader_finds_it() {
        bind_loaded();
        for (index, slot) in SLOTS.iter().enumerate() {
            if slot.load(Ordering::Relaxed) == 0 {
                assert_eq!(FUNCTIONS[index].library, UNWINDER);
                bind(index);
            }
        }
        for (slot, function) in SLOTS.iter().zip(&FUNCTIONS) {
            let address = slot.load(Ordering::Relaxed);
            let object = elf::object_at(address).unwrap();
            let file = function.library.to_str().unwrap();
            assert!(object.is_named(file) || object.is_named("libc.so."), "{:?}", function.name);
            let library = loader::dlopen(function.library, libc::RTLD_LAZY);
            // SAFETY: the loader's handle, which is never closed, and a name that ends.
            let found = unsafe { loader::dlsym(library, function.name) };
            assert_eq!(address, found as usize, "{:?}", function.name);
        }
    }

    #[test]
    fn a_panic_is_caught_and_one_that_passes_runs_destructors() {
        struct Sets<'a>(&'a AtomicUsize);
        impl Drop for Sets<'_> {
            fn drop(&mut self) {
                self.0.store(1, Ordering::Relaxed);
            }
        }
        let set = AtomicUsize::new(0);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _sets = Sets(&set);
            std::panic::resume_unwind(Box::new(3))
        }));
        assert!(caught.is_err());
        assert_eq!(set.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn what_is_nowhere_is_not_found() {
        let lazy = libc::RTLD_LAZY;
        assert_eq!(in_library(c"libc.so.6", c"no_such_function_anywhere", lazy), None);
        assert_eq!(in_library(c"libno-such-library.so.9", c"pthread_create", lazy), None);
    }
}
