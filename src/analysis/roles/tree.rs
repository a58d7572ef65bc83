//! The tree of frames with roles as its first level.

use vramtrace_format::DeviceId;

use super::{HeldByRole, Role};
use crate::analysis::tree::Tree;

impl Tree<'_, '_> {
    /// Adds the holdings of a device, below their roles.
    pub fn add_roles(&mut self, roles: &HeldByRole, device: DeviceId) {
        for ((of, role, stack), held) in &roles.held {
            match (*of == device, role) {
                (false, _) => {}
                // The free cache has no frames: it is a node itself.
                (true, Role::FreeCache) => self.add(None, *stack, *held),
                (true, role) => self.add(Some(role.name().to_string()), *stack, *held),
            }
        }
    }
}
