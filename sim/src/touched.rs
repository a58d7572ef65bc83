//! Which pages of a managed allocation are on the device.

/// Which pages are on the device.
pub(crate) struct Touched {
    pub pages: Box<[bool]>,
    pub bytes: u64,
}

impl Touched {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}
