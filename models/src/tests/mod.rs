//! The models.

mod counting;
mod group;
mod interner;
mod lock;
mod window;

/// Every order with at most so many switches away from a thread that could go on: of all orders there
/// are too many.
fn few_switches(most: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(most);
    builder.check(model);
}
