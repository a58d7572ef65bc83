use super::*;
use crate::model::cap::Budget;
use crate::model::ledger::model_test::Nothing;
use crate::runtime::faults::tests::NO_PAGES;
use vramtrace_format::DeviceId;
use vramtrace_format::physical::{MIB, PAGE};

fn small(key: u64) -> Entry {
    Entry::new(Kind::Device, key, 1024, DeviceId(0))
}

/// One that lies in two new pages does not fit; in the second one another one lies by then,
/// which took nothing, as the page was there.
#[test]
fn a_page_that_others_use_stays_counted_when_an_allocation_is_undone() {
    let (budget, ledger) = (Budget::capped(2 * PAGE), Ledger::default());
    let (mut straddling, mut inside) =
        (budget.reserve(PAGE, None).unwrap(), budget.reserve(PAGE, None).unwrap());
    let first = small((1 << 40) + PAGE - 512);
    let growth = ledger.insert(&Nothing, &first);
    assert_eq!(growth, 2 * PAGE as i64);
    let second = small((1 << 40) + PAGE + MIB);
    inside.commit(ledger.insert(&Nothing, &second)).unwrap();
    let other = budget.reserve(1, None).unwrap();
    assert!(straddling.commit(growth).is_err());
    let promised = budget.counted();
    let undo = || assert_eq!(budget.counted(), promised, "the driver has it until then");
    undo_allocation(&ledger, &Nothing, &first, growth, undo, straddling);
    drop(other);
    assert_eq!((budget.counted(), ledger.live(DeviceId(0))), (PAGE, PAGE));
    let removed = ledger.remove(&Nothing, Space::Device, second.key).unwrap();
    assert!(budget.charge(-(ledger.left(&removed) as i64)));
    assert_eq!(budget.counted(), 0);
}

#[test]
fn what_the_ledger_has_no_room_for_stays_counted() {
    for (entry, bytes) in
        [(small(1 << 40), PAGE), (Entry::new(Kind::Device, 2 << 40, 3 * MIB, DeviceId(0)), 4 * MIB)]
    {
        let (budget, ledger) = (Budget::capped(4 * MIB), Ledger::default());
        let mut promise = budget.reserve(bytes, None).unwrap();
        NO_PAGES.set(true);
        let growth = ledger.insert(&Nothing, &entry);
        NO_PAGES.set(false);
        assert!(ledger.get(entry.space, entry.key).is_none());
        promise.commit(growth).unwrap();
        assert_eq!(budget.counted(), bytes);
    }
}
