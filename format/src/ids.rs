//! Ids of sites, stacks, contexts, pools, devices and threads. Each is defined once, in a definition window, before the
//! first event that has it.

/// Where and how an allocation was made: API, kind, device, context, stream, pool.
/// Resolved through [`crate::Definition::Site`]. 0 = unknown / "as the allocation".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SiteId(pub u32);

/// An interned call stack. 0 = no stack was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackId(pub u32);

/// A context of this process, numbered from 1 in order of first sight. 0 = unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContextId(pub u16);

/// A memory pool of this process, numbered from 1. 0 = none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolId(pub u16);

/// CUDA ordinal as this process sees it. `DeviceId::UNKNOWN` is its own bucket, never device 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(pub u8);

impl DeviceId {
    pub const UNKNOWN: DeviceId = DeviceId(u8::MAX);
}

/// A thread of this process, numbered from 1 in order of first event. 0 = any beyond 65,535.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ThreadId(pub u16);
