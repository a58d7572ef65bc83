//! What the formats are written from: the stacks of a process with their bytes.

use vramtrace_format::{Cause, DeviceId, Header, StackId};

use super::super::sink::device_name;
use crate::analysis::{Held, tree::taken_by_driver};
use crate::symbols::{Frame, Symbols};

/// The stacks of one process that held memory.
#[derive(Debug)]
pub struct ProcessStacks {
    /// `rank 3: python train.py (host, pid 4711)`.
    pub label: String,
    pub start_unix_ns: u64,
    pub header: Header,
    pub symbols: Symbols,
    /// In order of device and stack, also those that hold nothing but what is paused.
    pub samples: Vec<StackSample>,
    /// Bytes of peaks of which the trace has the height alone.
    pub not_known: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StackSample {
    pub device: DeviceId,
    pub stack: StackId,
    /// What the driver took the memory for. `None`: it was allocated.
    pub cause: Option<Cause>,
    pub held: Held,
}

impl StackSample {
    /// The innermost frame of memory that the driver took.
    pub fn leaf(&self) -> Option<String> {
        self.cause.map(taken_by_driver)
    }

    /// `GPU 0`.
    pub fn device_name(&self) -> String {
        device_name(Some(self.device))
    }
}

impl ProcessStacks {
    /// Those with memory.
    pub fn resident(&self) -> impl Iterator<Item = &StackSample> {
        self.samples.iter().filter(|sample| sample.held.bytes > 0)
    }
}

/// `train (train.py:41)`, `cudaMalloc [libcudart.so.12]`.
pub(crate) fn frame_name(frame: &Frame) -> String {
    match (frame.place(), frame.library_name()) {
        (Some(place), _) => format!("{} ({place})", frame.function),
        (None, Some(library)) if !frame.function.starts_with(library) => {
            format!("{} [{library}]", frame.function)
        }
        (None, _) => frame.function.to_string(),
    }
}
