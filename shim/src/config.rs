//! What the environment asks for.

pub struct Config {
    /// Name of the entry point whose hook is to panic once: for tests.
    pub test_panic: Option<String>,
}

impl Config {
    pub fn from_environment() -> Config {
        Config { test_panic: std::env::var("VRAMTRACE_TEST_PANIC").ok() }
    }
}
