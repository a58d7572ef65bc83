//! One trace: its bytes, header, damage, definitions and summary.

mod definitions;
mod host_files;
mod name;
mod opened;
mod sites;
mod stacks;
mod summary;
#[cfg(test)]
mod tests;

pub use definitions::{
    Definitions, DeviceInfo, IMPORT, IMPORT_TIMES, NO_TIMES, ONE_MOMENT, PoolInfo, SiteInfo,
    TORCH_VERSION, ThreadInfo,
};
pub use host_files::{Bytes, HostFiles};
pub use name::process_name;
pub use opened::{DamageFound, Opened, Trace};
pub use stacks::{Address, Code, Module, Stack, Stacks};
pub use summary::{DeviceSummary, EndSummary, LastTotals};
#[cfg(test)]
pub(crate) use tests::{TestFiles, in_repository, unpacked};
