//! Definitions: what ids stand for. In windows of their own that are never punched; published
//! before the id is handed out.

use crate::{ContextId, DeviceId, Kind, PoolId, SiteId, ThreadId};

#[derive(Clone, Debug, PartialEq)]
pub enum Definition {
    /// An entry point of the shim's table.
    Api {
        id: u16,
        name: String,
    },
    Thread {
        id: ThreadId,
        tid: u32,
        name: String,
    },
    Device {
        id: DeviceId,
        uuid: [u8; 16],
        name: String,
        total_bytes: u64,
        mig: bool,
    },
    Context {
        id: ContextId,
        device: DeviceId,
        handle: u64,
        primary: bool,
    },
    Pool {
        id: PoolId,
        device: DeviceId,
        handle: u64,
        origin: PoolOrigin,
    },
    /// Where an allocation or a free came from. `stream` is the raw handle (0 legacy default,
    /// 1 legacy, 2 per-thread).
    Site {
        id: SiteId,
        api: u16,
        kind: Option<Kind>,
        device: DeviceId,
        context: ContextId,
        pool: PoolId,
        stream: u64,
    },
    /// A string for marks and notes.
    Text {
        id: u32,
        text: String,
    },
    /// One line that the shim also put on stderr.
    Note {
        text: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PoolOrigin {
    Default = 0,
    Created = 1,
    Imported = 2,
}
