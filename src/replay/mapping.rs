//! Where physical memory is mapped.

/// A mapping of a VMM object at an address.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mapping {
    pub size: u64,
    pub offset: u64,
    /// Key of the object in `Space::Vmm`.
    pub object: u64,
}
