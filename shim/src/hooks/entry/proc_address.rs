//! `cuGetProcAddress`: how cudart, PyTorch, NCCL and cuda.bindings get nearly everything.
//!
//! The driver's function is called with the program's arguments, and the POINTER that it returns is
//! replaced by that of our hook. This is exact for versions and per-thread variants without a table of
//! versions. The result and the symbol status (which may be NULL) are the driver's.

use crate::driver::api::Api;
use crate::driver::cuda::*;
use crate::driver::param::{In, Out};
use crate::driver::pointers;
use crate::hooks::call::{Call, Function};
use crate::hooks::entry::exports;
use crate::hooks::process::state::Process;
use core::ffi::{c_char, c_void};

/// The flag for variants whose default stream is per-thread.
const PER_THREAD: u64 = 2;

/// cuGetProcAddress.
pub fn v1(
    p: &'static Process,
    call: &Call<impl Function>,
    symbol: In<c_char>,
    pfn: Out<*mut c_void>,
    _version: i32,
    flags: u64,
) -> CUresult {
    let result = call.forward();
    replace(p, result, symbol, pfn, flags);
    result
}

/// cuGetProcAddress_v2.
pub fn v2(
    p: &'static Process,
    call: &Call<impl Function>,
    symbol: In<c_char>,
    pfn: Out<*mut c_void>,
    _version: i32,
    flags: u64,
    _status: Out<CUdriverProcAddressQueryResult>,
) -> CUresult {
    let result = call.forward();
    replace(p, result, symbol, pfn, flags);
    result
}

/// Replaces the function pointer that the driver returned by that of the hook, if there is one.
fn replace(
    p: &'static Process,
    result: CUresult,
    symbol: In<c_char>,
    pfn: Out<*mut c_void>,
    flags: u64,
) {
    if result != CUDA_SUCCESS {
        return;
    }
    let (Some(symbol), Some(found)) = (symbol.text(), pfn.get()) else { return };
    if found.is_null() {
        return;
    }
    let symbol = symbol.to_bytes();
    match pointers::at(found as usize).or_else(|| pointers::adopt_inner(found)) {
        Some(api) => {
            let api = closest(api, found, symbol, flags);
            pfn.set(exports::replacement(api));
        }
        None if is_like_memory(symbol) => p.usage.unhooked_name(&p.trace_writer, symbol),
        None => {}
    }
}

/// Two names may have one address (where the driver's linker folded identical code). The trace names
/// the one that was requested.
fn closest(api: Api, found: *mut c_void, symbol: &[u8], flags: u64) -> Api {
    let per_thread = flags & PER_THREAD != 0;
    let fits = |api: Api, exactly: bool| {
        let Some(rest) = api.name().as_bytes().strip_prefix(symbol) else { return false };
        let (rest, twin) = match rest.strip_suffix(b"_ptsz") {
            Some(rest) => (rest, true),
            None => (rest, false),
        };
        (rest.is_empty() || rest.starts_with(b"_v")) && (!exactly || twin == per_thread)
    };
    let others = || Api::ALL.iter().copied().filter(|other| pointers::known(*other) == Some(found));
    if fits(api, true) {
        return api;
    }
    others()
        .find(|other| fits(*other, true))
        .or_else(|| fits(api, false).then_some(api))
        .or_else(|| others().find(|other| fits(*other, false)))
        .unwrap_or(api)
}

/// Whether a name that is not in the table looks like a function that allocates or frees; `doctor`
/// lists such names.
fn is_like_memory(symbol: &[u8]) -> bool {
    const WORDS: [&[u8]; 10] = [
        b"Alloc",
        b"Malloc",
        b"MemCreate",
        b"MemFree",
        b"MemRelease",
        b"MemMap",
        b"MemUnmap",
        b"MemPool",
        b"ArrayCreate",
        b"CtxCreate",
    ];
    let has = |word: &[u8]| symbol.windows(word.len()).any(|part| part == word);
    WORDS.iter().any(|word| has(word)) && !has(b"Get") && !has(b"Set")
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
            "cuLaunchKernel",
            "cuMemcpyAsync",
            "cuMemsetD8",
            "",
        ] {
            assert!(!is_like_memory(name.as_bytes()), "{name}");
        }
    }
}
