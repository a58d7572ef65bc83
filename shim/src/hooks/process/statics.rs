//! State of the library that does not hang on [`Process`](super::state::Process), and why. `tests/architecture/statics.rs`
//! compares this list with the sources. Each must be right in a forked child too, which has a copy.
//!
//! | static | file | why |
//! |---|---|---|
//! | `PAGE` | `hooks/process/state.rs` | has the pointer to the process's state, and what the most frequent calls read, at a fixed address |
//! | `DONE` | `hooks/process/state.rs` | the hook of panics is set once in a program, before there is a state |
//! | `IS_FORGOTTEN` | `hooks/process/hot_page.rs` | a handler of `fork` is registered once in a program |
//! | `COUNT` | `hooks/process/early_ranges.rs` | ranges before the first use of a GPU, when there is no state |
//! | `TABLE` | `hooks/process/early_ranges.rs` | the same |
//! | `STRINGS` | `hooks/process/nvtx_strings.rs` | NVTX registers strings before there is a state, and their handles outlive a fork |
//! | `STRING_COUNT` | `hooks/process/nvtx_strings.rs` | the same |
//! | `OPENED` | `hooks/process/nvml_reading/reader.rs` | a forked child takes NVML over: it may not enter the loader |
//! | `IS_KEPT` | `hooks/process/oom/aftermath.rs` | a handler of `exit` is registered once in a program: that takes a lock of the C library |
//! | `AT_EXIT` | `hooks/process/at_exit.rs` | a constant: the entry of the library's destructor |
//! | `LINKED` | `hooks/families/torch_calls.rs` | calls of PyTorch go on to its functions also without a state |
//! | `REPLACED` | `capture/python/freed_codes.rs` | the interpreter calls its function as long as it lives, also in a forked child |
//! | `NO_ORDER` | `model/cap/mod.rs` | a constant |
//! | `environ` | `runtime/environment.rs` | the C library's |
//! | `OPENED` | `interpose/dlopen.rs` | libraries are opened before there is a state |
//! | `DRIVER` | `driver/functions.rs` | look-ups of functions come before there is a state, and are those of a forked child |
//! | `REAL` | `driver/pointers.rs` | as `DRIVER` |
//! | `INNER` | `driver/pointers.rs` | as `DRIVER` |
//! | `OBJECTS` | `driver/pointers.rs` | as `DRIVER` |
//! | `ADOPTED` | `driver/pointers.rs` | as `DRIVER` |
//! | `LINES` | `driver/api.rs` | a constant |
//! | `HEAP` | `lib.rs` | the state is made on it |
//! | `RESERVE` | `runtime/reserve.rs` | memory for when the kernel gives none, also for making a state |
//! | `EACH_CALL` | `runtime/each_call.rs` | what each call reads, at a fixed address: the clock, what is asked of the next call, freed code objects |
//! | `CROWDED` | `runtime/hash_table.rs` | tables do not know the process |
//! | `NO_SLOTS` | `runtime/hash_table.rs` | a constant |
//! | `SAID` | `runtime/log.rs` | lines that are printed once in a program and its forked children |
//! | `ESCAPES` | `runtime/escapes.rs` | calls that go past the hooks are noticed before there is a state |
//! | `REAL` | `runtime/loader.rs` | the loader's functions, which the program calls through this library before there is a state |
//! | `KNOWN` | `runtime/loader.rs` | the same |
//! | `CLONE` | `runtime/loader.rs` | the same |
//! | `OURS` | `runtime/loader.rs` | addresses of this library, which do not change |
//! | `HOLDERS` | `runtime/found.rs` | `dlclose` waits for threads that read libraries, also without a state |
//! | `CLOSING` | `runtime/found.rs` | the same |
//! | `OWNER` | `runtime/found.rs` | the process whose threads these are |
//! | `GIVE_UP` | `runtime/found.rs` | a function of an upper room |
//! | `VARIABLES` | `runtime/loaded_objects.rs` | addresses of the loader's variables, which do not change |
//! | `_r_debug` | `runtime/elf/mod.rs` | the loader's |
//! | `_DYNAMIC` | `runtime/elf/mod.rs` | the linker's |
//! | `FUNCTIONS` | `runtime/late_binding.rs` | a constant |
//! | `SLOTS` | `runtime/late_binding.rs` | functions that older C libraries lack: bound before there is a state |
//! | `KNOWN` | `runtime/clock.rs` | the function that the loader bound, which does not change |
//! | `BYTES` | `runtime/stack_bounds.rs` | a size in the C library, which does not change |
//! | `__libc_stack_end` | `runtime/stack_bounds.rs` | the loader's |
//! | `STACKS` | `runtime/own_stack.rs` | the state is made on one of them |
//! | `RANGES` | `runtime/forked_child.rs` | what a forked child has to unmap before it has a state |
//! | `IS_COPIED` | `runtime/private_table.rs` | what the kernel can do, which does not change |
//! | `BLOCK` | `runtime/tls.rs` | of each thread |
//! | `HERE` | `runtime/tls.rs` | of each thread |
//! | `PAGES` | `runtime/faults.rs` | of tests |
//! | `BLOCKS` | `runtime/faults.rs` | of tests |
//! | `ZEROS` | `trace_writer/named_file.rs` | a constant |
