//! The memory that graphs reserve on a device. It is taken at upload or first launch in steps of
//! 32 MiB, shared by all graphs of the device, and stays until it is trimmed.

use crate::abi::POOL_STEP;

#[derive(Default)]
pub(crate) struct GraphMemory {
    pub reserved: u64,
    pub used: u64,
}

impl GraphMemory {
    pub(crate) fn take(&mut self, bytes: u64) {
        self.used += bytes;
    }

    pub(crate) fn free(&mut self, bytes: u64) {
        self.used = self.used.saturating_sub(bytes);
    }

    /// Gives up what is not in use; returns the bytes.
    pub(crate) fn trim(&mut self) -> u64 {
        let floor = self.used.next_multiple_of(POOL_STEP).min(self.reserved);
        let given = self.reserved - floor;
        self.reserved = floor;
        given
    }
}
