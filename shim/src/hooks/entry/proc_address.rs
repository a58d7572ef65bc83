//! `cuGetProcAddress`: how cudart, PyTorch, NCCL and cuda.bindings get nearly everything.
//!
//! The driver's function is called with the program's arguments, and the POINTER that it returns is
//! replaced by that of our hook. This is exact for versions and per-thread variants without a table of
//! versions. The result and the symbol status (which may be NULL) are the driver's.

use crate::driver::api::Api;
use crate::driver::cuda::*;
use crate::driver::param::{In, Out};
use crate::driver::pointers;
use crate::hooks::call::{Call, Row, gave};
use crate::hooks::entry::exports;
use core::ffi::{c_char, c_void};

/// The flag for variants whose default stream is per-thread.
const PER_THREAD: u64 = 2;

/// cuGetProcAddress, in any version.
pub fn resolve(
    call: Call<impl Row>,
    symbol: In<c_char>,
    pfn: Out<*mut c_void>,
    flags: u64,
) -> CUresult {
    gave(call.forward(), pfn, |found| {
        let Some(symbol) = symbol.text().filter(|_| !found.is_null()) else { return };
        let symbol = symbol.to_bytes();
        let at = || pointers::at(found, |api| misfit(api, symbol, flags));
        match at().or_else(|| if pointers::adopt_inner(found) { at() } else { None }) {
            Some(api) => pfn.set(exports::replacement(api)),
            None if is_like_memory(symbol) => {
                call.p.usage.unhooked_name(&call.p.trace_writer, symbol);
            }
            None => {}
        }
    })
}

/// How badly the name of an entry point fits what was requested: 0 to 2. The trace names the one that was requested.
fn misfit(api: Api, symbol: &[u8], flags: u64) -> u8 {
    let Some(rest) = api.name().as_bytes().strip_prefix(symbol) else { return 2 };
    let without = rest.strip_suffix(b"_ptsz");
    let version = without.unwrap_or(rest);
    match version.is_empty() || version.starts_with(b"_v") {
        true => u8::from(without.is_some() != (flags & PER_THREAD != 0)),
        false => 2,
    }
}

/// Whether a name that is not in the table looks like a function that allocates or frees; `doctor`
/// lists such names.
fn is_like_memory(symbol: &[u8]) -> bool {
    const WORDS: &str =
        "Alloc Malloc MemCreate MemFree MemRelease MemMap MemUnmap MemPool ArrayCreate CtxCreate";
    let has = |word: &str| symbol.windows(word.len()).any(|part| part == word.as_bytes());
    const OTHERS: [&str; 5] = ["Get", "Set", "Export", "Import", "FreeNode"];
    WORDS.split(' ').any(has) && !OTHERS.into_iter().any(has)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_like_memory() {
        for name in ["cuMemAllocFuture", "cuMemAlloc", "cuMemPoolCreateNew", "cuArrayCreate"] {
            assert!(is_like_memory(name.as_bytes()), "{name}");
        }
        for name in [
            "cuMemGetInfo",
            "cuGraphMemAllocNodeGetParams",
            "cuMemPoolSetAccess",
            "cuMemPoolExportPointer",
            "cuGraphAddMemFreeNode",
            "cuLaunchKernel",
            "cuMemcpyAsync",
            "cuMemsetD8",
            "",
        ] {
            assert!(!is_like_memory(name.as_bytes()), "{name}");
        }
    }
}
