//! What the formats are written from: the stacks of a process with their bytes.

use vramtrace_format::Header;

use crate::analysis::{Holding, Owner};
use crate::symbols::{Frame, Symbols};

/// The stacks of one process that held memory.
#[derive(Debug)]
pub struct ProcessStacks {
    /// `rank 3: python train.py (host, pid 4711)`.
    pub label: String,
    pub header: Header,
    pub symbols: Symbols,
    /// In order of device and stack, also those that hold nothing but what is paused.
    pub samples: Vec<(Owner, Holding)>,
    /// Bytes of peaks of which the trace has the height alone.
    pub not_known: u64,
}

impl ProcessStacks {
    /// Those with memory.
    pub fn resident(&self) -> impl Iterator<Item = &(Owner, Holding)> {
        self.samples.iter().filter(|(_, held)| held.bytes > 0)
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
