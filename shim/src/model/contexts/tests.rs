//! How contexts come and end.

use super::*;

const GPU: DeviceId = DeviceId(0);

fn at(handle: u64) -> Arrival {
    Arrival { handle, device: GPU, time_ns: 0, stack: StackId(0) }
}

fn ends(step: Step) -> Ending {
    match step {
        Step::Ends(ending) => *ending,
        other => panic!("it should end: {other:?}"),
    }
}

fn live(s: &Contexts) -> usize {
    s.state.lock().on(GPU).count()
}

fn lives_on(step: Step) -> bool {
    matches!(step, Step::LivesOn(_))
}

#[test]
fn a_primary_context_ends_at_the_last_release() {
    let s = Contexts::default();
    let first = s.arrive(at(10), By::Retain, |_| ());
    assert!(first.new);
    assert_eq!(s.arrive(at(10), By::Retain, |_| ()), Seen { new: false, ..first });
    assert!(lives_on(s.begin_release(GPU)));
    assert_eq!(ends(s.begin_release(GPU)).context.id, first.target.context);
    assert_eq!(s.begin_release(GPU), Step::Unknown);
    // The same handle again is another context.
    let second = s.arrive(at(10), By::Retain, |_| ());
    assert!(second.new && second.target != first.target);
}

#[test]
fn a_primary_context_that_is_used_again_after_a_reset_is_still_the_primary() {
    let s = Contexts::default();
    s.arrive(at(10), By::Retain, |_| ());
    for _ in 0..3 {
        ends(s.begin_reset(GPU));
        assert!(s.is_ended_primary(10));
        assert!(s.arrive(at(10), By::Use, |_| ()).new && s.primary_on(GPU).is_some());
        assert_eq!(s.begin_destroy(10), Step::Unknown);
    }
    ends(s.begin_release(GPU));
    assert_eq!(live(&s), 0);
}

#[test]
fn a_created_context_is_no_primary_whatever_its_handle() {
    let s = Contexts::default();
    s.arrive(at(10), By::Retain, |_| ());
    ends(s.begin_release(GPU));
    let seen = s.arrive(at(10), By::Creation, |_| ());
    assert!(seen.new && s.primary_on(GPU).is_none());
    s.refer(Reference::Green(77, GPU));
    assert!(s.arrive(at(11), By::Creation, |_| ()).new);
    ends(s.begin_destroy(10));
    ends(s.begin_destroy(11));
}

#[test]
fn a_green_context_that_is_used_first_is_the_primary() {
    let s = Contexts::default();
    s.refer(Reference::Green(77, GPU));
    let seen = s.arrive(at(78), By::Use, |_| ());
    assert!(seen.new && s.primary_on(GPU) == Some((78, 0)));
    assert_eq!(s.arrive(at(10), By::Retain, |_| ()), Seen { new: false, ..seen });
    assert!(lives_on(s.begin_green_destroy(77)));
    let ending = ends(s.begin_release(GPU));
    assert_eq!(ending.handles().collect::<Vec<_>>(), [78, 10]);
}

#[test]
fn a_reset_ends_it_and_keeps_the_references() {
    let s = Contexts::default();
    s.arrive(at(10), By::Retain, |_| ());
    ends(s.begin_reset(GPU));
    assert_eq!(s.begin_reset(GPU), Step::Unknown);
    assert!(s.arrive(at(10), By::Retain, |_| ()).new);
    assert!(lives_on(s.begin_release(GPU)));
    ends(s.begin_release(GPU));
}

#[test]
fn a_release_after_a_reset_ends_nothing_and_is_counted() {
    let s = Contexts::default();
    s.arrive(at(10), By::Retain, |_| ());
    ends(s.begin_reset(GPU));
    assert!(lives_on(s.begin_release(GPU)));
    s.arrive(at(10), By::Retain, |_| ());
    ends(s.begin_release(GPU));
}

