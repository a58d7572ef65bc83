//! A stderr that takes nothing, or signals who writes to it, is no matter for the program: our
//! lines and the post-mortem are dropped there.

use testkit::{Program, Run, Setup};

/// A program that gets one line on stderr and then, at its end, a post-mortem.
#[track_caller]
fn same_as_bare(how: &str) -> Run {
    let program = Program::c("families");
    let around = Program::c("bad_stderr");
    let setup = || Setup::simulated().arg(how).arg(program.0.display()).arg("device");
    let bare = around.run(setup()).ok();
    let ours = around.run(setup().preload().env("VRAMTRACE_MAX", "nonsense"));
    assert_eq!(ours.status, 0, "{how}: {}", ours.stderr);
    assert_eq!(ours.stdout, bare.stdout, "{how}");
    ours
}

#[test]
fn a_file_at_its_size_limit() {
    same_as_bare("limit");
}

#[test]
fn a_full_pipe() {
    same_as_bare("full-pipe");
}

#[test]
fn a_full_socket() {
    same_as_bare("full-socket");
}

#[test]
fn a_terminal_that_stops_background_writers() {
    let ours = same_as_bare("background");
    assert_eq!(ours.stderr, "came through 2\n", "the line and the post-mortem");
}

#[test]
fn a_terminal_whose_output_is_stopped() {
    same_as_bare("flow");
}
