//! Commands about PyTorch's cache: what is found of each device of each trace.

use vramtrace_format::DeviceId;
use vramtrace_reader::trace::Definitions;

use super::caveats;
use super::select::{DeviceArgs, Input, traces};
use crate::error::Failure;

/// `find`: what a trace tells of each device. Of them are kept that are asked for; fails if none of the devices there is.
pub fn find<'i, T>(
    inputs: &'i [Input],
    wanted: &DeviceArgs,
    mut find: impl FnMut(&Input, &Definitions) -> Result<Vec<(DeviceId, T)>, Failure>,
) -> Result<Vec<(&'i Input, T)>, Failure> {
    let (mut kept, mut seen) = (Vec::new(), Vec::new());
    for input in inputs {
        let (definitions, _) = input.trace.definitions();
        for (device, found) in find(input, &definitions)? {
            seen.push(device);
            kept.extend(wanted.includes(device).then_some((input, found)));
        }
    }
    if !seen.is_empty() {
        wanted.check(seen)?;
    }
    caveats::warn_damage(traces(inputs));
    Ok(kept)
}
