//! The driver's result codes, their names and texts.

use std::ffi::CStr;

/// A driver result other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Error(pub i32);

pub(crate) type Done<T = ()> = Result<T, Error>;

macro_rules! errors {
    ($($code:literal $short:ident $name:literal $text:literal;)*) => {
        // Codes that no call answers have a name and a text all the same: a fault may inject any code.
        #[allow(dead_code)]
        impl Error { $(pub(crate) const $short: Error = Error($code);)* }

        /// The name and the text of a code.
        pub(crate) fn entry(code: i32) -> Option<(&'static CStr, &'static CStr)> {
            match code { $($code => Some(($name, $text)),)* _ => None }
        }
    };
}

errors! {
    0 SUCCESS c"CUDA_SUCCESS" c"no error";
    1 INVALID_VALUE c"CUDA_ERROR_INVALID_VALUE" c"invalid argument";
    2 OUT_OF_MEMORY c"CUDA_ERROR_OUT_OF_MEMORY" c"out of memory";
    3 NOT_INITIALIZED c"CUDA_ERROR_NOT_INITIALIZED" c"initialization error";
    4 DEINITIALIZED c"CUDA_ERROR_DEINITIALIZED" c"driver shutting down";
    100 NO_DEVICE c"CUDA_ERROR_NO_DEVICE" c"no CUDA-capable device is detected";
    101 INVALID_DEVICE c"CUDA_ERROR_INVALID_DEVICE" c"invalid device ordinal";
    200 INVALID_IMAGE c"CUDA_ERROR_INVALID_IMAGE" c"device kernel image is invalid";
    201 INVALID_CONTEXT c"CUDA_ERROR_INVALID_CONTEXT" c"invalid device context";
    205 MAP_FAILED c"CUDA_ERROR_MAP_FAILED" c"mapping of buffer object failed";
    208 ALREADY_MAPPED c"CUDA_ERROR_ALREADY_MAPPED" c"resource already mapped";
    211 NOT_MAPPED c"CUDA_ERROR_NOT_MAPPED" c"resource not mapped";
    215 UNSUPPORTED_LIMIT c"CUDA_ERROR_UNSUPPORTED_LIMIT" c"limit is not supported on this architecture";
    217 PEER_ACCESS_UNSUPPORTED c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED" c"peer access is not supported between these two devices";
    218 INVALID_PTX c"CUDA_ERROR_INVALID_PTX" c"a PTX JIT compilation failed";
    301 FILE_NOT_FOUND c"CUDA_ERROR_FILE_NOT_FOUND" c"file not found";
    304 OPERATING_SYSTEM c"CUDA_ERROR_OPERATING_SYSTEM" c"OS call failed or operation not supported on this OS";
    400 INVALID_HANDLE c"CUDA_ERROR_INVALID_HANDLE" c"invalid resource handle";
    401 ILLEGAL_STATE c"CUDA_ERROR_ILLEGAL_STATE" c"the operation cannot be performed in the present state";
    500 NOT_FOUND c"CUDA_ERROR_NOT_FOUND" c"named symbol not found";
    600 NOT_READY c"CUDA_ERROR_NOT_READY" c"device not ready";
    700 ILLEGAL_ADDRESS c"CUDA_ERROR_ILLEGAL_ADDRESS" c"an illegal memory access was encountered";
    704 PEER_ACCESS_ALREADY_ENABLED c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED" c"peer access is already enabled";
    705 PEER_ACCESS_NOT_ENABLED c"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED" c"peer access has not been enabled";
    708 PRIMARY_CONTEXT_ACTIVE c"CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE" c"cannot set while device is active in this process";
    709 CONTEXT_IS_DESTROYED c"CUDA_ERROR_CONTEXT_IS_DESTROYED" c"context is destroyed";
    712 HOST_MEMORY_ALREADY_REGISTERED c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED" c"part or all of the requested memory range is already mapped";
    713 HOST_MEMORY_NOT_REGISTERED c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED" c"pointer does not correspond to a registered memory region";
    719 LAUNCH_FAILED c"CUDA_ERROR_LAUNCH_FAILED" c"unspecified launch failure";
    800 NOT_PERMITTED c"CUDA_ERROR_NOT_PERMITTED" c"operation not permitted";
    801 NOT_SUPPORTED c"CUDA_ERROR_NOT_SUPPORTED" c"operation not supported";
    802 SYSTEM_NOT_READY c"CUDA_ERROR_SYSTEM_NOT_READY" c"system not yet initialized";
    900 CAPTURE_UNSUPPORTED c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED" c"operation not permitted when stream is capturing";
    901 CAPTURE_INVALIDATED c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED" c"operation failed due to a previous error during capture";
    903 CAPTURE_UNMATCHED c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED" c"capture was not initiated in this stream";
    904 CAPTURE_UNJOINED c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED" c"capturing stream has unjoined work";
    906 CAPTURE_IMPLICIT c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT" c"operation would make the legacy stream depend on a capturing blocking stream";
    907 CAPTURED_EVENT c"CUDA_ERROR_CAPTURED_EVENT" c"operation not permitted on an event last recorded in a capturing stream";
    999 UNKNOWN c"CUDA_ERROR_UNKNOWN" c"unknown error";
}
