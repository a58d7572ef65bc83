//! Orders for other limits, and the threads that apply them.

use loom::sync::Arc;
use loom::thread;

use crate::model::cap::orders::Orders;
use crate::runtime::atomics::{AtomicU64 as Word, Ordering};

/// A device in the live page, and the limit in force.
struct Page {
    orders: Orders<1>,
    ordered: Word,
    applied: Word,
    limit: Word,
}

impl Page {
    fn apply(&self) {
        let read = || {
            let number = self.ordered.load(Ordering::Acquire);
            (number != self.applied.load(Ordering::Acquire)).then_some((number, 10 * number))
        };
        let set = |limit| self.limit.store(limit, Ordering::Release);
        if let Some(number) = self.orders.set(0, read, set) {
            self.orders.applied(0, number, || self.applied.store(number, Ordering::Release));
        }
    }
}

/// After the second order was reported as applied, the first is never in force.
#[test]
fn an_order_is_never_undone_by_an_earlier_one() {
    super::few_switches(3, || {
        let page = Arc::new(Page {
            orders: Orders::default(),
            ordered: Word::new(1),
            applied: Word::new(0),
            limit: Word::new(0),
        });
        let other = {
            let page = page.clone();
            thread::spawn(move || page.apply())
        };
        page.ordered.store(2, Ordering::Release);
        page.apply();
        assert_eq!((page.applied.load(Ordering::Acquire), page.limit.load(Ordering::Acquire)), (2, 20));
        other.join().unwrap();
        assert_eq!((page.applied.load(Ordering::Acquire), page.limit.load(Ordering::Acquire)), (2, 20));
    });
}
