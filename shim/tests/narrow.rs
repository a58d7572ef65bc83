//! Calls of the first generation, with 32-bit outputs, and a driver on which everything fails:
//! results, outputs and errno are the driver's own; a cap refuses without touching an output.

mod support;

use support::{Scratch, command, shim, text};

struct First {
    dir: Scratch,
    program: std::path::PathBuf,
}

impl First {
    fn new() -> First {
        let dir = Scratch::new();
        let soname = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"];
        dir.compile("narrow", "libcuda.so.1", &soname);
        let program = dir.compile("first", "first", &["-L.", "-l:libcuda.so.1"]);
        First { dir, program }
    }

    fn run(&self, arguments: &[&str], variables: &[(&str, &str)]) -> String {
        let mut command = command(&self.program, &self.dir.0);
        command.args(arguments).envs(variables.iter().copied());
        text(&command.output().unwrap())
    }
}

#[test]
fn all_answers_are_the_drivers_own() {
    let first = First::new();
    let shim = shim();
    let shim = shim.to_str().unwrap();
    let bare = first.run(&[], &[]);
    assert!(bare.ends_with("exit status: 0\n") && !bare.contains("AND MORE"), "{bare}");
    for out in ["off", "trace.vtrace"] {
        let ours = first.run(&[], &[("LD_PRELOAD", shim), ("VRAMTRACE_OUT", out)]);
        assert!(ours == bare, "got\n{ours}\nexpected\n{bare}");
    }
    // A wide cap changes no answer either: 3 GiB on a device of 3 GiB.
    let wide = first.run(&[], &[("LD_PRELOAD", shim), ("VRAMTRACE_CAP", "100%")]);
    assert!(wide == bare, "got\n{wide}\nexpected\n{bare}");
}

#[test]
fn a_cap_refuses_and_touches_nothing() {
    let first = First::new();
    let shim = shim();
    let shim = shim.to_str().unwrap();
    let capped = first.run(&["show"], &[("LD_PRELOAD", shim), ("VRAMTRACE_CAP", "64MiB")]);
    let (well, broken) = capped.split_at(capped.match_indices("\nalloc = ").nth(1).unwrap().0);
    for line in [
        "alloc = 0, errno 77, set\n",
        "large = 2, errno 77, untouched\n",
        "large pitch = 2, errno 77, untouched, untouched\n",
        "pitch = 0, errno 77, set, set\n",
        "free 64 MiB of 64\n",
        "total 64 MiB\n",
    ] {
        assert!(well.contains(line), "{line}{well}");
    }
    assert!(!capped.contains("AND MORE"), "{capped}");
    // What the cap cannot give it refuses first; all else is the driver's failure.
    assert!(broken.contains("alloc = 700, errno 77, untouched\n"), "{broken}");
    assert!(broken.contains("info = 700, errno 77, untouched, untouched\n"), "{broken}");
}
