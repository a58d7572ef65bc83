//! All orders in which three threads can pass through [`Growth`] and a pool of the driver's: what
//! the pool reserves is never more than what is counted, and that never more than the cap.
//!
//! Each thread is a row of steps. A step is one visit to `Growth` or to the driver, as the hooks
//! make them; between any two steps any other thread may run.

use super::*;
use std::collections::HashSet;
use vramtrace_format::physical::{MIB, POOL_STEP, round_up};

/// The driver's pool: grows in steps, gives back when it is synchronised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Driver {
    reserved: u64,
    /// Of live blocks, with and without padding.
    taken: u64,
    requested: u64,
}

impl Driver {
    fn alloc(&mut self, size: u64) {
        self.taken += block(size);
        self.requested += size;
        self.reserved = self.reserved.max(round_up(self.taken, POOL_STEP));
    }

    fn free(&mut self, size: u64) {
        self.taken -= block(size);
        self.requested -= size;
    }

    fn synchronize(&mut self) {
        self.reserved = round_up(self.taken, POOL_STEP);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Ask(u64),
    /// After a refusal and a look. Refused again: the thread leaves the rest out.
    AskAgain(u64),
    AskByDriver(u64),
    Alloc(u64),
    BeginAfter,
    Begin,
    BeginByDriver,
    ReadReserved,
    ReadUsed,
    Finish(u64),
    /// During a capture: nothing may be read.
    FinishUnread(u64),
    /// The driver refused.
    Failed(u64),
    /// A graph's: only the driver knows its blocks.
    Launched(u64),
    Observe,
    Free(u64),
    Freed(u64),
    Synchronize,
}
use Step::*;

/// cuMemAllocAsync, with a look before it asks again, and cuMemFreeAsync. After the request only the reserve is read.
fn block_of(size: u64) -> Vec<Step> {
    let look = [Begin, ReadReserved, ReadUsed, Observe];
    let call = [Alloc(size), BeginAfter, ReadReserved, Finish(size)];
    let mut steps = vec![Ask(size)];
    steps.extend(look);
    steps.push(AskAgain(size));
    steps.extend(call);
    steps.extend([Free(size), Freed(size)]);
    steps
}

/// As `block_of`, while a stream is captured.
fn unread_block_of(size: u64) -> Vec<Step> {
    vec![Ask(size), AskAgain(size), Alloc(size), FinishUnread(size), Free(size), Freed(size)]
}

fn failed_block_of(size: u64) -> Vec<Step> {
    vec![Ask(size), AskAgain(size), Failed(size)]
}

/// cuGraphLaunch of a graph that takes memory, and the free of what it took.
fn graph_of(size: u64) -> Vec<Step> {
    let reads = [BeginByDriver, ReadReserved, ReadUsed];
    let mut steps = [&reads[..], &[Observe, AskByDriver(size), Alloc(size)]].concat();
    steps.extend(reads);
    steps.extend([Launched(size), Free(size)]);
    steps
}

fn trim() -> Vec<Step> {
    vec![Synchronize, BeginByDriver, ReadReserved, ReadUsed, Observe]
}

fn synchronize() -> Vec<Step> {
    vec![Synchronize, Begin, ReadReserved, ReadUsed, Observe]
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Thread {
    at: usize,
    asked: u64,
    ticket: u64,
    reserved: u64,
    used: Option<u64>,
}

/// All that there is between two steps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    state: State,
    counted: u64,
    driver: Driver,
    threads: Vec<Thread>,
}

struct Model {
    limit: u64,
    programs: Vec<Vec<Step>>,
    seen: HashSet<World>,
    /// Threads that ran, to reach what is looked at.
    schedule: Vec<usize>,
    granted_again: bool,
    refused: bool,
    read_as_asked: bool,
    read_as_later: bool,
}

impl Model {
    fn check(limit: u64, programs: Vec<Vec<Step>>) -> Model {
        let mut model = Model {
            limit,
            seen: HashSet::new(),
            schedule: Vec::new(),
            granted_again: false,
            refused: false,
            read_as_asked: false,
            read_as_later: false,
            programs,
        };
        let threads = vec![Thread::default(); model.programs.len()];
        let (state, driver) = (State::default(), Driver::default());
        model.explore(World { state, counted: 0, driver, threads });
        model
    }

    fn explore(&mut self, world: World) {
        if !self.seen.insert(world.clone()) {
            return;
        }
        for thread in 0..self.programs.len() {
            if world.threads[thread].at < self.programs[thread].len() {
                self.schedule.push(thread);
                let next = self.step(world.clone(), thread);
                self.explore(next);
                self.schedule.pop();
            }
        }
    }

