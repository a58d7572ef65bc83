use super::*;

const NONE: ActivitySet = ActivitySet(0);

fn by(doing: DriverActivity) -> Option<Followed> {
    Some(doing.into())
}

/// The call that instantiated a graph, by its stack.
fn line(stack: u32) -> Originator {
    Originator { stack: StackId(stack), ..Originator::unnamed(Cause::Graphs) }
}

fn graph(stack: u32) -> Followed {
    Followed { doing: DriverActivity::Graphs, originator: Some(line(stack)) }
}

#[test]
fn what_shows_late_belongs_to_the_line_that_instantiated_the_graph() {
    let mut account = DriverInternal::default();
    let late = account.settle(2, Some(graph(1)), NONE, true);
    assert_eq!(late, Attribution::ByOriginator(line(1), 2));
    // Calls that no reading followed, all for graphs of one line.
    account.wait(graph(1));
    account.wait(graph(1));
    let late = account.settle(6, Some(graph(1)), NONE, true);
    assert_eq!(late, Attribution::ByOriginator(line(1), 4));
    account.wait(graph(1));
    assert_eq!(account.settle(8, None, NONE, true), Attribution::ByOriginator(line(1), 2));
    // An inexact reading leaves them for the next.
    account.wait(graph(1));
    account.settle(8, None, NONE, false);
    assert_eq!(account.settle(9, None, NONE, true), Attribution::ByOriginator(line(1), 1));
    assert_eq!(account.settle(10, None, NONE, true), Attribution::Nothing);
}

#[test]
fn calls_of_one_line_in_a_row_are_counted_until_another_comes() {
    let mut account = DriverInternal::default();
    assert_eq!([graph(1), graph(1), graph(2)].map(|call| account.in_a_row(call)), [1, 2, 1]);
    let unknown = Followed::from(DriverActivity::Loading);
    assert_eq!([unknown, unknown, graph(2)].map(|call| account.in_a_row(call)), [1, 1, 1]);
    // What waits is told apart from another line's by a reading before that line's call.
    assert!(!account.waits() && !account.waits_for_other(graph(1)));
    account.wait(graph(1));
    assert!(account.waits() && !account.waits_for_other(graph(1)));
    assert!(account.waits_for_other(graph(2)) && account.waits_for_other(unknown));
    account.wait(graph(2));
    assert!(!account.waits_for_other(graph(1)), "they cannot be told apart any more");
}

#[test]
fn graphs_of_several_lines_are_never_one_lines() {
    let mut account = DriverInternal::default();
    let graphs = |bytes| Attribution::BySome(Cause::Graphs, bytes);
    account.wait(graph(1));
    account.wait(graph(2));
    assert_eq!(account.settle(2, None, NONE, true), graphs(2));
    account.wait(graph(1));
    assert_eq!(account.settle(4, Some(graph(2)), NONE, true), graphs(2));
    // A graph whose line is not known.
    account.wait(DriverActivity::Graphs.into());
    assert_eq!(account.settle(6, Some(graph(1)), NONE, true), graphs(2));
    account.wait(DriverActivity::Loading.into());
    let other = account.settle(8, Some(graph(1)), NONE, true);
    assert_eq!(other, Attribution::BySome(Cause::Other, 2));
}

#[test]
fn graph_calls_at_once_have_no_line() {
    let graphs = NONE.with(DriverActivity::Graphs);
    let mut account = DriverInternal::default();
    let found = account.settle(2, Some(graph(1)), graphs, true);
    assert_eq!(found, Attribution::BySome(Cause::Graphs, 2));
    let found = account.settle(4, Some(graph(1)), graphs.with(DriverActivity::Loading), true);
    assert_eq!(found, Attribution::BySome(Cause::Other, 2));
    let alone = account.settle(6, Some(graph(1)), NONE, true);
    assert_eq!(alone, Attribution::ByOriginator(line(1), 2));
}

#[test]
fn a_destroyed_graph_gives_back_its_own_lines_bytes() {
    let mut account = DriverInternal::default();
    account.add(line(1), 6);
    account.add(line(2), 2);
    let mut given_back = Vec::new();
    account.give_back(2, Some(graph(1)), |maker, bytes| given_back.push((maker.stack.0, bytes)));
    assert_eq!(given_back, [(1, 2)]);
}

fn maker(cause: Cause, context: u16) -> Originator {
    Originator { context: ContextId(context), ..Originator::unnamed(cause) }
}

#[test]
fn what_shows_after_a_call_is_its_own() {
    let mut account = DriverInternal::default();
    assert_eq!(account.settle(0, by(DriverActivity::Loading), NONE, true), Attribution::Nothing);
    assert_eq!(account.settle(6, by(DriverActivity::Loading), NONE, true), Attribution::ByCall(6));
    account.add(maker(Cause::Modules, 1), 6);
    assert_eq!(account.settle(6, by(DriverActivity::Streams), NONE, true), Attribution::Nothing);
    assert_eq!(account.settle(8, by(DriverActivity::Streams), NONE, true), Attribution::ByCall(2));
}

