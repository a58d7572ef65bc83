//! Passes: parts of a run in which one thing allocates.

use vramtrace_format::DeviceId;

use super::stacks::Caller;
use super::step::Place;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PassKind {
    Forward,
    Backward,
    Optimizer,
    Scaler,
}

/// The gradients that a backward pass left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Gradients {
    /// Their sizes, in ascending order, each with its number.
    pub sizes: Vec<(u64, u32)>,
    /// There are several, and as many allocations of these sizes are older than the first pass.
    pub of_weights: bool,
}

/// A pass, with all that follows up to the next one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pass {
    pub kind: PassKind,
    pub begin: Place,
    /// The last event before the next pass.
    pub end: Place,
    /// Of a forward pass: a backward pass freed memory of it.
    pub feeds: bool,
    /// Of a forward pass: an optimizer called it.
    pub in_optimizer: bool,
    /// Of an optimizer: its callers, without repetitions.
    pub callers: Vec<Caller>,
    /// Of a backward pass: the sizes of the gradients that it left, as an index.
    pub gradients: Option<usize>,
    /// At least half of the gradients were freed outside of backward before the next pass.
    pub frees_gradients: bool,
    /// They were freed before older memory was, as at the end of a run.
    pub frees_first: bool,
    /// PyTorch gave up on a request in it: the bytes of this pass that were live then, and all that it had
    /// allocated.
    pub failed: Option<(u64, u64)>,
    pub peak: (u64, Place),
    pub settled: Option<Place>,
    pub devices: Vec<(DeviceId, Figures)>,
}

/// Bytes of one device in a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    pub peak: u64,
    pub left: u64,
    /// Allocated before memory was freed that is older than the iteration: at the end of a run all is freed.
    pub settled: Option<u64>,
    /// Of PyTorch's cache, and of the driver.
    pub largest_block: u64,
    pub largest_of_driver: u64,
}

impl Pass {
    pub(super) fn new(kind: PassKind, begin: Place) -> Pass {
        Pass {
            kind,
            begin,
            end: begin,
            feeds: false,
            in_optimizer: false,
            callers: Vec::new(),
            gradients: None,
            frees_gradients: false,
            frees_first: false,
            failed: None,
            peak: (0, begin),
            settled: None,
            devices: Vec::new(),
        }
    }

    pub(super) fn figures(&mut self, device: DeviceId) -> &mut Figures {
        let at = self.devices.iter().position(|(of, _)| *of == device);
        let at = at.unwrap_or_else(|| {
            self.devices.push((device, Figures::default()));
            self.devices.len() - 1
        });
        &mut self.devices[at].1
    }
}
