//! What runs the program's code, pytest and IPython, never stands for it: a test is its file, a notebook's cell its number.

use std::fs;
use std::os::unix::fs::symlink;

use testkit::{Said, Scratch, bin_dir, pythons, shim, sim};

const TAKE: &str = "\
import ctypes
cu = ctypes.CDLL('libcuda.so.1')
def take(mib):
    context, at = ctypes.c_void_p(), ctypes.c_uint64()
    cu.cuInit(0)
    cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    cu.cuCtxSetCurrent(context)
    return cu.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(mib << 20))
";

/// An installation as pip makes it: an interpreter in `bin`, packages below `site-packages`; and files beside.
struct Installed(Scratch);

impl Installed {
    fn new(files: &[(&str, &str)]) -> Installed {
        sim();
        shim();
        let scratch = Scratch::new();
        fs::create_dir(scratch.0.join("bin")).unwrap();
        symlink(&pythons().first().expect("python3").1, scratch.0.join("bin/python3")).unwrap();
        for (name, text) in files {
            let path = scratch.0.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Installed(scratch)
    }

    /// Runs Python with these arguments in the directory `work`, a path in `arguments` is of the installation. Returns
    /// stderr.
    fn run(&self, arguments: &[&str]) -> String {
        let root = &self.0.0;
        fs::create_dir_all(root.join("work")).unwrap();
        let mut run = self.0.command(&["run", "--simulate=1x8GiB", "--out", "run.vtrace"]);
        run.arg(root.join("bin/python3"));
        run.args(arguments.iter().map(|argument| match argument.contains('/') {
            true => root.join(argument).into_os_string(),
            false => argument.into(),
        }));
        run.current_dir(root.join("work")).env("PYTHONPATH", root.join("site-packages"));
        Said::by(&mut run).ended(0).err
    }

    fn text(&self, line: &str) -> String {
        self.0.text(&format!("{line} work/run.vtrace"))
    }

    /// Library, line and calling line of each holder.
    fn holders(&self) -> Vec<[String; 3]> {
        let json = self.0.json("holders work/run.vtrace");
        let place = |holder: &serde_json::Value, which: &str| match holder[which].as_u64() {
            Some(at) => {
                let frame = &holder["frames"][at as usize];
                let file = frame["file"].as_str().unwrap();
                format!("{}:{}", file.rsplit('/').next().unwrap(), frame["line"])
            }
            None => "-".to_string(),
        };
        let all = json["holders"].as_array().unwrap().iter();
        let all = all.filter(|holder| holder.get("driver_memory").is_none());
        all.map(|holder| {
            let library = holder["library"].as_str().unwrap().to_string();
            [library, place(holder, "lead"), place(holder, "caller")]
        })
        .collect()
    }
}

#[test]
fn a_test_is_its_file_and_not_pytest() {
    let test =
        format!("{TAKE}def test_fits():\n    take(100)\ndef test_does_not():\n    take(9000)\n");
    let run = "\
import importlib.util, sys
def call(function):
    function()
def main():
    spec = importlib.util.spec_from_file_location('test_memory', sys.argv[1])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    call(module.test_fits)
    call(module.test_does_not)
";
    let here = Installed::new(&[
        ("site-packages/_pytest/python.py", run),
        ("bin/pytest", "import _pytest.python\n_pytest.python.main()\n"),
        ("tests/test_memory.py", &test),
    ]);
    // In another directory than the tests, as from the root of a repository.
    let printed = here.run(&["bin/pytest", "tests/test_memory.py"]);
    let wanted = ["test_memory.py", "test_memory.py:8", "test_memory.py:10"];
    assert_eq!(here.holders(), [wanted.map(String::from)]);
    let holds = "holds   100.00 MiB test_memory.py:8 < test_memory.py:10 ";
    assert!(printed.contains(holds), "{printed}");
    assert!(!printed.contains("pytest "), "{printed}");
    // A directory of tests: pytest alone is the program.
    let printed = here.run(&["bin/pytest", "work/../tests/test_memory.py"]);
    assert!(printed.contains("test_memory.py:8 < test_memory.py:12"), "{printed}");
    let oom = here.text("oom --short");
    assert!(oom.contains("holds   100.00 MiB  test_memory.py:8 < test_memory.py:10 "), "{oom}");
}

#[test]
fn a_cell_of_a_notebook_has_its_number() {
    let work = "def work():\n    take(64)\n    take(9000)\n";
    // As ipykernel names them: by a hash of their text, which the saved notebook has, too.
    let kernel = "\
import json, IPython.core
for n, cell in enumerate(json.load(open('model.ipynb'))['cells']):
    IPython.core.run_code(cell['source'], '/tmp/ipykernel_77/%d.py' % HASHES[n])
";
    let sources = [TAKE.to_string(), work.to_string(), "a = 1\nwork()\n".to_string()];
    let hashes = sources.each_ref().map(|text| vramtrace_reader::symbols::notebooks::hash_of(text));
    let numbers = [3, 7, 12];
    let cells: Vec<_> = sources.iter().zip(numbers).map(|(source, number)| {
        serde_json::json!({"cell_type": "code", "execution_count": number, "source": source})
    }).collect();
    let notebook = serde_json::json!({ "cells": cells, "nbformat": 4 }).to_string();
    let kernel = format!("HASHES = {hashes:?}\n{kernel}");
    let here = Installed::new(&[
        ("site-packages/IPython/__init__.py", ""),
        (
            "site-packages/IPython/core.py",
            "space = {}\ndef run_code(text, name):\n    exec(compile(text, name, 'exec'), space)\n",
        ),
        ("site-packages/ipykernel_launcher.py", &kernel),
        ("work/model.ipynb", &notebook),
    ]);
    let printed = here.run(&["-m", "ipykernel_launcher", "-f", "connection.json"]);
    let wanted = ["notebook", "cell [3]:8", "cell [7]:2"];
    assert_eq!(here.holders(), [wanted.map(String::from)]);
    let report = here.text("report");
    assert!(report.contains("cell [3]:8 take") && !report.contains("IPython"), "{report}");
    let oom = here.text("oom --short");
    assert!(oom.contains("cell [3]:8 < cell [7]:3"), "{oom}");
    // While it runs there may be no saved notebook yet: the message has the hash.
    let [take, work, _] = hashes;
    assert!(printed.contains(&format!("cell {take}:8 < cell {work}:3")), "{printed}");
    // So has the report of a trace without its notebook.
    fs::remove_file(here.0.0.join("work/model.ipynb")).unwrap();
    let [_, lead, caller] = &here.holders()[0];
    assert_eq!([lead, caller], [&format!("cell {take}:8"), &format!("cell {work}:2")]);
}

#[test]
fn a_cell_of_ipython_in_a_terminal_has_its_number_in_the_message_too() {
    let launch = format!(
        "space = {{}}\nfor n, text in enumerate([{TAKE:?}, 'take(9000)']):\n    \
         exec(compile(text, '<ipython-input-%d-0f3a>' % (n + 4), 'exec'), space)\n"
    );
    let here = Installed::new(&[("bin/ipython", &launch)]);
    let printed = here.run(&["bin/ipython"]);
    assert!(printed.contains("at cell [4]:8 < cell [5]:1"), "{printed}");
}

/// The page that `ps` and `top` read while a program runs.
#[test]
fn a_running_test_has_the_programs_name_in_the_live_page() {
    let look = "\
import json, os, subprocess, sys, time
def look():
    while True:
        take(1)
        time.sleep(0.05)
        listed = json.loads(subprocess.run([sys.argv[1], 'ps', '--json'], capture_output=True, env={
            name: value for name, value in os.environ.items() if name != 'LD_PRELOAD'}).stdout)
        mine = [one for one in listed['processes'] if one['pid'] == os.getpid()]
        if mine and mine[0]['sites']:
            return print('sites', [site['library'] for site in mine[0]['sites']], file=sys.stderr)
";
    let test = format!("{TAKE}{look}look()\n");
    let call = "def call(path):\n    exec(compile(open(path).read(), path, 'exec'), {})\n";
    let here = Installed::new(&[
        ("site-packages/_pytest/python.py", call),
        ("bin/pytest", "import sys, _pytest.python\n_pytest.python.call(sys.argv[2])\n"),
        ("work/test_live.py", &test),
    ]);
    let command = bin_dir().join("vramtrace");
    let printed = here.run(&["bin/pytest", &command.display().to_string(), "work/test_live.py"]);
    assert!(printed.contains("sites ['test_live.py']"), "{printed}");
}
