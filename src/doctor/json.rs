//! How findings are written as JSON.

use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

#[derive(Serialize)]
struct Found<'r, T> {
    found: bool,
    #[serde(flatten)]
    what: Option<&'r T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'r String>,
}

/// What was looked for, or why it was not found.
pub fn found<T: Serialize, S: Serializer>(
    result: &Result<T, String>,
    to: S,
) -> Result<S::Ok, S::Error> {
    let (what, why) = (result.as_ref().ok(), result.as_ref().err());
    Found { found: result.is_ok(), what, why }.serialize(to)
}

/// 13000 as 13.0.
pub fn version<S: Serializer>(version: &u32, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&super::version(*version))
}

/// A path, also one that is not UTF-8.
pub fn path<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&path.display())
}

pub fn path_or_null<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
    path.as_ref().map(|path| path.display().to_string()).serialize(to)
}
