//! The models.

mod counting;
mod group;
mod interner;
mod lock;
mod orders;
mod peaks;
mod pool_readers;
mod short_window;
mod totals_due;
mod window;

/// Checks every interleaving with at most this many preemptions. There are too many interleavings to check
/// all.
fn few_switches(most: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(most);
    builder.check(model);
}
