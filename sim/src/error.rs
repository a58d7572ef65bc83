//! The driver's result codes.

/// A driver result other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Error(pub i32);

pub(crate) type Done<T = ()> = Result<T, Error>;

impl Error {
    pub(crate) const INVALID_VALUE: Error = Error(1);
    pub(crate) const OUT_OF_MEMORY: Error = Error(2);
    pub(crate) const NOT_INITIALIZED: Error = Error(3);
    pub(crate) const DEINITIALIZED: Error = Error(4);
    pub(crate) const NO_DEVICE: Error = Error(100);
    pub(crate) const INVALID_DEVICE: Error = Error(101);
    pub(crate) const INVALID_CONTEXT: Error = Error(201);
    pub(crate) const MAP_FAILED: Error = Error(205);
    pub(crate) const UNSUPPORTED_LIMIT: Error = Error(215);
    pub(crate) const OPERATING_SYSTEM: Error = Error(304);
    pub(crate) const INVALID_HANDLE: Error = Error(400);
    pub(crate) const ILLEGAL_STATE: Error = Error(401);
    pub(crate) const NOT_FOUND: Error = Error(500);
    pub(crate) const CONTEXT_IS_DESTROYED: Error = Error(709);
    pub(crate) const HOST_MEMORY_ALREADY_REGISTERED: Error = Error(712);
    pub(crate) const HOST_MEMORY_NOT_REGISTERED: Error = Error(713);
    pub(crate) const NOT_PERMITTED: Error = Error(800);
    pub(crate) const NOT_SUPPORTED: Error = Error(801);
    pub(crate) const CAPTURE_UNSUPPORTED: Error = Error(900);
    pub(crate) const CAPTURE_INVALIDATED: Error = Error(901);
    pub(crate) const CAPTURE_UNMATCHED: Error = Error(903);
    pub(crate) const CAPTURE_IMPLICIT: Error = Error(906);
    pub(crate) const CAPTURED_EVENT: Error = Error(907);
    pub(crate) const UNKNOWN: Error = Error(999);
}
