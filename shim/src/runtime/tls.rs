//! Thread-local storage at a fixed offset.
//!
//! `thread_local!` in a cdylib goes through `__tls_get_addr`, which may allocate on a thread's first
//! touch, and its destructors may run during a hook. A preloaded library is loaded at start-up, so it
//! can have a block in the static thread-local area (the initial-exec model): zero in a new thread,
//! reached by two instructions, without a destructor.

/// Defines `fn $function() -> *mut $type`: the calling thread's block of `$bytes` bytes, zero at the
/// start of the thread, under the linker's name `$symbol`.
#[cfg(not(miri))]
macro_rules! thread_block {
    ($(#[$attribute:meta])* fn $function:ident() -> *mut $type:ty = $symbol:literal, $bytes:literal, align $align:literal) => {
        const _: () = assert!(size_of::<$type>() <= $bytes && align_of::<$type>() <= $align);

        core::arch::global_asm!(
            concat!(".pushsection .tbss.", $symbol, ",\"awT\",@nobits"),
            concat!(".globl ", $symbol),
            concat!(".hidden ", $symbol),
            concat!(".type ", $symbol, ", @object"),
            concat!(".size ", $symbol, ", ", $bytes),
            concat!(".balign ", $align),
            concat!($symbol, ":"),
            concat!(".zero ", $bytes),
            ".popsection",
        );

        thread_block!($(#[$attribute])* fn $function() -> *mut $type = 0 bytes after $symbol);
    };
    // The block begins so many bytes after the begin of another one, which is long enough for both: the two have one offset,
    // and what follows the first line of the one and is read with it lies on the next line.
    ($(#[$attribute:meta])* fn $function:ident() -> *mut $type:ty = $behind:literal bytes after $symbol:literal) => {
        $(#[$attribute])*
        #[inline(always)]
        fn $function() -> *mut $type {
            let address: *mut u8;
            // SAFETY: reads the thread pointer and an offset that the linker fixed. Both stay, so that one reading serves
            // all blocks of a symbol in a function.
            #[cfg(target_arch = "x86_64")]
            unsafe {
                core::arch::asm!(
                    "mov {address}, qword ptr fs:[0]",
                    concat!("add {address}, qword ptr [rip + ", $symbol, "@GOTTPOFF]"),
                    address = out(reg) address,
                    options(nostack, pure, nomem),
                );
            }
            // SAFETY: reads the thread pointer, and an offset that the linker fixed.
            #[cfg(target_arch = "aarch64")]
            unsafe {
                core::arch::asm!(
                    concat!("adrp {address}, :gottprel:", $symbol),
                    concat!("ldr {address}, [{address}, :gottprel_lo12:", $symbol, "]"),
                    "mrs {thread}, tpidr_el0",
                    "add {address}, {address}, {thread}",
                    address = out(reg) address,
                    thread = out(reg) _,
                    options(nostack, pure, nomem, preserves_flags),
                );
            }
            address.wrapping_add($behind).cast()
        }
    };
}

/// Miri runs no assembly: there a block is a variable of the standard library.
#[cfg(miri)]
macro_rules! thread_block {
    ($(#[$attribute:meta])* fn $function:ident() -> *mut $type:ty = $behind:literal bytes after $symbol:literal) => {
        thread_block!($(#[$attribute])* fn $function() -> *mut $type = $symbol, 512, align 64);
    };
    ($(#[$attribute:meta])* fn $function:ident() -> *mut $type:ty = $symbol:literal, $bytes:literal, align $align:literal) => {
        const _: () = assert!(size_of::<$type>() <= $bytes && align_of::<$type>() <= $align);

        $(#[$attribute])*
        fn $function() -> *mut $type {
            #[repr(align($align))]
            struct Block(std::cell::UnsafeCell<[u8; $bytes]>);
            std::thread_local! {
                static BLOCK: Block = const { Block(std::cell::UnsafeCell::new([0; $bytes])) };
            }
            BLOCK.with(|block| block.0.get().cast())
        }
    };
}
pub(crate) use thread_block;

#[cfg(miri)]
pub fn thread_pointer() -> usize {
    std::thread_local! { static HERE: u8 = const { 0 } }
    HERE.with(|here| (&raw const *here).addr())
}

/// The thread pointer: a unique number for each live thread.
#[cfg(not(miri))]
#[inline(always)]
pub fn thread_pointer() -> usize {
    let pointer;
    // SAFETY: reads the thread pointer.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!("mov {pointer}, qword ptr fs:[0]", pointer = out(reg) pointer,
            options(nostack, pure, nomem, preserves_flags));
    }
    // SAFETY: reads the thread pointer, and an offset that the linker fixed.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!("mrs {pointer}, tpidr_el0", pointer = out(reg) pointer,
            options(nostack, pure, nomem, preserves_flags));
    }
    pointer
}
