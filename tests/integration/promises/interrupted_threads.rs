//! A thread may be interrupted anywhere in a call for as long as others take to write checkpoints: the trace agrees with itself.

use testkit::torch_stand_ins::libraries;
use testkit::{Program, Setup, vramtrace};

#[test]
fn a_trace_of_interrupted_threads_agrees_with_itself() {
    let program = Program::c_with("interrupted", &["-rdynamic"]);
    let setup = Setup::simulated().preload().arg(libraries().join("libc10_cuda.so").display());
    let setup = setup.env("VRAMTRACE_MAX", "4MiB").env("VRAMTRACE_TEST_CLOCK", "1");
    let run = program.run(setup).ok();
    assert_eq!(run.stderr, "");
    let output = vramtrace().arg("verify").arg(run.only_trace()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains(": holds"), "{text}");
    assert!(!text.contains(" 0 checkpoints"), "{text}");
}
