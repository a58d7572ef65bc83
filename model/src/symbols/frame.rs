//! One frame of a stack, with its names; as JSON the same in all documents.

use std::sync::Arc;

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Language {
    Python,
    Native,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Frame {
    pub language: Language,
    /// Demangled; the qualified name where Python has it; `libfoo.so+0x1234` where none is known.
    pub function: Arc<str>,
    /// Source file, as the compiler or Python named it. Empty: not known.
    pub file: Arc<str>,
    pub line: Option<u32>,
    /// Path of the library or executable. `None` for Python, and for code outside any.
    pub library: Option<Arc<str>>,
}

impl Frame {
    /// Of which nothing is known but what stands for the function.
    pub(super) fn named(language: Language, function: Arc<str>) -> Frame {
        Frame { language, function, file: "".into(), line: None, library: None }
    }

    /// The last part of the library's path.
    pub fn library_name(&self) -> Option<&str> {
        self.library.as_deref().map(base_name)
    }

    /// `train.py:41`, with the last part of the file's path. `None`: the file is not known.
    pub fn place(&self) -> Option<String> {
        place_in(base_name(&self.file), self.line)
    }

    /// The same with the whole path.
    pub fn full_place(&self) -> Option<String> {
        place_in(&self.file, self.line)
    }

    /// Whether it is a native function whose name says that it allocates. Parameters of templates do not count:
    /// `std::vector<T, std::allocator<T>>::resize` is no allocator.
    pub fn says_it_allocates(&self) -> bool {
        // `libtcmalloc.so.4+0x1b` is no name.
        if self.language != Language::Native || self.function.contains("+0x") {
            return false;
        }
        let mut depth = 0;
        let mut name = String::new();
        for letter in self.function.chars() {
            match letter {
                '<' => depth += 1,
                '>' => depth -= 1,
                _ if depth <= 0 => name.push(letter.to_ascii_lowercase()),
                _ => {}
            }
        }
        name.contains("alloc")
    }
}

fn place_in(file: &str, line: Option<u32>) -> Option<String> {
    match (file, line) {
        ("", _) => None,
        (file, Some(line)) => Some(format!("{file}:{line}")),
        (file, None) => Some(file.to_string()),
    }
}

pub use vramtrace_format::layers::base_name;

#[cfg(test)]
impl Frame {
    /// `library`: empty for none.
    pub fn of(language: Language, function: &str, file: &str, library: &str) -> Frame {
        let library = (!library.is_empty()).then(|| library.into());
        Frame { language, function: function.into(), file: file.into(), line: Some(1), library }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_as_people_read_them() {
        let frame = |file: &str, line| Frame { line, ..Frame::of(Language::Python, "f", file, "") };
        assert_eq!(frame("/home/me/train.py", Some(41)).place().unwrap(), "train.py:41");
        assert_eq!(
            frame("/home/me/train.py", Some(41)).full_place().unwrap(),
            "/home/me/train.py:41"
        );
        assert_eq!(frame("<string>", None).place().unwrap(), "<string>");
        assert_eq!(frame("", Some(1)).place(), None);
    }

    #[test]
    fn a_name_says_that_a_function_allocates() {
        let says =
            |function: &str| Frame::of(Language::Native, function, "", "").says_it_allocates();
        for function in [
            "ggml_backend_cuda_buffer_type_alloc_buffer",
            "ggml_gallocr_reserve_n",
            "ggml_cuda_pool_alloc<__half>::ggml_cuda_pool_alloc",
            "rmm::mr::cuda_memory_resource::do_allocate",
            "gpuMalloc",
            "Pool::Realloc",
        ] {
            assert!(says(function), "{function}");
        }
        for function in [
            "std::vector<float, std::allocator<float> >::resize",
            "llama_kv_cache::llama_kv_cache",
            "libjemalloc.so.2+0x1b9ba",
            "main",
        ] {
            assert!(!says(function), "{function}");
        }
    }
}
