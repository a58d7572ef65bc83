//! The vramtrace trace file: header page, records, writer and reader.
#![doc = "See docs/FORMAT.md for the layout with drawings."]

pub mod capspec;
pub mod definition;
pub mod event;
pub mod header;
pub mod ids;
pub mod kind;
pub mod physical;
pub mod size;

pub use definition::{Definition, PoolOrigin};
pub use event::{Alloc, Counters, Drift, Event, Refused, RefusedBy, Sample, Stamped, StopReason};
pub use header::Header;
pub use ids::{ContextId, DeviceId, PoolId, SiteId, StackId, ThreadId};
pub use kind::{Kind, Space};
