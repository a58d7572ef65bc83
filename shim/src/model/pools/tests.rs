use super::*;
use vramtrace_format::{Event, PoolId};

fn register(pools: &Pools, handle: u64) -> &Pool {
    let seen = pools.register(handle, DeviceId(0), Kind::Pool, PoolOrigin::Created).unwrap();
    assert!(seen.define);
    seen.pool
}

/// Of a pool that can be queried.
fn handle(pool: &Pool) -> Option<u64> {
    pool.begin_reading().map(|(handle, _)| handle)
}

fn destroy(pools: &Pools, handle: u64) {
    let pool = pools.begin_destroy(handle).unwrap();
    pools.destroyed(pool);
    if pool.is_over() {
        pools.end(pool, || ());
    }
}

#[test]
fn a_reused_handle_is_another_pool() {
    let pools = Pools::default();
    let seen = pools.register(0x10, DeviceId(2), Kind::Pool, PoolOrigin::Created).unwrap();
    let first = seen.pool;
    assert!(seen.define);
    assert!(!pools.register(0x10, DeviceId(2), Kind::Pool, PoolOrigin::Created).unwrap().define);
    assert_eq!((first.id(), first.device(), handle(first)), (PoolId(1), DeviceId(2), Some(0x10)));
    first.growth.allocated(100);
    pools.destroyed(pools.begin_destroy(0x10).unwrap());
    assert!(pools.find(0x10).is_none() && handle(first).is_none());
    let second =
        pools.register(0x10, DeviceId(0), Kind::HostPinned, PoolOrigin::Created).unwrap().pool;
    assert_eq!((second.id(), second.kind()), (PoolId(2), Kind::HostPinned));
    assert_eq!(pools.by_number(1).unwrap().device(), DeviceId(2));
    assert!(pools.by_number(0).is_none());
    assert_eq!(pools.all().count(), 2);
}

#[test]
fn a_destroyed_pool_ends_with_its_last_block_and_its_number_is_free() {
    let pools = Pools::default();
    let pool = register(&pools, 0x10);
    pool.growth.allocated(100);
    pool.growth.allocated(600);
    pool.growth.freed(100);
    assert!(!pool.is_over());
    destroy(&pools, 0x10);
    assert!(!pool.is_over() && pools.all().count() == 1);
    assert_eq!(register(&pools, 0x10).number(), 2);
    pool.growth.freed(600);
    assert!(pool.is_over());
    let mut ends = 0;
    pools.end(pool, || ends += 1);
    pools.end(pool, || ends += 1);
    assert_eq!((ends, pools.all().count()), (1, 1));
    assert_eq!(register(&pools, 0x20).number(), 1);
    let other = pools.register(0x30, DeviceId(1), Kind::Pool, PoolOrigin::Created).unwrap().pool;
    assert_eq!(other.number(), 3, "of another device");
}

#[test]
fn freed_pools_are_looked_at_once() {
    let pools = Pools::default();
    let (first, second) = (register(&pools, 0x10), register(&pools, 0x20));
    register(&pools, 0x30);
    assert!(!pools.any_freed());
    pools.freed_one(second);
    pools.freed_one(first);
    pools.freed_one(second);
    assert!(pools.any_freed());
    assert_eq!(pools.take_freed().map(Pool::id).collect::<Vec<_>>(), [PoolId(1), PoolId(2)]);
    assert!(!pools.any_freed() && pools.take_freed().next().is_none());
    pools.freed_one(second);
    assert_eq!(pools.take_freed().map(Pool::id).collect::<Vec<_>>(), [PoolId(2)]);
}

#[test]
fn only_pools_that_may_hold_memory_are_read() {
    let pools = Pools::default();
    let all: Vec<_> = (1..=200).map(|handle| register(&pools, handle)).collect();
    let numbers = || pools.active().map(Pool::number).collect::<Vec<_>>();
    assert!(numbers().is_empty());
    for at in [199, 0, 63, 64, 63] {
        all[at].takes();
        all[at].growth.allocated(600);
    }
    assert_eq!(numbers(), [1, 64, 65, 200]);
    all[0].growth.freed(600);
    pools.active().for_each(Pool::rests);
    assert_eq!(numbers(), [64, 65, 200]);
    all[0].takes();
    assert_eq!(numbers(), [1, 64, 65, 200]);
    let default = pools.register(999, DeviceId(0), Kind::Pool, PoolOrigin::Default).unwrap().pool;
    default.rests();
    assert_eq!(numbers(), [1, 64, 65, 200, default.number()]);
}

#[test]
fn a_checkpoint_has_what_holds_something() {
    let pools = Pools::default();
    register(&pools, 0x10);
    register(&pools, 0x20).growth.allocated(512);
    let mut events = Vec::new();
    pools.checkpoint(&mut |event| events.push(*event));
    let held = Event::PoolState { pool: PoolId(2), reserved: 0, used: 512 };
    assert_eq!(events, [held]);
}

#[test]
fn a_failed_destroy_leaves_it_as_it_was() {
    let pools = Pools::default();
    register(&pools, 0x10);
    let pool = pools.begin_destroy(0x10).unwrap();
    assert!(!pool.is_over(), "the driver may refuse");
    pools.put_back(pool);
    assert_eq!(pools.find(0x10).unwrap().id(), PoolId(1));
    assert_eq!(handle(pool), Some(0x10));
}

#[test]
fn any_number_of_pools_one_after_the_other() {
    let pools = Pools::default();
    for handle in 1..=100_000 {
        assert_eq!(register(&pools, handle).number(), 1);
        destroy(&pools, handle);
    }
    assert_eq!(pools.all().count(), 0);
}

#[test]
fn pools_that_are_not_followed_are_known_of() {
    let pools = Pools::default();
    for handle in 1..=MOST as u64 {
        register(&pools, handle);
    }
    assert!(!pools.has_overflowed());
    assert!(pools.register(0x1000, DeviceId(0), Kind::Pool, PoolOrigin::Created).is_none());
    assert!(pools.has_overflowed());
    destroy(&pools, 9);
    assert_eq!(register(&pools, 0x1001).number(), 9);
}

/// The driver may be asked for the figures of a pool only if it exists.
#[test]
fn a_pool_that_a_request_named_is_not_queried_before_the_driver_served_it() {
    let pools = Pools::default();
    let named = |handle| pools.named(handle, DeviceId(0)).unwrap().pool;
    let pool = named(0x10);
    assert_eq!(handle(pool), None);
    assert!(pools.forget_named(pool) && pools.find(0x10).is_none() && pool.is_over());
    let pool = named(0x20);
    pool.served();
    assert_eq!(handle(pool), Some(0x20));
    assert!(!pools.forget_named(pool));
    assert_eq!(handle(named(0x20)), Some(0x20), "it is known");
    // The driver gave out the handle meanwhile.
    let first = named(0x30);
    let seen = pools.register(0x30, DeviceId(1), Kind::Managed, PoolOrigin::Created).unwrap();
    assert_eq!((seen.pool.kind(), handle(seen.pool)), (Kind::Managed, Some(0x30)));
    assert!(!pools.forget_named(first) && first.is_over() && pools.find(0x30).is_some());
}

#[test]
fn a_destruction_waits_for_the_threads_that_read_the_figures() {
    let pools = Pools::default();
    let pool = register(&pools, 0x10);
    let reader = pool.begin_reading().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pools.begin_destroy(0x10);
            done.store(true, Ordering::SeqCst);
        });
        while handle(pool).is_some() {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(20));
        assert!(!done.load(Ordering::SeqCst));
        drop(reader);
    });
    assert!(done.load(Ordering::SeqCst));
}
