//! The result of a call while the process has no state, because creating it failed.
//!
//! Without a cap the call is forwarded. If a cap is set, nothing can be counted, so requests for memory
//! are refused, as under a cap that cannot be parsed. Each call tries again to create the state.

use crate::driver::api::{Api, Family};
use crate::driver::cuda::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY, CUresult};
use crate::runtime::environment::variable;

/// `None`: the call passes through.
pub fn refusal(api: Api) -> Option<CUresult> {
    (is_cap_requested() && initialises_or_allocates(api)).then_some(CUDA_ERROR_INVALID_VALUE)
}

/// The same where a lock is needed that a thread has left, so that under a cap the request would not be
/// counted.
pub fn refusal_of_uncounted(is_capped: bool, api: Api) -> Option<CUresult> {
    (is_capped && api.family() == Family::Create).then_some(CUDA_ERROR_OUT_OF_MEMORY)
}

/// Whether the environment asks for a cap that refuses. Neither allocates nor panics.
pub fn is_cap_requested() -> bool {
    let warns = variable(c"VRAMTRACE_CAP_MODE").is_some_and(|mode| mode == c"warn");
    let group = variable(c"VRAMTRACE_CAP_GROUP").is_some_and(|group| !group.is_empty());
    // An empty VRAMTRACE_CAP is an error, not "no cap".
    !warns && (group || variable(c"VRAMTRACE_CAP").is_some())
}

/// Calls that must precede an allocation (initialisation, contexts), and calls that allocate.
pub fn initialises_or_allocates(api: Api) -> bool {
    let begins = ["cuInit", "cuCtxCreate", "cuDevicePrimaryCtxRetain", "cuGraphInstantiate"];
    api.family() == Family::Create || begins.iter().any(|name| api.name().starts_with(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frees_and_questions_pass() {
        for api in [Api::cuInit, Api::cuMemAlloc_v2, Api::cuMemCreate, Api::cuCtxCreate_v4] {
            assert!(initialises_or_allocates(api), "{api:?}");
        }
        for api in [Api::cuMemFree_v2, Api::cuMemRelease, Api::cuMemGetInfo_v2, Api::cuCtxDestroy] {
            assert!(!initialises_or_allocates(api), "{api:?}");
        }
    }
}
