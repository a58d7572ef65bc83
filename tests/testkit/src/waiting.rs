//! Waits for what must come to pass, and looks whether the system lets a test do what it needs.

use std::fmt::Debug;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::skip_here;

/// What `ask` says once `done` finds it right. Fails after ten minutes.
#[track_caller]
pub fn eventually<T: Debug>(mut ask: impl FnMut() -> T, done: impl Fn(&T) -> bool) -> T {
    let began = Instant::now();
    loop {
        let found = ask();
        if done(&found) {
            return found;
        }
        assert!(began.elapsed() < Duration::from_secs(600), "it did not come to pass: {found:#?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether programs can be run through this launcher, as a message says if not.
pub fn permitted(launcher: &[&str]) -> bool {
    let ran = Command::new(launcher[0]).args(&launcher[1..]).arg("true").output();
    let permitted = ran.is_ok_and(|ran| ran.status.success());
    if !permitted {
        skip_here(&format!("{} is not permitted", launcher.join(" ")));
    }
    permitted
}
