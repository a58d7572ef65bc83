//! Requests that a device's totals are written, and calls about its blocks that are passed until then.

use loom::sync::Arc;
use loom::thread;

use super::few_switches;
use crate::model::totals_due::{Met, Passing, Request};

struct Device {
    request: Request,
    met: Met,
    passing: Passing,
}

impl Device {
    /// A call about a block, as `torch_samples` makes it. Returns whether it writes the totals.
    fn call(&self) -> bool {
        if self.passing.may() {
            return false;
        }
        self.passing.allow();
        self.request.is_new(&self.met)
    }

    fn ask(&self) {
        self.request.ask();
        self.passing.stop();
    }
}

/// Calls come while threads make so many requests each. The call after all of them, or one meanwhile, meets the last.
fn each_request_is_met(calls: usize, requests: &'static [usize]) {
    few_switches(3, move || {
        let (request, passing) = (Request::default(), Passing::default());
        let device = Arc::new(Device { request, met: Met::default(), passing });
        assert!(device.call() && !device.call(), "the first call alone");
        let threads: Vec<_> = requests
            .iter()
            .map(|requests| {
                let device = device.clone();
                thread::spawn(move || (0..*requests).for_each(|_| device.ask()))
            })
            .collect();
        let written = (0..calls).filter(|_| device.call()).count();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let requests = requests.iter().sum();
        let after = usize::from(device.call());
        assert!(written + after >= 1, "a request was not met");
        assert!(written + after <= requests);
        // What was met is the last request: none is new.
        assert!(!device.request.is_new(&device.met), "the last request was not met");
    });
}

#[test]
fn a_request_that_calls_do_not_see_stops_the_next_one() {
    each_request_is_met(2, &[1]);
}

#[test]
fn of_requests_in_a_row_the_last_is_met() {
    each_request_is_met(2, &[2]);
}

#[test]
fn of_requests_of_two_threads_the_last_is_met() {
    each_request_is_met(2, &[1, 1]);
}
