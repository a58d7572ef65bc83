//! Kinds of memory, and the address space in which each kind's keys live.

/// What kind of memory an allocation is. The names are those of `report --json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// cuMemAlloc
    Device = 1,
    /// cuMemAllocPitch
    Pitched = 2,
    /// cuMemAllocManaged: migrates; charged to the cap when allocated; not in NVML's figure
    Managed = 3,
    /// A block inside a stream-ordered pool; the pool's reserved bytes are what is physical
    Pool = 4,
    /// A physical object of cuMemCreate (key: our object number, handles are reused)
    Vmm = 5,
    Array = 6,
    Mipmapped = 7,
    /// A block of a graph's memory node; the device's graph reservation is what is physical
    Graph = 8,
    /// Memory owned elsewhere (IPC, shareable handle, external memory): in no sum
    Imported = 9,
    /// Host memory allocated pinned by the driver: no VRAM
    HostPinned = 10,
    /// Host memory of the program, registered: no VRAM
    HostRegistered = 11,
    /// A block that a framework's cache cut out of a segment: in no sum, its segment is what is
    /// physical
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

    /// Device memory by itself, not a piece of such, and not of the host.
    pub fn is_physical(self) -> bool {
        !matches!(self.space(), Space::Host | Space::Block)
    }

    pub fn is_host(self) -> bool {
        self.space() == Space::Host
    }
}

/// Keys of different spaces never meet: a device address, one of our VMM object numbers,
/// an array handle and a host address may be the same number. A framework's block has an address
/// of its segment, often the segment's own.
///
/// Imported physical objects (cuMemImportFromShareableHandle) are keyed in `Vmm` although their
/// kind is `Imported`; so the space travels with the record where it is not `Kind::space`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Space {
    Device = 0,
    Vmm = 1,
    Array = 2,
    Host = 3,
    Block = 4,
}

impl Space {
    pub const ALL: [Space; 5] =
        [Space::Device, Space::Vmm, Space::Array, Space::Host, Space::Block];

    pub fn from_u8(value: u8) -> Option<Space> {
        Space::ALL.into_iter().find(|s| *s as u8 == value)
    }
}
