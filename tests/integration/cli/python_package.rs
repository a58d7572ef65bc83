//! `import vramtrace` from the source tree, under the recorder, in every Python that is installed. The
//! rest of the package is tested as it is installed: `packaging/test-wheel.sh`.

use std::collections::BTreeSet;

use serde_json::Value;
use testkit::{
    Program, Said, Scratch, Setup, SharedMemory, pythons, repository, torch_stand_ins, vramtrace,
};

/// The package, and a script of tests/python.
fn setup(setup: Setup, script: &str) -> Setup {
    let setup = setup.env("PYTHONPATH", repository().join("python"));
    let script = repository().join("tests/python").join(script);
    setup.env("PYTHONDONTWRITEBYTECODE", "1").arg(script.display())
}

#[test]
fn every_python_sees_its_own_figures() {
    const PACKAGE: &str = "package_use.py";
    let text = repository().join("tests/python").join(PACKAGE);
    let text = std::fs::read_to_string(text).unwrap();
    let line = |what: &str| text.lines().position(|line| line.contains(what)).unwrap() + 1;
    let at = |what: &str| format!("package_use.py:{}", line(what));
    let take = at("cuMemAlloc_v2");
    // The outer line is named where it is another one.
    let expected = format!(
        "True [] None\nrefused 2 1024\nNone\n96 96\n32 1 {take} < {}\n8 1 {take} < {}\n",
        at("kept = take(32)"),
        at("return take(8)"),
    );
    for (minor, python) in pythons() {
        let run = Program(python).run(setup(Setup::simulated().preload(), PACKAGE)).ok();
        let places = run.stdout.replace(&format!("{}/tests/python/", repository().display()), "");
        assert_eq!(places, expected, "Python 3.{minor}");
        assert_eq!(run.stderr, "", "Python 3.{minor}");
        let phases = run.scratch.text("report --by phase snapshot.vtrace");
        assert!(phases.contains("forward batch=6"), "Python 3.{minor}: {phases}");
    }
}

/// An example under a cap: what it prints, and the summary.
#[track_caller]
fn example(name: &str, cap: &str) -> (String, String) {
    let scratch = Scratch::new();
    let mut run = scratch.command(&["run", "--simulate", "--cap", cap, "--", "python3"]);
    run.arg(repository().join("examples").join(name)).env("PYTHONDONTWRITEBYTECODE", "1");
    let said = Said::by(run.env("PYTHONPATH", repository().join("python"))).ended(0);
    (said.out, said.err)
}

/// Its batch follows the cap, and no request is refused.
#[test]
fn a_batch_follows_the_memory_that_is_left() {
    for (cap, least) in [("2GiB", 20_000), ("4GiB", 80_000)] {
        let (printed, summary) = example("adaptive_batch.py", cap);
        let words: Vec<&str> = printed.trim().split([' ', ':']).collect();
        assert!(words[1].parse::<u64>().unwrap() > least, "{printed}");
        assert!(printed.ends_with(": 90 % of the limit\n"), "{printed}");
        assert!(summary.contains("refused    0 by the cap, 0 by the driver"), "{summary}");
    }
}

/// The batch that does not fit is cut by what the limit leaves, and the steps after it fit.
#[test]
fn a_batch_that_fails_goes_on_in_smaller_parts() {
    let (printed, summary) = example("retry_batch.py", "2GiB");
    // The figures say at once what fits: halves would take several turns.
    assert_eq!(printed.matches("out of memory: on with parts of").count(), 1, "{printed}");
    let part = printed.split("in parts of ").nth(1).unwrap().split(':').next().unwrap();
    let part: u64 = part.parse().unwrap();
    assert!((20_000..262_144).contains(&part), "{printed}");
    assert!(summary.contains("refused    1 by the cap, 0 by the driver"), "{summary}");
}

#[test]
fn decorated_generators_cells_and_tests_run_as_the_plain_ones() {
    // The second where the recorder returns no figures.
    let none = "vram: the recorder returned no figures; its message is on stderr\n";
    let failed = "failed: the test's GPU memory was not measured: the recorder returned no figures";
    let without = format!("{none}{none}['cell']\nended {{}}\n{failed}\nended {{}}\n");
    let wrapped = setup(Setup::simulated().preload(), "wrapped_generators.py").arg(20);
    for (setup, expected) in [
        (wrapped, "alike\nsurvived\n1 True True\n5\nTrue\n"),
        (setup(Setup::simulated(), "no_figures.py"), &without),
    ] {
        for (minor, python) in pythons() {
            let run = Program(python).run(setup.clone()).ok();
            assert_eq!(run.stdout, expected, "Python 3.{minor}");
        }
    }
}