    fn step(&mut self, mut world: World, thread: usize) -> World {
        let budget = Budget::default();
        budget.set_limit(Some(self.limit));
        budget.charge(world.counted as i64);
        let growth = Growth {
            begun: AtomicU64::new(world.state.begun),
            state: Lock::new(world.state),
            counted: AtomicI64::new(world.state.counted),
            padding: AtomicI64::new(world.state.padding),
            reserved: AtomicU64::new(world.state.reserved),
            looked_ns: AtomicU64::default(),
        };
        let (budget, program) = (&budget, &self.programs[thread]);
        let (me, driver) = (&mut world.threads[thread], &mut world.driver);
        let reading = (Ticket(me.ticket), Reading { reserved: me.reserved, used: me.used });
        let step = program[me.at];
        me.at += 1;
        match step {
            Ask(size) => {
                if let Ok(asked) = growth.ask(budget, size) {
                    me.asked = asked.0;
                    me.at = program.iter().position(|step| *step == AskAgain(size)).unwrap() + 1;
                }
            }
            AskAgain(size) | AskByDriver(size) => {
                let outcome = match step {
                    AskAgain(_) => growth.ask_again(budget, size),
                    _ => growth.ask_by_driver(budget, size),
                };
                match outcome {
                    Ok(asked) => (me.asked, self.granted_again) = (asked.0, true),
                    Err(_) => (me.at, self.refused) = (program.len(), true),
                }
            }
            Alloc(size) => driver.alloc(size),
            BeginAfter => {
                let ticket = growth.ticket_after(Ticket(me.asked));
                self.read_as_asked |= ticket.0 == me.asked;
                self.read_as_later |= ticket.0 != me.asked;
                me.ticket = ticket.0;
            }
            Begin => me.ticket = growth.ticket().0,
            BeginByDriver => me.ticket = growth.ticket_by_driver().0,
            ReadReserved => me.reserved = driver.reserved,
            ReadUsed => me.used = Some(driver.requested),
            Finish(size) => growth.finish(budget, size, true, Some(reading), |_| ()),
            FinishUnread(size) => growth.finish(budget, size, true, None, |_| ()),
            Failed(size) => growth.finish(budget, size, false, None, |_| ()),
            Launched(size) => growth.finish(budget, size, false, Some(reading), |_| ()),
            Observe => growth.observe(budget, reading.0, reading.1, |_| ()),
            Free(size) => driver.free(size),
            Freed(size) => growth.freed(size),
            Synchronize => driver.synchronize(),
        }
        // What was read is of no use any more: fewer worlds.
        if matches!(step, Finish(_) | Launched(_) | Observe) {
            *me = Thread { at: me.at, ..Thread::default() };
        }
        world.counted = budget.counted();
        world.state = *growth.lock();
        let (reserved, counted, limit) = (world.driver.reserved, world.counted, self.limit);
        assert!(
            reserved <= counted && counted <= limit,
            "reserved {reserved}, counted {counted}, cap {limit} after {:?}: {world:?}",
            self.schedule
        );
        world
    }
}

#[test]
fn a_pool_never_grows_past_what_is_counted() {
    let programs = vec![block_of(20 * MIB), block_of(30 * MIB), synchronize()];
    let model = Model::check(64 * MIB, programs);
    assert!(model.seen.len() > 5_000, "{}", model.seen.len());
    assert!(model.read_as_asked && model.read_as_later);
}

#[test]
fn nor_where_requests_are_refused_and_asked_again() {
    let programs = vec![block_of(20 * MIB), block_of(16 * MIB), block_of(30 * MIB)];
    let model = Model::check(64 * MIB, programs);
    assert!(model.granted_again && model.refused);
}

#[test]
fn the_bytes_that_rounding_adds_stay_within_the_limit() {
    let half = 16 * MIB - 511;
    let model = Model::check(32 * MIB, vec![block_of(half), block_of(half), block_of(1)]);
    assert!(model.granted_again && model.refused);
}

#[test]
fn nor_where_a_request_fails_or_nothing_can_be_read() {
    let blocks = [failed_block_of(30 * MIB), unread_block_of(20 * MIB), unread_block_of(33 * MIB)];
    let model = Model::check(64 * MIB, blocks.to_vec());
    assert!(model.refused);
    let blocks = [failed_block_of(30 * MIB), block_of(20 * MIB), block_of(33 * MIB)];
    assert!(Model::check(64 * MIB, blocks.to_vec()).refused);
}

#[test]
fn nor_does_graph_memory() {
    let model = Model::check(64 * MIB, vec![graph_of(20 * MIB), graph_of(30 * MIB), trim()]);
    assert!(model.granted_again);
    let graphs = [graph_of(20 * MIB), graph_of(16 * MIB), graph_of(30 * MIB)];
    assert!(Model::check(64 * MIB, graphs.to_vec()).refused);
}
