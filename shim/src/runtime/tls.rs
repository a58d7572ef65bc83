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
    ($(#[$attribute:meta])* $visible:vis fn $function:ident() -> *mut $type:ty = $symbol:literal, $bytes:literal, align $align:literal) => {
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

        $(#[$attribute])*
        #[inline(always)]
        $visible fn $function() -> *mut $type {
            let address: *mut $type;
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
            address
        }
    };
}

/// Miri runs no assembly: there a block is a variable of the standard library.
#[cfg(miri)]
macro_rules! thread_block {
    ($(#[$attribute:meta])* $visible:vis fn $function:ident() -> *mut $type:ty = $symbol:literal, $bytes:literal, align $align:literal) => {
        const _: () = assert!(size_of::<$type>() <= $bytes && align_of::<$type>() <= $align);

        $(#[$attribute])*
        $visible fn $function() -> *mut $type {
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

/// Defines `fn $function() -> &$type`: cells in `$bytes` bytes of [`block`], from this byte on. Zero bytes are a valid value.
macro_rules! thread_cells {
    ($(#[$attribute:meta])* $visible:vis fn $function:ident() -> &$type:ty, $bytes:literal bytes of the block at $at:literal) => {
        const _: () = assert!(size_of::<$type>() <= $bytes && $at % align_of::<$type>() == 0);

        $(#[$attribute])*
        #[inline(always)]
        $visible fn $function() -> &'static $type {
            // SAFETY: this thread's, as long as it runs. A cell is not shared with another thread.
            unsafe { &*$crate::runtime::tls::block().wrapping_add($at).cast() }
        }
    };
}
pub(crate) use thread_cells;

// What calls use of their thread. On the first line of the cache what each call does: bytes 0 to 40 are `driver/depth.rs`'s, 44
// to 48 `fallible.rs`'s, 48 to 64 `thread_slot.rs`'s. To 256 there is what that file notes for the
// thread's next block; then `private_table.rs`'s and `lock.rs`'s, with eight bytes each,
// `stack_bounds.rs`'s and `handler_exit.rs`'s, with 24 bytes each, and `own_stack.rs`'s and `driver/depth.rs`'s, with eight.
thread_block!(pub fn block() -> *mut u8 = "vramtrace_thread", 336, align 64);

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
            options(nostack, pure, readonly));
    }
    // SAFETY: reads the thread pointer, and an offset that the linker fixed.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!("mrs {pointer}, tpidr_el0", pointer = out(reg) pointer,
            options(nostack, pure, readonly, preserves_flags));
    }
    pointer
}
