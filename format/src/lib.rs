//! The vramtrace trace file: header page, records, writer and reader.
#![doc = "See docs/FORMAT.md for the layout with drawings."]
#![forbid(unsafe_code)]

pub mod capspec;
pub mod code;
pub mod damage;
pub mod decode;
pub mod definition;
pub mod definitions;
pub mod encode;
pub mod error;
pub mod event;
pub mod events;
pub mod header;
pub mod ids;
pub mod kind;
pub mod live;
pub mod physical;
pub mod reader;
mod scan;
pub mod size;
pub mod window;
pub mod word;

pub use damage::{Damage, DamageKind};
pub use definition::{Definition, PoolOrigin};
pub use definitions::{DefinitionCursor, Definitions};
pub use encode::Define;
pub use error::Error;
pub use event::{Alloc, Counters, Drift, Event, Refused, RefusedBy, Sample, Stamped, StopReason};
pub use events::{Cursor, Events};
pub use header::{HEADER_BYTES, Header};
pub use ids::{ContextId, DeviceId, PoolId, SiteId, StackId, ThreadId};
pub use kind::{Kind, Space};
pub use live::{LiveDevice, LivePage, LiveProcess};
pub use reader::{Run, TraceReader, Window};
pub use window::{Appended, LINE, SLOT, WindowHeader, WindowKind, WindowWriter, slot_offset};
