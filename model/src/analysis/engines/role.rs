//! The roles, and their names.

use std::fmt;

use serde::Serialize;
use vramtrace_format::DriverCause;

/// The purpose of an allocation. Charts stack them in this order, the longest lifetimes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    Weights,
    /// Weights that are brought to the card for a call, and leave it under pressure.
    PagedWeights,
    Gradients,
    OptimizerState,
    /// Copies of the weights: for averages (EMA), or a teacher.
    Copies,
    Activations,
    KvCache,
    Input,
    Temporary,
    /// Scratch memory that a library keeps: cuBLAS, cuDNN.
    Workspace,
    /// Buffers that are sent and received.
    Communication,
    /// What CUDA graphs keep for themselves.
    GraphMemory,
    /// What the driver takes for a context, for code and its variables, for streams.
    Context,
    /// The free part of a framework's segments.
    FreeCache,
    Unknown,
}

impl Role {
    pub const ALL: [Role; 15] = [
        Role::Weights,
        Role::PagedWeights,
        Role::Gradients,
        Role::OptimizerState,
        Role::Copies,
        Role::Activations,
        Role::KvCache,
        Role::Input,
        Role::Temporary,
        Role::Workspace,
        Role::Communication,
        Role::GraphMemory,
        Role::Context,
        Role::FreeCache,
        Role::Unknown,
    ];

    /// The name in reports, JSON, CSV and exports. It does not change between versions.
    pub fn name(self) -> &'static str {
        match self {
            Role::Weights => "weights",
            Role::PagedWeights => "weights (paged)",
            Role::Gradients => "gradients",
            Role::OptimizerState => "optimizer state",
            Role::Copies => "copies of weights",
            Role::Activations => "activations",
            Role::KvCache => "KV cache",
            Role::Input => "input",
            Role::Temporary => "temporary",
            Role::Workspace => "workspace",
            Role::Communication => "communication",
            Role::GraphMemory => "graph memory",
            Role::Context => "context and modules",
            Role::FreeCache => "free in cache",
            Role::Unknown => "unknown",
        }
    }

    /// The role of memory that the driver took for itself.
    pub fn of_cause(cause: DriverCause) -> Role {
        match cause {
            DriverCause::Graphs => Role::GraphMemory,
            _ => Role::Context,
        }
    }

    /// Its index in [`Role::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Role {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_stands_at_its_index_under_a_name_of_its_own() {
        for (index, role) in Role::ALL.into_iter().enumerate() {
            assert_eq!(role.index(), index);
        }
        let mut names: Vec<&str> = Role::ALL.into_iter().map(Role::name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Role::ALL.len());
    }
}