/// A package with lines that request memory, beside the program.
const KERNELS: &str = r#"
import ctypes

def take(driver, size):
    address = ctypes.c_uint64()
    assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0
    return address

def touch(driver):
    assert driver.cuMemFree_v2(take(driver, 1 << 20)) == 0

def block(torch, address, size):
    torch.cache_block(0, ctypes.c_void_p(address), ctypes.c_int64(size))
"#;

#[test]
fn usage_and_the_live_page_name_the_libraries_of_a_report() {
    let packages = Scratch::new();
    let directory = packages.0.join("lib/python3/site-packages");
    std::fs::create_dir_all(directory.join("kernels")).unwrap();
    std::fs::write(directory.join("kernels/__init__.py"), KERNELS).unwrap();
    for (minor, python) in pythons() {
        let memory = SharedMemory::new();
        let setup = setup(memory.setup().contradicts(), "usage_libraries.py")
            .arg(torch_stand_ins::libraries().join("libc10_cuda.so").display())
            .arg(directory.display())
            .arg(vramtrace().get_program().display());
        let run = Program(python).run(setup).ok();
        let printed: Value = serde_json::from_str(&run.stdout).unwrap();
        let words = |what: &str| -> BTreeSet<String> {
            let words = printed[what].as_array().unwrap().iter();
            words.map(|word| word.as_str().unwrap().to_string()).collect()
        };
        // What `report` names: driver memory and blocks of the same two lines.
        let report = run.json("holders");
        let names = found(&report);
        assert_eq!(names, ["kernels", "usage_libraries.py"].map(String::from).into(), "{report}");
        assert_eq!(words("usage"), names, "Python 3.{minor}");
        let levels = ["driver", "tensor"];
        let expected: BTreeSet<String> = levels
            .iter()
            .flat_map(|level| names.iter().map(move |name| format!("{level} {name}")))
            .collect();
        assert_eq!(words("live page"), expected, "Python 3.{minor}");
    }
}

/// Programs whose own lines are in no package: a module outside of the working directory, a script without a suffix,
/// and a thread in a module beside neither. Their lines have the program's name.
#[test]
fn lines_in_no_package_have_the_name_of_the_program() {
    let take = r#"
import ctypes

def take(size):
    driver = ctypes.CDLL("libcuda.so.1")
    context, address = ctypes.c_void_p(), ctypes.c_uint64()
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxSetCurrent(context) == 0
    assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0
"#;
    let own = "import take, vramtrace\ntake.take(512 << 20)\n";
    let thread = "import threading, take, vramtrace\n\
        thread = threading.Thread(target=take.take, args=(512 << 20,))\n\
        thread.start()\nthread.join()\n";
    let print = "print(*(name for name in vramtrace.usage().metrics() if 'library' in name))\n";
    let files = Scratch::new();
    files.write("take.py", take);
    files.write("worker.py", format!("{own}{print}"));
    files.write("worker", format!("{own}{print}"));
    files.write("threads.py", format!("{thread}{print}"));
    let elsewhere = Scratch::new();
    let script = |name: &str| vec![files.0.join(name).display().to_string()];
    let module = |name: &str| vec!["-m".to_string(), name.to_string()];
    let runs = [
        (module("worker"), "worker"),
        (module("threads"), "threads"),
        (script("worker"), "worker"),
        (script("worker.py"), "worker.py"),
    ];
    let pythons = pythons();
    let (_, python) = pythons.last().expect("a Python from 3.8 on");
    for (arguments, name) in runs {
        let path = format!("{}:{}", files.0.display(), repository().join("python").display());
        let setup = Setup::simulated().preload().env("PYTHONPATH", path).cwd(&elsewhere.0);
        let setup = arguments.iter().fold(setup, |setup, argument| setup.arg(argument));
        let run = Program(python.clone()).run(setup).ok();
        let expected = format!("vram/cuda0/library/{name}_gib\n");
        assert_eq!(run.stdout, expected, "{arguments:?}: {}", run.stderr);
    }
}

/// Every library of a report's holders, but for the free part of PyTorch's cache.
fn found(report: &Value) -> BTreeSet<String> {
    let holders = report["holders"].as_array().unwrap().iter();
    let held = holders.filter(|holder| holder["bytes"] != 0 && holder["library"] != "PyTorch");
    held.filter_map(|holder| holder["library"].as_str().map(String::from)).collect()
}
