//! What the environment asks for.

use vramtrace_format::capspec::{self, CapSpec};

pub struct Config {
    /// `VRAMTRACE_CAP`; the error says what would be right.
    pub cap: Result<Option<CapSpec>, String>,
    /// Name of the entry point whose hook is to panic once: for tests.
    pub test_panic: Option<String>,
}

impl Config {
    pub fn from_environment() -> Config {
        let cap = match std::env::var_os("VRAMTRACE_CAP") {
            None => Ok(None),
            Some(text) => capspec::parse(&text.to_string_lossy()).map(Some),
        };
        Config { cap, test_panic: std::env::var("VRAMTRACE_TEST_PANIC").ok() }
    }
}
