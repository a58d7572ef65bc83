//! The environment variables of PyTorch's allocator.

/// The variables that hold its setting string, in the order in which PyTorch reads them.
pub const CONF_VARIABLES: [&str; 2] = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];

/// Whether the cache releases its free segments before it is out of memory: with `throw_on_cudamalloc_oom` (PyTorch 2.13) it
/// may raise the error before that. `setting`: the values of environment variables.
pub fn releases_first<'s>(setting: impl Fn(&str) -> Option<&'s str>) -> bool {
    let mut texts = CONF_VARIABLES.into_iter().filter_map(setting);
    !texts.any(|text| text.contains("throw_on_cudamalloc_oom"))
}

/// The variable that turns its cache off.
const UNCACHED: &str = "PYTORCH_NO_CUDA_MEMORY_CACHING";

/// Why the setting string changes nothing: the caching allocator that it is for is not in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bypass<'s> {
    /// Another backend, `cudaMallocAsync`.
    Backend(&'s str),
    /// Nothing is cached.
    Uncached,
}

impl<'s> Bypass<'s> {
    /// `setting`: the values of environment variables.
    pub fn of(setting: impl Fn(&str) -> Option<&'s str>) -> Option<Bypass<'s>> {
        let text = CONF_VARIABLES.iter().find_map(|name| setting(name)).unwrap_or_default();
        let values = text.split(',').filter_map(|part| part.split_once(':'));
        let backends = values.filter(|(key, _)| key.trim() == "backend");
        let other = backends.map(|(_, value)| value.trim()).find(|value| *value != "native");
        other.map(Bypass::Backend).or_else(|| setting(UNCACHED).map(|_| Bypass::Uncached))
    }
}
