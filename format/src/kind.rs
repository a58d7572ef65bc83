//! Kinds of memory, and the key space of each kind.

use crate::scalar::{Scalar, numbered_enum};

numbered_enum! {
    /// What kind of memory an allocation is. The names are those of `report --json`.
    pub enum Kind {
        /// cuMemAlloc
        Device = 1 => "device",
        /// cuMemAllocPitch
        Pitched = 2 => "pitched",
        /// cuMemAllocManaged: migrates between host and device. The cap counts it when it is allocated; NVML does not.
        Managed = 3 => "managed",
        /// A block in a stream-ordered memory pool. Physical bytes are the pool's reserved bytes.
        Pool = 4 => "pool",
        /// A physical allocation of cuMemCreate. The key is an object number of the recorder: the driver reuses handles.
        Vmm = 5 => "vmm",
        Array = 6 => "array",
        Mipmapped = 7 => "mipmapped",
        /// A block of a graph memory node. Physical bytes are the graph reservation of the device.
        Graph = 8 => "graph",
        /// Memory that another process or API allocated (IPC, shareable handle, external memory). Not in any sum.
        Imported = 9 => "imported",
        /// Pinned host memory that the driver allocated: no device memory
        HostPinned = 10 => "host_pinned",
        /// Host memory that the program allocated and registered: no device memory
        HostRegistered = 11 => "host_registered",
        /// A block of a framework's caching allocator, part of a segment. Not in any sum: the segment is counted.
        Block = 12 => "block",
    }
}

impl Kind {
    /// The key space of allocations of this kind. For imported objects of cuMemCreate it is [`Space::Vmm`] instead.
    pub fn space(self) -> Space {
        match self {
            Kind::Device
            | Kind::Pitched
            | Kind::Managed
            | Kind::Pool
            | Kind::Graph
            | Kind::Imported => Space::Device,
            Kind::Vmm => Space::Vmm,
            Kind::Array | Kind::Mipmapped => Space::Array,
            Kind::HostPinned | Kind::HostRegistered => Space::Host,
            Kind::Block => Space::Block,
        }
    }

    /// Whether it is device memory that is not a part of another allocation: neither host memory nor a framework's
    /// block. Also true for imported memory and for blocks of pools and graphs.
    pub fn is_physical(self) -> bool {
        !matches!(self.space(), Space::Host | Space::Block)
    }

    pub fn is_host(self) -> bool {
        self.space() == Space::Host
    }
}

/// `None` is 0, and a kind of a newer writer.
impl Scalar for Option<Kind> {
    const BITS: u32 = 8;

    fn to_bits(self) -> u64 {
        self.map_or(0, |kind| kind as u64)
    }

    fn from_bits(bits: u64) -> Option<Option<Kind>> {
        Some(Kind::from_u8(bits as u8))
    }
}

numbered_enum! {
    /// The key space of an allocation. A key is unique only within its space: a device address, a VMM object number, an
    /// array handle and a host address may be the same number, and the first block of a segment has the segment's address.
    ///
    /// Imported physical allocations (cuMemImportFromShareableHandle) have keys in `Vmm`, although
    /// [`Kind::space`] of `Imported` is `Device`. Records therefore store the space.
    pub enum Space {
        /// Device addresses.
        Device = 0,
        /// Object numbers that the recorder assigns.
        Vmm = 1,
        /// Array handles.
        Array = 2,
        /// Host addresses.
        Host = 3,
        /// Device addresses of a framework's blocks.
        Block = 4,
    }
}
