//! What an allocation is a piece of.

use crate::replay::State;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// Memory that the driver gave.
    #[default]
    Driver,
    /// Blocks of a framework's cache in place of the driver memory that holds them.
    Tensor,
}

impl Level {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Level::Driver => "driver",
            Level::Tensor => "tensor",
        }
    }

    /// The finer one where blocks were recorded.
    pub fn of(state: &State) -> Level {
        match state.cache.is_used() {
            true => Level::Tensor,
            false => Level::Driver,
        }
    }
}
