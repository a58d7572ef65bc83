use super::*;
use vramtrace_format::physical::MIB;

fn read(growth: &Growth, reserved: u64, used: u64) -> Option<(Ticket, Reading)> {
    Some((growth.ticket(), Reading { reserved, used: Some(used) }))
}

#[test]
fn growth_goes_in_steps_of_32_mib() {
    let (budget, pool) = (Budget::capped(1 << 30), Growth::default());
    pool.ask(&budget, 1000).unwrap();
    assert_eq!(budget.counted(), 32 * MIB);
    let mut reported = None;
    pool.finish(&budget, 1000, true, read(&pool, 32 * MIB, 1000), |c| reported = Some(c));
    let grown = Change { delta: 32 * MIB as i64, reserved: 32 * MIB, used: 1024 };
    assert_eq!(reported, Some(grown));
    assert_eq!(budget.counted(), 32 * MIB);
    pool.ask(&budget, 100 * MIB).unwrap();
    assert_eq!(budget.counted(), 128 * MIB);
    pool.finish(&budget, 100 * MIB, false, None, |_| ());
    assert_eq!(budget.counted(), 32 * MIB);
}

#[test]
fn the_first_request_under_a_cap_counts_what_came_without_one() {
    let (budget, pool) = (Budget::capped(32 * MIB), Growth::default());
    pool.allocated(MIB);
    let reading = Reading { reserved: 32 * MIB, used: Some(MIB) };
    pool.observe(&budget, pool.ticket(), reading, |_| ());
    assert!(!pool.allocated(30 * MIB), "within the reserve");
    assert!(pool.ask(&budget, 2 * MIB).is_err());
    assert!(pool.ask(&budget, MIB).is_ok());
}

#[test]
fn what_it_holds_is_never_refused() {
    let (budget, pool) = (Budget::capped(32 * MIB), Growth::default());
    pool.ask(&budget, MIB).unwrap();
    pool.finish(&budget, MIB, true, read(&pool, 32 * MIB, MIB), |_| ());
    budget.charge(MIB as i64); // above the cap now
    for _ in 0..31 {
        pool.ask(&budget, MIB).unwrap();
        pool.finish(&budget, MIB, true, None, |_| ());
    }
    assert!(pool.ask(&budget, 1).is_err());
    pool.freed(MIB);
    assert!(pool.ask(&budget, MIB).is_ok());
}

#[test]
fn calls_under_way_share_one_step_and_keep_it_when_one_fails() {
    let (budget, pool) = (Budget::capped(32 * MIB), Growth::default());
    pool.ask(&budget, MIB).unwrap();
    pool.ask(&budget, MIB).unwrap();
    assert_eq!(budget.counted(), 32 * MIB);
    pool.finish(&budget, MIB, false, None, |_| ());
    assert_eq!(budget.counted(), 32 * MIB, "the second still needs it");
    pool.finish(&budget, MIB, true, read(&pool, 32 * MIB, MIB), |_| ());
    assert_eq!(budget.counted(), 32 * MIB);
    let ticket = pool.ticket();
    pool.observe(&budget, ticket, Reading { reserved: 0, used: Some(0) }, |_| ());
    assert_eq!(budget.counted(), 0);
}

#[test]
fn a_low_forecast_is_charged_when_seen() {
    let (budget, pool) = (Budget::capped(32 * MIB), Growth::default());
    pool.ask(&budget, MIB).unwrap();
    pool.finish(&budget, MIB, true, read(&pool, 64 * MIB, MIB), |_| ());
    assert_eq!(budget.counted(), 64 * MIB);
    assert!(budget.try_take(0).is_err());
}

#[test]
fn when_the_driver_knows_of_fewer_used_bytes_it_is_believed_before_a_refusal() {
    let (budget, pool) = (Budget::capped(32 * MIB), Growth::default());
    pool.ask(&budget, 32 * MIB).unwrap();
    pool.finish(&budget, 32 * MIB, true, read(&pool, 32 * MIB, 32 * MIB), |_| ());
    assert!(pool.ask(&budget, MIB).is_err());
    let ticket = pool.ticket();
    pool.observe(&budget, ticket, Reading { reserved: 32 * MIB, used: Some(8 * MIB) }, |_| ());
    assert!(pool.ask_again(&budget, MIB).is_ok());
}

/// Two blocks fill a step to the last byte. The driver's figure is 1022 bytes lower, and by it
/// a third block would fit: the pool would grow past the cap.
#[test]
fn the_drivers_figure_without_padding_does_not_let_a_request_pass() {
    let (budget, pool) = (Budget::capped(32 * MIB), Growth::default());
    let size = 16 * MIB - 511;
    for blocks in 1..=2 {
        pool.ask(&budget, size).unwrap();
        let reading = read(&pool, 32 * MIB, blocks * size);
        pool.finish(&budget, size, true, reading, |_| ());
    }
    let ticket = pool.ticket();
    let reading = Reading { reserved: 32 * MIB, used: Some(2 * size) };
    pool.observe(&budget, ticket, reading, |_| ());
    assert!(pool.ask(&budget, 1).is_err());
    assert!(pool.ask_again(&budget, 1).is_err());
    // The driver has freed one, which is not reported here yet.
    let ticket = pool.ticket();
    pool.observe(&budget, ticket, Reading { reserved: 32 * MIB, used: Some(size) }, |_| ());
    assert!(pool.ask_again(&budget, 1).is_ok());
}

#[test]
fn padding_goes_with_its_block_whichever_thread_took_it() {
    let (budget, pool) = (Budget::capped(32 * MIB), Growth::default());
    let held = |used: u64| pool.lock().used_in_driver() - used;
    pool.allocated(100);
    pool.ask(&budget, 513).unwrap();
    pool.finish(&budget, 513, true, read(&pool, 32 * MIB, 613), |_| ());
    assert_eq!(held(613), 412 + 511);
    pool.freed(100);
    assert_eq!(held(613), 511);
    pool.freed(513);
    assert_eq!((held(613), pool.known().1), (0, 0));
}

#[test]
fn threads_lose_nothing() {
    let (budget, pool) = (Budget::capped(96 * MIB), Growth::default());
    let refused = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (budget, pool, refused) = (&budget, &pool, &refused);
            scope.spawn(move || {
                for turn in 0..20_000u64 {
                    let size = ((turn * 7 + thread) % 20 + 1) * MIB;
                    match pool.ask(budget, size) {
                        Err(_) => {
                            refused.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        }
                        Ok(_) => {
                            assert!(budget.counted() <= 96 * MIB);
                            let got = turn % 5 != 0;
                            pool.finish(budget, size, got, None, |_| ());
                            if got {
                                pool.freed(size);
                            }
                        }
                    }
                }
            });
        }
    });
    let ticket = pool.ticket();
    pool.observe(&budget, ticket, Reading { reserved: 0, used: Some(0) }, |_| ());
    assert_eq!((pool.known(), budget.counted()), ((0, 0), 0));
}

#[test]
fn it_is_looked_at_once_in_a_while() {
    let pool = Growth::default();
    assert!(pool.is_due(LOOK_EVERY_NS));
    assert!(!pool.is_due(LOOK_EVERY_NS + 5));
    assert!(pool.is_due(2 * LOOK_EVERY_NS));
}
