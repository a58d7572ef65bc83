//! The level of allocations that a figure counts: driver memory or tensors.

use serde::Serialize;

use crate::replay::State;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Allocations that the driver made.
    #[default]
    Driver,
    /// Blocks of a framework's cache in place of the driver memory that holds them.
    Tensor,
}

impl Level {
    /// The name in JSON output.
    pub fn name(self) -> &'static str {
        match self {
            Level::Driver => "driver",
            Level::Tensor => "tensor",
        }
    }

    /// `Tensor` where blocks of a framework's cache were recorded, else `Driver`.
    pub fn of(state: &State) -> Level {
        match state.cache.is_used() {
            true => Level::Tensor,
            false => Level::Driver,
        }
    }
}
