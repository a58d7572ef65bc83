//! The caveats of a prediction.

use super::predict::Setting;
use super::recorded::Recorded;
use crate::units::{clean, seconds, several, size};

/// Relative difference up to which the replayed peak counts as equal to the recorded one. A larger
/// difference gets a caveat.
const AGREES: f64 = 0.01;

/// A block may be larger than its request by up to 1 MiB. Up to 5.4 % was seen with sizes at random (docs/gpu-evidence.md).
const SIZES_OF_BLOCKS: &str = "the trace has sizes of blocks, not of requests: good to half a per cent \
    where sizes repeat, as in a training, and to 6 % where they do not; a snapshot of PyTorch has the requests";

/// The caveats of a prediction, one sentence each.
pub(super) fn caveats(recorded: &Recorded, settings: &[Setting]) -> Vec<String> {
    let mut caveats = Vec::new();
    if let Some(from) = recorded.from_ns {
        caveats.push(format!(
            "the beginning of the history is gone: replayed from {} on, with the segments and \
             blocks that were there",
            seconds(from)
        ));
    }
    if !recorded.knows_requests {
        caveats.push(SIZES_OF_BLOCKS.into());
        let rounds = recorded.in_force.conf.as_ref();
        if rounds.is_some_and(|conf| conf.roundup_power2_divisions.iter().any(|n| *n > 1)) {
            caveats.push(
                "recorded with roundup_power2_divisions: the sizes are rounded up already, and \
                 other settings would need less than is shown here"
                    .into(),
            );
        }
    }
    if recorded.in_force.conf.is_none() {
        caveats.push(format!(
            "the setting in force, \"{}\", cannot be replayed",
            clean(recorded.in_force.name())
        ));
    }
    if let Some(now) = settings.iter().find(|it| it.in_force && recorded.peak_reserved > 0)
        && recorded.from_ns.is_none()
    {
        let off = now.free.peak_reserved as f64 / recorded.peak_reserved as f64 - 1.0;
        // The replay has no limit. If the run reached its limit, a higher replayed peak is expected.
        if off < -AGREES || (off > AGREES && now.free.peak_total < limit(recorded)) {
            let why = match recorded.knows_streams {
                true if off < 0.0 => {
                    "; pools of torch.cuda.use_mem_pool are not in the trace, nor uses by other streams"
                }
                true => "",
                false => "; streams and private pools (CUDA graphs) are not in the trace",
            };
            caveats.push(format!(
                "the setting in force, replayed, reserves {} where the run reserved {}{why}: take \
                 the figures as that rough",
                size(now.free.peak_reserved),
                size(recorded.peak_reserved)
            ));
        }
    }
    if recorded.streams > 1 && !recorded.knows_uses {
        caveats.push(format!(
            "blocks of {}: the trace does not show when other streams have finished with a freed block \
             (Tensor.record_stream). Where they do so late, more is reserved than is shown here",
            several(recorded.streams as u64, "stream")
        ));
    }
    if recorded.survived > 0 {
        caveats.push(format!(
            "the run went on after {} that got nothing: they are not replayed",
            several(recorded.survived, "request")
        ));
    }
    caveats
}

/// The smaller of cap and device memory, in bytes. `u64::MAX`: neither is known.
fn limit(recorded: &Recorded) -> u64 {
    recorded.cap_bytes.into_iter().chain(recorded.card_bytes).min().unwrap_or(u64::MAX)
}
