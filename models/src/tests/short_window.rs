//! The window of short records, and the ends of what allows it.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use super::few_switches;
use crate::short_window::ShortWindow;

static WINDOWS: [u8; 2] = [0; 2];

/// Threads begin, each with a window of its own, while another ends the state, and perhaps the same or another goes on again.
fn check(threads: usize, resumes: bool) {
    few_switches(3, move || {
        let shared = Arc::new((ShortWindow::default(), AtomicBool::new(true)));
        let begin = |number: usize| {
            let shared = shared.clone();
            thread::spawn(move || {
                let (window, running) = &*shared;
                window.begin(|| running.load(Ordering::Acquire).then_some(&WINDOWS[number]));
            })
        };
        let begun: Vec<_> = (0..threads).map(begin).collect();
        let (window, running) = &*shared;
        running.store(false, Ordering::Release);
        window.end();
        if resumes {
            running.store(true, Ordering::Release);
            running.store(false, Ordering::Release);
            window.end();
        }
        begun.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(window.get().is_none(), "events go to a window after the end");
    });
}

#[test]
fn no_window_stays_after_the_end() {
    check(1, false);
    check(2, false);
}

#[test]
fn no_window_stays_after_a_second_end() {
    check(1, true);
}
