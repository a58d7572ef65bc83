//! Programs and libraries that are not PyTorch: what the memory is for that their native functions request
//! (`table.rs`). The other rules for roles are in `roles/`; docs/gpu-evidence.md describes both.

mod role;
mod table;

pub use role::Role;

use crate::symbols::{Frame, Language};
use table::ENGINES;

/// An engine, or libraries, with the functions that tell what memory is for.
#[cfg_attr(not(test), expect(dead_code, reason = "name and source are for docs/gpu-evidence.md"))]
struct Engine {
    /// As docs/gpu-evidence.md names it.
    name: &'static str,
    /// Where the names of the functions are from.
    source: &'static str,
    /// Its functions say more of a holder than a line of Python that calls it, or than those that only allocate.
    names_holders: bool,
    rows: &'static [FunctionRole],
}

/// What the memory is for that a function requests, or one that it calls.
#[cfg_attr(not(test), expect(dead_code, reason = "what it is, is for docs/gpu-evidence.md"))]
struct FunctionRole {
    /// Begin of the demangled function. Empty: any.
    function: &'static str,
    /// Begin of the library's file name. Empty: any.
    library: &'static str,
    role: Role,
    /// What it is, in the engine's words.
    what: &'static str,
}

/// What a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::analysis) struct Purpose {
    pub role: Role,
    /// See [`Engine::names_holders`].
    pub names_holder: bool,
}

/// What the table says about a frame. `None`: no row is of this function or library.
pub(in crate::analysis) fn purpose(frame: &Frame) -> Option<Purpose> {
    if frame.language != Language::Native {
        return None;
    }
    let library = frame.library_name().unwrap_or_default();
    let fits = |row: &&FunctionRole| {
        frame.function.starts_with(row.function) && library.starts_with(row.library)
    };
    ENGINES.iter().find_map(|engine| {
        let row = engine.rows.iter().find(fits)?;
        Some(Purpose { role: row.role, names_holder: engine.names_holders })
    })
}

/// Whether the frame is a function of an engine that names a holder.
pub(in crate::analysis) fn names_holder(frame: &Frame) -> bool {
    purpose(frame).is_some_and(|purpose| purpose.names_holder)
}

/// The engine, by functions that ask for memory.
pub(in crate::analysis) fn engine_of(frames: &[Frame]) -> Option<&'static str> {
    let has = |folder: &str| {
        frames.iter().any(|it| it.language == Language::Python && it.file.contains(folder))
    };
    let of_llama = |frame: &Frame| {
        let begins = ["llama_", "ggml_"].iter().any(|begin| frame.function.starts_with(begin));
        begins && names_holder(frame)
    };
    // SGLang imports parts of vLLM.
    match () {
        () if has("/sglang/") => Some("SGLang"),
        () if has("/vllm/") => Some("vLLM"),
        () if frames.iter().any(of_llama) => Some("llama.cpp"),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::in_repository;

    fn native(library: &str, function: &str) -> Option<Role> {
        let frame = Frame::of(Language::Native, function, "", library);
        purpose(&frame).map(|purpose| purpose.role)
    }

    #[test]
    fn functions_of_engines_by_their_begin() {
        for (function, role) in [
            ("llama_kv_cache::llama_kv_cache", Some(Role::KvCache)),
            ("llama_kv_cache_iswa::llama_kv_cache_iswa", Some(Role::KvCache)),
            ("llama_model_base::load_tensors", Some(Role::Weights)),
            ("ggml_cuda_pool_vmm::alloc", Some(Role::Workspace)),
            ("ggml_gallocr_reserve_n_impl.constprop.0", Some(Role::Activations)),
            ("ggml_backend_buft_alloc_buffer", None),
            ("llama_context::llama_context", None),
            ("onnxruntime::cuda::Conv<float, false>::ComputeInternal", Some(Role::Workspace)),
            ("onnxruntime::BFCArena::Extend", None),
            ("xgboost::EllpackPageImpl::EllpackPageImpl", Some(Role::Input)),
            ("xgboost::HostDeviceVectorImpl<float>::Resize", None),
            ("xgboost::common::RefResourceView<float>::RefResourceView", None),
            ("my_llama_model", None),
            ("main", None),
        ] {
            assert_eq!(native("/opt/prog", function), role, "{function}");
        }
        assert_eq!(native("/x/libcublasLt.so.13", "libcublasLt.so.13+0x5b"), Some(Role::Workspace));
        assert_eq!(native("/x/libnccl.so.2", "f"), Some(Role::Communication));
        let python = Frame::of(Language::Python, "llama_model_load", "/x/llama.py", "");
        assert_eq!(purpose(&python), None, "names of Python functions are free");
    }

    #[test]
    fn no_row_is_hidden_by_an_earlier_one() {
        let mut earlier: Vec<&FunctionRole> = Vec::new();
        for row in ENGINES.iter().flat_map(|engine| engine.rows) {
            assert_ne!((row.function, row.library), ("", ""), "{}: it would be of all", row.what);
            let hides = |first: &&&FunctionRole| {
                row.function.starts_with(first.function) && row.library.starts_with(first.library)
            };
            let hidden = earlier.iter().find(hides);
            assert!(hidden.is_none(), "{}{} never decides", row.function, row.library);
            earlier.push(row);
        }
    }

    /// The list in docs/gpu-evidence.md is the table.
    #[test]
    fn the_documentation_lists_each_row() {
        let page = std::fs::read_to_string(in_repository("docs/gpu-evidence.md")).unwrap();
        for engine in ENGINES {
            let named = format!("**{}** ({})", engine.name, engine.source);
            assert!(page.contains(&named), "{named}");
            for row in engine.rows {
                let begin = if row.function.is_empty() { row.library } else { row.function };
                let line = format!("| `{begin}...` | {} | {} |", row.role, row.what);
                assert!(page.contains(&line), "docs/gpu-evidence.md lacks the line {line}");
            }
        }
        let is_row = |line: &&str| line.starts_with("| `") && line.contains("...`");
        let lines = page.lines().filter(is_row).count();
        let rows: usize = ENGINES.iter().map(|engine| engine.rows.len()).sum();
        assert_eq!(lines, rows, "docs/gpu-evidence.md has rows that the table lacks");
    }
}