#[test]
fn a_failed_release_puts_it_back() {
    let s = Contexts::default();
    let seen = s.arrive(at(10), By::Retain, |_| ());
    let ending = ends(s.begin_release(GPU));
    assert_eq!(live(&s), 0);
    s.put_back(Step::Ends(Box::new(ending)));
    assert_eq!(s.arrive(at(10), By::Use, |_| ()), Seen { new: false, ..seen });
    ends(s.begin_release(GPU));
}

#[test]
fn created_contexts_end_by_destroy_or_the_last_detach() {
    let s = Contexts::default();
    s.arrive(at(10), By::Use, |_| ());
    s.arrive(at(11), By::Use, |_| ());
    assert_eq!(live(&s), 2);
    ends(s.begin_destroy(10));
    assert_eq!(s.begin_destroy(10), Step::Unknown);
    s.refer(Reference::Attached(11));
    assert_eq!(s.begin_detach(11), Step::LivesOn(Reference::Attached(11)));
    s.put_back(Step::LivesOn(Reference::Attached(11)));
    assert!(lives_on(s.begin_detach(11)));
    ends(s.begin_detach(11));
    assert_eq!(live(&s), 0);
}

#[test]
fn a_primary_context_is_not_destroyed_by_handle() {
    let s = Contexts::default();
    s.arrive(at(10), By::Retain, |_| ());
    assert_eq!(s.begin_destroy(10), Step::Unknown);
    assert_eq!(s.begin_detach(10), Step::Unknown);
    assert_eq!(live(&s), 1);
}

#[test]
fn a_green_context_keeps_the_primary_alive_and_shares_its_memory() {
    let s = Contexts::default();
    let primary = s.arrive(at(10), By::Retain, |_| ());
    s.refer(Reference::Green(77, GPU));
    assert_eq!(s.arrive(at(78), By::Use, |_| ()).target, primary.target);
    assert!(lives_on(s.begin_release(GPU)));
    let ending = ends(s.begin_green_destroy(77));
    assert_eq!(ending.handles().collect::<Vec<_>>(), [10, 78]);
    s.put_back(Step::Ends(Box::new(ending)));
    ends(s.begin_green_destroy(77));
}

#[test]
fn a_context_met_before_its_retain_becomes_the_primary() {
    let s = Contexts::default();
    let seen = s.arrive(at(10), By::Use, |_| ());
    assert_eq!(s.arrive(at(10), By::Retain, |_| ()), Seen { new: false, ..seen });
    ends(s.begin_release(GPU));
}

#[test]
fn ids_of_ended_contexts_are_given_to_others_of_the_device_and_kind() {
    let s = Contexts::default();
    for _ in 0..100_000 {
        assert_eq!(s.arrive(at(10), By::Creation, |_| ()).target.context, ContextId(1));
        let ending = ends(s.begin_destroy(10));
        s.retire(&ending);
    }
    assert_eq!(s.arrive(at(20), By::Retain, |_| ()).target.context, ContextId(2), "a primary one");
    let other = Arrival { device: DeviceId(1), ..at(30) };
    assert_eq!(
        s.arrive(other, By::Creation, |_| ()).target.context,
        ContextId(3),
        "another device"
    );
    assert_eq!(s.arrive(at(10), By::Creation, |_| ()).target.context, ContextId(1));
}

#[test]
fn more_than_65_535_live_contexts_are_not_followed() {
    let s = Contexts::default();
    s.state.lock().last = u16::MAX - 1;
    assert_eq!(s.arrive(at(10), By::Use, |_| ()).target.context, ContextId(u16::MAX));
    assert!(!s.overflow_reported.load(Ordering::Relaxed));
    assert_eq!(s.arrive(at(11), By::Use, |_| ()).target.context, ContextId(0));
    assert!(s.overflow_reported.load(Ordering::Relaxed));
    assert_eq!(s.begin_destroy(11), Step::Unknown);
}
