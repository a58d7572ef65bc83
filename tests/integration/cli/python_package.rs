//! `import vramtrace` from the source tree, under the recorder, in every Python that is installed. The
//! rest of the package is tested as it is installed: `scripts/test-wheel.sh`.

use testkit::{Program, Setup, pythons, repository, skip};

#[test]
fn every_python_sees_its_own_figures() {
    let script = repository().join("tests/python/package_use.py");
    let text = std::fs::read_to_string(&script).unwrap();
    let line = |what: &str| text.lines().position(|line| line.contains(what)).unwrap() + 1;
    let at = |what: &str| format!("package_use.py:{}", line(what));
    let take = at("cuMemAlloc_v2");
    // The outer line is named where it is another one.
    let expected = format!(
        "True [] None\nrefused 2 1024\nNone\n96 96\n32 1 {take} < {}\n8 1 {take} < {}\n",
        at("kept = take(32)"),
        at("return take(8)"),
    );
    let pythons = pythons();
    if pythons.is_empty() {
        skip("package: no Python from 3.8 on");
    }
    for (minor, python) in pythons {
        let setup = Setup::simulated()
            .preload()
            .env("PYTHONPATH", repository().join("python"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .arg(script.display());
        let run = Program(python).run(setup).ok();
        let places = run.stdout.replace(&format!("{}/tests/python/", repository().display()), "");
        assert_eq!(places, expected, "Python 3.{minor}");
        assert_eq!(run.stderr, "", "Python 3.{minor}");
    }
}