#[test]
fn what_shows_after_no_call_is_unknown_and_never_named_later() {
    let mut account = DriverInternal::default();
    assert_eq!(account.settle(10, None, NONE, true), Attribution::Nothing);
    assert_eq!(
        account.settle(12, by(DriverActivity::Launching), NONE, true),
        Attribution::ByCall(2)
    );
    account.add(maker(Cause::Modules, 1), 2);
    // The unknown goes first.
    assert_eq!(account.settle(2, None, NONE, true), Attribution::Nothing);
    assert_eq!(account.settle(1, None, NONE, true), Attribution::Less(1));
}

#[test]
fn calls_at_once_are_reported_as_what_they_have_in_common() {
    let loading = NONE.with(DriverActivity::Loading);
    let mut account = DriverInternal::default();
    // A reading by another thread during a call leaves the growth to that call.
    assert_eq!(account.settle(4, None, loading, true), Attribution::Nothing);
    assert_eq!(account.settle(4, by(DriverActivity::Loading), NONE, true), Attribution::ByCall(4));
    let some = account.settle(5, by(DriverActivity::Loading), loading, true);
    assert_eq!(some, Attribution::BySome(Cause::Modules, 1));
    let some = account.settle(7, by(DriverActivity::Streams), loading, true);
    assert_eq!(some, Attribution::BySome(Cause::Other, 2));
    let launching = NONE.with(DriverActivity::Launching);
    let some = account.settle(9, by(DriverActivity::Launching), launching, true);
    assert_eq!(some, Attribution::BySome(Cause::Other, 2), "code or local memory");
}

#[test]
fn what_waits_is_reported_by_the_next_reading() {
    let mut account = DriverInternal::default();
    account.wait(DriverActivity::Streams.into());
    assert_eq!(account.settle(2, None, NONE, true), Attribution::BySome(Cause::Streams, 2));
    account.wait(DriverActivity::Streams.into());
    account.wait(DriverActivity::Loading.into());
    assert_eq!(account.settle(4, None, NONE, true), Attribution::BySome(Cause::Other, 2));
    account.wait(DriverActivity::Streams.into());
    let some = account.settle(6, by(DriverActivity::Sharing), NONE, true);
    assert_eq!(some, Attribution::BySome(Cause::Other, 2));
    // An allocation under way hid some of it.
    assert_eq!(account.settle(6, by(DriverActivity::Loading), NONE, false), Attribution::Nothing);
    assert_eq!(account.settle(8, None, NONE, true), Attribution::BySome(Cause::Modules, 2));
    assert_eq!(account.settle(10, None, NONE, true), Attribution::Nothing);
}

#[test]
fn a_call_gives_its_own_back_and_nothing_goes_below_zero() {
    let mut account = DriverInternal::default();
    account.settle(20, None, NONE, true);
    for (cause, bytes) in [(Cause::Modules, 4), (Cause::Streams, 2), (Cause::Modules, 6)] {
        let name = bytes as u32;
        account.add(Originator { name, ..maker(cause, 1) }, bytes);
    }
    // 8 are unknown; the unload gives back a module all the same.
    assert_eq!(account.settle(16, by(DriverActivity::Loading), NONE, true), Attribution::Less(4));
    let mut given_back = Vec::new();
    account.give_back(4, by(DriverActivity::Loading), |maker, bytes| {
        given_back.push((maker.name, bytes))
    });
    assert_eq!(given_back, [(4, 4)], "who took exactly so much");
    account.give_back(100, by(DriverActivity::Loading), |maker, bytes| {
        given_back.push((maker.name, bytes))
    });
    assert_eq!(given_back, [(4, 4), (6, 6), (2, 2)]);
    assert_eq!((account.of(Cause::Modules), account.named()), (0, 0));
    assert_eq!(account.makers().len(), 0);
}

#[test]
fn with_a_context_goes_what_was_taken_in_it() {
    let mut account = DriverInternal::default();
    account.add(maker(Cause::Modules, 1), 4);
    account.add(maker(Cause::LocalMemory, 2), 8);
    account.add(maker(Cause::Streams, 1), 2);
    let mut freed = 0;
    account.context_ended(ContextId(1), |_, bytes| freed += bytes);
    assert_eq!((freed, account.named()), (6, 8));
}

#[test]
fn many_makers_share_a_line() {
    let mut account = DriverInternal::default();
    for name in 0..2 * MOST as u32 {
        account.add(Originator { name, ..maker(Cause::Modules, 1) }, 1);
    }
    assert_eq!(account.of(Cause::Modules), 2 * MOST as u64);
    assert!(account.makers().len() <= MOST + 1 && account.has_overflowed());
}
