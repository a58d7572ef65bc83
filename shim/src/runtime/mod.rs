//! Basic services inside another program's process: memory, locks, the clock, the loader, stderr.
//! Nothing here depends on CUDA or on the trace.

pub mod atomics;
pub mod attention;
pub mod bytes;
pub mod clock;
pub mod directory;
pub mod each_call;
pub mod elf;
pub mod entry_jump;
pub mod environment;
pub mod errno;
pub mod escapes;
pub mod fallible;
pub mod fallible_map;
pub mod faults;
pub mod forked;
pub mod forked_child;
pub mod found;
pub mod futex;
pub mod handle_set;
pub mod handler_exit;
pub mod hash_table;
pub mod heap;
// Miri runs no assembly; a sanitizer has its own functions in front of these.
#[cfg(not(any(miri, sanitized)))]
pub mod late_binding;
pub mod leaked;
pub mod loaded_objects;
pub mod loader;
pub mod lock;
pub mod log;
pub mod mapped_modules;
pub mod opaque;
pub mod own_stack;
pub mod panic_boundary;
pub mod private_table;
pub mod rare;
pub mod readable;
pub mod reserve;
pub mod secure_dir;
pub mod segment;
pub mod stack_bounds;
pub mod stack_pages;
pub mod stderr;
pub mod system;
pub mod task;
pub mod thread_slot;
pub mod ticks;
pub mod tls;
pub mod trampoline;
pub mod uncancelled;
pub mod zero_pages;
