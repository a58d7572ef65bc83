//! The path of a mangled C++ or Rust function: `llama_kv_cache::llama_kv_cache`, without parameters, and without those of
//! templates: of `Pool<float>::take` the part `Pool`. The command demangles in full; in the program's process a few
//! lines that allocate nothing but the result are enough.

/// The name as people read it, or as it is.
pub fn shown(name: &str) -> String {
    // Compilers add `.constprop.0`, `.part.2` and the like.
    let mangled = name.split('.').next().unwrap_or(name);
    path(mangled).unwrap_or_else(|| name.to_string())
}

fn path(name: &str) -> Option<String> {
    let mut rest = name.strip_prefix("_Z")?;
    let nested = rest.strip_prefix('N');
    rest = nested.unwrap_or(rest).trim_start_matches(['K', 'V', 'r', 'R', 'O']);
    let mut path = String::new();
    loop {
        // Of internal linkage.
        rest = rest.strip_prefix('L').unwrap_or(rest);
        let part = if let Some(after) = rest.strip_prefix("St") {
            rest = after;
            "std"
        } else if rest.starts_with(['C', 'D'])
            && path.rsplit("::").next().is_some_and(|it| !it.is_empty())
        {
            // A constructor or destructor has the name of its class.
            let class = path.rsplit("::").next().unwrap_or_default();
            let sign = if rest.starts_with('D') { "~" } else { "" };
            let last = format!("::{sign}{class}");
            path.push_str(&last);
            break;
        } else {
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let Ok(length) = rest[..digits].parse::<usize>() else { break };
            let part = rest.get(digits..digits.checked_add(length)?)?;
            rest = &rest[digits + length..];
            part
        };
        // The hash at the end of Rust's older names.
        let hash = part.strip_prefix('h').is_some_and(|hash| {
            hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
        });
        if hash && rest == "E" {
            break;
        }
        if !path.is_empty() {
            path.push_str("::");
        }
        path.push_str(match part {
            part if part.starts_with("_GLOBAL__N") => "(anonymous namespace)",
            part => part,
        });
        if nested.is_none() && part != "std" {
            break;
        }
    }
    (!path.is_empty() && path != "std").then_some(path)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn names_as_people_write_them() {
        for (name, wanted) in [
            ("_ZN14llama_kv_cacheC2ERK11llama_modelj", "llama_kv_cache::llama_kv_cache"),
            ("_ZN14llama_kv_cacheD0Ev", "llama_kv_cache::~llama_kv_cache"),
            (
                "_ZN16llama_model_base12load_tensorsER18llama_model_loader",
                "llama_model_base::load_tensors",
            ),
            ("_ZL23ggml_cuda_device_mallocPPvmi", "ggml_cuda_device_malloc"),
            ("_ZNK3c104cuda6Device4nameEv", "c10::cuda::Device::name"),
            ("_Z5startv.constprop.0", "start"),
            ("_ZN12_GLOBAL__N_14makeEv", "(anonymous namespace)::make"),
            ("_ZN20ggml_cuda_pool_allocI6__halfE5allocEm", "ggml_cuda_pool_alloc"),
            ("_ZNSt6vectorIfSaIfEE6resizeEm", "std::vector"),
            ("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE", "core::fmt::Write::write_fmt"),
            ("ggml_backend_sched_reserve", "ggml_backend_sched_reserve"),
            ("main", "main"),
            ("_Z", "_Z"),
            ("_ZN", "_ZN"),
            ("_ZN99999999999999999999xE", "_ZN99999999999999999999xE"),
            ("_ZN9abcE", "_ZN9abcE"),
            ("_ZN3\u{e4}\u{e4}E", "_ZN3\u{e4}\u{e4}E"),
            ("_ZNSt3C2E", "std::C2E"),
            ("", ""),
        ] {
            assert_eq!(shown(name), wanted, "{name}");
        }
    }
}
