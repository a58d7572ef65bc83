//! `cuGetProcAddress`: how cudart, PyTorch, NCCL and cuda.bindings get nearly everything.
//!
//! The real one is asked, with the caller's own arguments, and the POINTER that it gave is mapped
//! to our hook: exact for versions and per-thread twins with no table of versions to maintain. Its
//! result and its symbol status (which may be NULL) stay its own.

use crate::driver::api::Api;
use crate::driver::cuda::*;
use crate::driver::pointers;
use crate::hooks::call::Call;
use crate::hooks::exports;
use crate::hooks::state::Process;
use core::ffi::{CStr, c_char, c_void};

type V1 = unsafe extern "C-unwind" fn(*const c_char, *mut *mut c_void, i32, u64) -> CUresult;
type V2 = unsafe extern "C-unwind" fn(
    *const c_char,
    *mut *mut c_void,
    i32,
    u64,
    *mut CUdriverProcAddressQueryResult,
) -> CUresult;

/// Asks for the twins whose default stream is the thread's.
const PER_THREAD: u64 = 2;

/// # Safety
/// As cuGetProcAddress.
pub unsafe fn v1(
    p: &'static Process,
    call: &Call<V1>,
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: i32,
    flags: u64,
) -> CUresult {
    // SAFETY: the program's own call, with its arguments.
    unsafe {
        let result = call.real(symbol, pfn, version, flags);
        replace(p, result, symbol, pfn, flags);
        result
    }
}

/// # Safety
/// As cuGetProcAddress_v2.
pub unsafe fn v2(
    p: &'static Process,
    call: &Call<V2>,
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: i32,
    flags: u64,
    status: *mut CUdriverProcAddressQueryResult,
) -> CUresult {
    // SAFETY: the program's own call, with its arguments.
    unsafe {
        let result = call.real(symbol, pfn, version, flags, status);
        replace(p, result, symbol, pfn, flags);
        result
    }
}

unsafe fn replace(
    p: &'static Process,
    result: CUresult,
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    flags: u64,
) {
    if result != CUDA_SUCCESS || symbol.is_null() || pfn.is_null() {
        return;
    }
    // SAFETY: the driver has written it.
    let found = unsafe { *pfn };
    if found.is_null() {
        return;
    }
    // SAFETY: the program's text, which the driver has read.
    let symbol = unsafe { CStr::from_ptr(symbol) }.to_bytes();
    match pointers::at(found as usize).or_else(|| pointers::adopt_inner(found)) {
        Some(api) => {
            let api = closest(api, found, symbol, flags);
            // SAFETY: the program's output, which the driver has written.
            unsafe { *pfn = exports::replacement(api) };
        }
        None if is_like_memory(symbol) => p.usage.unhooked_name(&p.trace_writer, symbol),
        None => {}
    }
}

/// Two names may share one function (a driver that folds equal code): the one that was asked for
/// is the one to name in the trace.
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

/// A name that may take or give back memory though no line of the table has its function: worth a
/// word from `doctor`.
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
