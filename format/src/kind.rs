//! Kinds of memory, and the key space of each kind.

/// What kind of memory an allocation is. The names are those of `report --json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// cuMemAlloc
    Device = 1,
    /// cuMemAllocPitch
    Pitched = 2,
    /// cuMemAllocManaged: migrates between host and device. The cap counts it when it is allocated; NVML does not.
    Managed = 3,
    /// A block in a stream-ordered memory pool. Physical bytes are the pool's reserved bytes.
    Pool = 4,
    /// A physical allocation of cuMemCreate. The key is an object number of the recorder: the driver reuses handles.
    Vmm = 5,
    Array = 6,
    Mipmapped = 7,
    /// A block of a graph memory node. Physical bytes are the graph reservation of the device.
    Graph = 8,
    /// Memory that another process or API allocated (IPC, shareable handle, external memory). Not in any sum.
    Imported = 9,
    /// Pinned host memory that the driver allocated: no device memory
    HostPinned = 10,
    /// Host memory that the program allocated and registered: no device memory
    HostRegistered = 11,
    /// A block of a framework's caching allocator, part of a segment. Not in any sum: the segment is counted.
    Block = 12,
}

impl Kind {
    pub const ALL: [Kind; 12] = [
        Kind::Device,
        Kind::Pitched,
        Kind::Managed,
        Kind::Pool,
        Kind::Vmm,
        Kind::Array,
        Kind::Mipmapped,
        Kind::Graph,
        Kind::Imported,
        Kind::HostPinned,
        Kind::HostRegistered,
        Kind::Block,
    ];

    /// `None`: no kind has this number.
    pub fn from_u8(value: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == value)
    }

    /// The name in reports and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Device => "device",
            Kind::Pitched => "pitched",
            Kind::Managed => "managed",
            Kind::Pool => "pool",
            Kind::Vmm => "vmm",
            Kind::Array => "array",
            Kind::Mipmapped => "mipmapped",
            Kind::Graph => "graph",
            Kind::Imported => "imported",
            Kind::HostPinned => "host_pinned",
            Kind::HostRegistered => "host_registered",
            Kind::Block => "block",
        }
    }

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

/// The key space of an allocation. A key is unique only within its space: a device address, a VMM object number, an
/// array handle and a host address may be the same number, and the first block of a segment has the segment's address.
///
/// Imported physical allocations (cuMemImportFromShareableHandle) have keys in `Vmm`, although
/// [`Kind::space`] of `Imported` is `Device`. Records therefore store the space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
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

impl Space {
    pub const ALL: [Space; 5] =
        [Space::Device, Space::Vmm, Space::Array, Space::Host, Space::Block];

    /// `None`: no space has this number.
    pub fn from_u8(value: u8) -> Option<Space> {
        Space::ALL.into_iter().find(|s| *s as u8 == value)
    }
}
