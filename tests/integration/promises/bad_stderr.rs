//! A stderr that takes nothing, or signals who writes to it, is no matter for the program: our
//! lines and the post-mortem are dropped there.

use testkit::{Program, Setup};

/// A file at its size limit, a full pipe and socket, a terminal that stops background writers, and one whose output is
/// stopped: for a program that gets one line on stderr and then, at its end, a post-mortem.
#[test]
fn a_stderr_that_takes_nothing_changes_nothing() {
    let (program, around) = (Program::c("families"), Program::c("bad_stderr"));
    for how in ["limit", "full-pipe", "full-socket", "background", "flow"] {
        let setup = Setup::simulated().arg(how).arg(program.0.display()).arg("device");
        let bad_value = |setup: Setup| setup.preload().env("VRAMTRACE_MAX", "nonsense");
        let ours = around.as_bare(setup, bad_value).ok();
        if how == "background" {
            assert_eq!(ours.stderr, "came through 2\n", "the line and the post-mortem");
        }
    }
}
