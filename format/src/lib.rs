//! The vramtrace trace file: writer and reader.
//!
//! A trace records the GPU memory events of one process: a header page, then windows of records. Threads append to a
//! mapped window concurrently, with a few stores for each record. The file is readable after a kill at any time. The
//! reader returns every intact record of a damaged file. `docs/FORMAT.md` describes the layout, with drawings.
//!
//! | to | use |
//! |---|---|
//! | describe an event | [`Event`], [`Definition`] |
//! | write | [`Header::to_page`], [`WindowWriter::append`], [`WindowWriter::define`] |
//! | read | [`TraceReader`], then [`TraceReader::definitions`] and [`TraceReader::events`] |
//! | follow a running process | [`TraceReader::tail`], [`LivePage`] |
//! | find damage | [`Damage`] |
//!
//! `record/` holds the table of events and the layout of records; `read/` and `write/` handle files and windows;
//! `pages/` holds the shared memory pages outside the trace. The other modules hold values and rules that recorder and
//! reader share.
//!
//! The writer works on memory that the caller provides; the caller also maps, writes and erases files.
//! The crate has no unsafe code, and depends on `thiserror` only.
//!
//! ```
//! use std::sync::atomic::{AtomicU64, Ordering};
//! use vramtrace_format::*;
//!
//! let header = Header { pid: 4711, uuid: *b"sixteen random !", ..Header::default() };
//!
//! // A window of one slot; in a real run this memory is the mapped tail file.
//! let window = WindowHeader {
//!     kind: WindowKind::Events,
//!     slots: 1,
//!     slot: 0,
//!     sequence: 0,
//!     base_time_ns: 0,
//!     file: header.file_tag(),
//! };
//! let memory: Vec<AtomicU64> = (0..SLOT / 8).map(|_| AtomicU64::new(0)).collect();
//! let writer = WindowWriter::begin(&memory, window);
//! let alloc = Alloc {
//!     key: 0x7f00_0000_0000,
//!     space: Space::Device,
//!     size: 4096,
//!     site: SiteId(1),
//!     stack: StackId(0),
//!     requested: None,
//! };
//! match writer.append(ThreadId(1), 640, &Event::Alloc(alloc)) {
//!     Appended::At { offset, bytes, .. } => assert_eq!((offset, bytes), (4096 + 64, 32)),
//!     Appended::Full => unreachable!("the window is new"),
//! }
//!
//! let mut file = header.to_page().to_vec();
//! file.extend(memory.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()));
//!
//! let reader = TraceReader::new(&file)?;
//! assert_eq!(reader.header().pid, 4711);
//! let mut events = reader.events();
//! let first = events.next().expect("one event");
//! assert_eq!((first.time_ns, first.event), (640, Event::Alloc(alloc)));
//! assert!(events.next().is_none() && events.damage().is_empty());
//! # Ok::<(), Error>(())
//! ```
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod address_space;
mod atomics;
pub mod block_size;
pub mod capspec;
pub mod cells;
pub mod cgroup;
pub mod error;
pub mod escape;
pub mod header;
pub mod holes;
pub mod host_switch;
pub mod ids;
pub mod kind;
pub mod layers;
pub mod lines;
pub mod memory;
pub mod oom;
pub mod outspec;
pub mod pages;
pub mod physical;
pub mod policy;
pub mod proc;
pub mod read;
pub mod record;
pub mod recordspec;
pub mod sampling;
mod scalar;
pub mod secrets;
pub mod shown;
pub mod size;
pub mod stack_order;
pub mod stackspec;
pub mod summary;
pub mod torch_conf;
pub mod uuid;
pub mod window;
pub mod write;

pub use error::Error;
pub use header::{HEADER_BYTES, Header, TailPlace};
pub use ids::{ContextId, DeviceId, PoolId, SiteId, StackId, ThreadId};
pub use kind::{Kind, Space};
pub use pages::live::{LiveDevice, LivePage, LiveProcess};
pub use pages::live_owner::LiveOwner;
pub use pages::live_sites::{LIVE_SITES, LiveSite};
pub use pages::live_switch;
pub use pages::{group, live, member, name};
pub use read::damage::{Damage, DamageKind};
pub use read::definitions::Definitions;
pub use read::events::{Cursor, Events};
pub use read::found::Window;
pub use read::lookup::Lookup;
pub use read::reader::{self, Run, TraceReader};
pub use read::tail;
pub use record::define::Define;
pub use record::definition::*;
pub use record::event::{Event, Stamped};
pub use record::values::*;
pub use record::{code, word};
pub use window::{LINE, SLOT, WindowHeader, WindowKind, slot_offset};
pub use write::writer::{Appended, Reserved, Short, WindowWriter};
