//! How far a prediction may be off, where every block has its law. These constants were set on recorded runs of five
//! models (docs/fits.md names them), and are not fitted to the runs that measure how often the intervals hold.

/// The model of the allocator, and blocks that are some bytes larger than their requests.
const AT_RECORDED: f64 = 0.004;
/// For each doubling of the batch: kernels with other buffers, which no recorded batch shows.
const PER_DOUBLING: f64 = 0.006;

/// The part of a figure by which the truth may be less or more than the bounds of the laws.
pub(super) fn margin(batch: u64, recorded: &[u64]) -> f64 {
    let nearest = recorded.iter().map(|at| doublings(batch, *at)).fold(f64::MAX, f64::min);
    AT_RECORDED + PER_DOUBLING * nearest
}

fn doublings(one: u64, other: u64) -> f64 {
    (one.max(1) as f64 / other.max(1) as f64).log2().abs()
}
