//! Ids of sites, stacks, contexts, pools, devices and threads. Each id is defined once, in a definition window, before
//! the first event that refers to it.

use crate::scalar::scalar_ids;

scalar_ids! {
    /// Where and how an allocation was made: API, kind, device, context, stream, pool.
    /// Resolved through [`crate::Definition::Site`]. 0 = unknown; in a free, the site of the allocation.
    pub struct SiteId(pub u32);

    /// A call stack; equal stacks have one id. 0 = no stack was captured.
    pub struct StackId(pub u32);

    /// A context of this process, numbered from 1. 0 = unknown. The number of one that has ended is given to another one
    /// of the same device.
    pub struct ContextId(pub u16);

    /// A memory pool of this process, numbered from 1. 0 = none. Numbers are given again as those of contexts are.
    pub struct PoolId(pub u16);

    /// CUDA ordinal as this process sees it, 0 to 254. [`DeviceId::UNKNOWN`] is counted separately, not as device 0.
    pub struct DeviceId(pub u8);

    /// A thread of this process, numbered from 1 in order of first event. 0 = a thread after the first 65,535.
    pub struct ThreadId(pub u16);
}

impl DeviceId {
    pub const UNKNOWN: DeviceId = DeviceId(u8::MAX);
}
