"""The part `wheel` of the GPU check: the wheel that VRAMTRACE_WHEEL names, installed by pip beside torch and transformers.
What needs no GPU is tested by packaging/test-wheel.sh.

    run         `vramtrace run python gpt2_train.py` names a line of the program
    package     `import vramtrace` with the real driver and PyTorch's allocator: usage, Peak, limit, phases
    pytest      the plugin: a limit that holds, one that is exceeded, a leak
"""
import json
import os
import subprocess
import sys


def section(check):
    """`check`: the module check.py, which holds what all parts share."""
    print("\n### The wheel, installed by pip\n")
    wheel = os.environ.get("VRAMTRACE_WHEEL")
    if not wheel:
        print("SKIP wheel: VRAMTRACE_WHEEL=FILE names no wheel (scripts/release.sh --wheel makes one)")
        return
    if missing := check.have("torch", "transformers", "pytest"):
        print(f"SKIP wheel: no {missing}")
        return
    place, work = check.TRACES / "wheel", check.TRACES / "wheel-work"
    work.mkdir()
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--quiet", "--target", str(place), wheel]
    subprocess.run(pip, check=True)
    env = dict(check.environment(), PYTHONPATH=str(place), PATH=f"{place}/bin{os.pathsep}{os.environ['PATH']}")

    def call(name, *command, wanted=0):
        ended = check.run(f"wheel-{name}", command, env, cwd=work, stdin=subprocess.DEVNULL, timeout=300)
        assert ended.returncode == wanted, f"{command[0]}: exit status {ended.returncode}, see wheel-{name}.log"
        return ended

    def run():
        said = call("run", "vramtrace", "run", sys.executable, check.PROGRAMS / "gpt2_train.py").stderr
        assert "gpt2_train.py:" in said, "no line is named"
        return said.strip().splitlines()[-1].replace("|", "/")

    def package():
        use = check.PROGRAMS / "wheel_use.py"
        facts = json.loads(call("package", "vramtrace", "run", "--out", "package", sys.executable, use).stdout.splitlines()[-1])
        return ", ".join(f"{name} {fact}" for name, fact in facts.items()).replace("|", "/")

    def plugin():
        tests = check.PROGRAMS / "wheel_tests.py"
        words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--vramtrace", tests)
        said = call("pytest", "vramtrace", "run", "--out", "pytest", sys.executable, *words, wanted=1).stdout
        assert "2 failed, 2 passed" in said and "GPU memory by test (vramtrace)" in said, said[-300:]
        return "a limit and a leak failed, two tests passed"

    print("| step | |\n|---|---|")
    for name, step in {"vramtrace run": run, "import vramtrace": package, "pytest --vramtrace": plugin}.items():
        try:
            print(f"| {name} | {step()} |", flush=True)
        except (AssertionError, ValueError, subprocess.SubprocessError) as error:
            print(f"| {name} | {check.fail(str(error)[:400])} |", flush=True)
