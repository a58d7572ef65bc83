"""The part `wheel` of the GPU check: the wheel, installed with pip into a new venv, as a user does.

VRAMTRACE_WHEEL names the wheel. torch and transformers are those of the Python that runs the check: the venv
finds them through a .pth file that this script writes; the wheel contains none. What needs no GPU is tested by
packaging/test-wheel.sh.

    run         `vramtrace run python gpt2_train.py` in an empty directory prints its summary
    lines       the holders at the peak are those of the same run under the source build
    package     `import vramtrace` with the real driver and PyTorch's allocator: usage, Peak, limit, phases
    pytest      the plugin: a limit that holds, one that is exceeded, a leak
"""
import json
import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import stacks


def section(check):
    """`check`: the module check.py, which holds what all parts share."""
    print("\n### The wheel, installed by pip\n")
    wheel = os.environ.get("VRAMTRACE_WHEEL")
    if not wheel:
        print("SKIP wheel: VRAMTRACE_WHEEL=FILE names no wheel (scripts/release.sh --wheel makes one)")
        return
    if not Path(wheel).is_file():
        print(check.fail(f"VRAMTRACE_WHEEL={wheel}: there is no such file"))
        return
    Wheel(check, Path(wheel).resolve()).all()


class Wheel:
    def __init__(self, check, wheel):
        self.check, self.wheel = check, wheel
        self.where = check.TRACES / "wheel"
        self.venv = self.where / "venv"
        self.work = self.where / "work"
        self.work.mkdir(parents=True)
        self.log = open(check.LOGS / "wheel.log", "w")

    def all(self):
        print("| step | | s |\n|---|---|---|")
        if not self.step("pip install", self.install):
            return
        if missing := self.check.have("torch", "transformers"):
            print(f"| SKIP run, lines, package, pytest: no {missing} | | |")
        else:
            if self.step("vramtrace run python gpt2_train.py", self.run):
                self.step("lines at the peak, against the source build", self.lines)
                self.step("vramtrace, alone", self.alone)
            self.step("import vramtrace, with PyTorch", self.package)
            if missing := self.check.have("pytest"):
                print(f"| SKIP pytest: no {missing} | | |")
            else:
                self.step("pytest --vramtrace", self.plugin)

    def step(self, name, what):
        began = time.time()
        try:
            printed, good = what(), True
        except (AssertionError, OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
            printed, good = self.check.fail(f"{type(error).__name__}: {error}"[:400].replace("\n", "; ")), False
        print(f"| {name} | {printed} | {time.time() - began:.1f} |", flush=True)
        return good

    def call(self, *command, wanted=0, env=None):
        """Runs a command in an empty directory, and returns its output. Its exit status must be `wanted`."""
        plain = dict(self.check.environment(), **(env or {}))
        plain["PATH"] = f"{self.venv}/bin{os.pathsep}{plain['PATH']}"
        run = subprocess.run(
            [str(part) for part in command], cwd=self.work, env=plain, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=300,
        )
        self.log.write(f"$ {' '.join(map(str, command))}\n{run.stdout}{run.stderr}[{run.returncode}]\n\n")
        self.log.flush()
        assert run.returncode == wanted, f"{command[0]}: exit status {run.returncode}: {run.stderr.strip()[-300:]}"
        return run

    def install(self):
        # No pip in the venv: some systems package ensurepip separately. This Python's pip is used.
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(self.venv)], check=True, timeout=120)
        site = self.venv / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
        theirs = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
        theirs.update(dict.fromkeys(path for path in sys.path if path.endswith("-packages")))
        (site / "torch-is-there.pth").write_text("".join(f"{path}\n" for path in theirs))
        words = ("install", "--no-index", "--no-deps", "--force-reinstall", "--quiet", "--disable-pip-version-check", self.wheel)
        self.call(self.venv / "bin" / "python", "-m", "pip", *words)
        version = self.call("vramtrace", "--version").stdout.strip()
        size = self.wheel.stat().st_size
        assert size <= 10_000_000, f"{size:,} bytes: must be at most 10,000,000"
        return f"{self.wheel.name}, {size:,} bytes: {version}"

    def run(self):
        run = self.call("vramtrace", "run", "python", self.check.PROGRAMS / "gpt2_train.py")
        assert "RESULT loss=" in run.stdout, "the training printed no loss"
        ours = [line for line in run.stderr.splitlines() if "vramtrace" in line]
        assert ours, "no verdict"
        assert any("gpt2_train.py:" in line or ".py:" in line for line in run.stderr.splitlines()), "no line is named"
        print("".join(f"    {line}\n" for line in run.stderr.splitlines()[-12:]), file=self.log)
        return "; ".join(line.strip() for line in run.stderr.splitlines()[-4:])[:300].replace("|", "/")

    def lines(self):
        def holders(binary, trace):
            found = json.loads(self.call(binary / "vramtrace", "holders", "--json", "--at", "peak", trace).stdout)["holders"]
            return {self.name(holder): holder["bytes"] for holder in found}

        trace = self.check.TRACES / "wheel-source.vtrace"
        source = self.check.BIN / "vramtrace"
        self.call(source, "run", "--out", trace, sys.executable, self.check.PROGRAMS / "gpt2_train.py")
        theirs = holders(self.check.BIN, trace)
        [ours] = sorted(self.work.glob("**/*gpt2*.vtrace")) or sorted(self.work.glob("vramtrace*/**/*.vtrace"))[-1:]
        mine = holders(self.venv / "bin", ours)
        with_line = sum(size for name, size in mine.items() if ".py:" in name)
        share = with_line / max(1, sum(mine.values()))
        different = {name for name in set(mine) | set(theirs) if abs(mine.get(name, 0) - theirs.get(name, 0)) > 1 << 21}
        assert not different, f"other holders than the source build: {sorted(different)[:4]}"
        # Autograd's threads allocate the rest. They run no Python: native functions name it.
        assert share > 0.5, f"{100 * share:.1f} % of the bytes have a line"
        return f"{len(mine)} holders, the same bytes; {100 * share:.1f} % of them have a line of Python"

    @staticmethod
    def name(holder):
        frames = holder["frames"]
        return " < ".join(
            stacks.place(frames[holder[end]]) for end in ("lead", "caller") if holder[end] is not None
        ) or str(holder["library"])

    def alone(self):
        printed = self.call("vramtrace").stdout.splitlines()
        assert any(".py:" in line for line in printed), "no line of the run is named"
        return f"{len(printed)} lines"

    def package(self):
        run = self.call("vramtrace", "run", "--out", "package", "python", self.check.PROGRAMS / "wheel_use.py")
        facts = json.loads(run.stdout.splitlines()[-1])
        return ", ".join(f"{name} {fact}" for name, fact in facts.items()).replace("|", "/")

    def plugin(self):
        tests = self.work / "test_wheel.py"
        tests.write_text((self.check.PROGRAMS / "wheel_tests.py").read_text())
        run = self.call(
            "vramtrace", "run", "--out", "pytest", "python", "-m", "pytest", "-q", "-p", "no:cacheprovider",
            "--vramtrace", tests, wanted=1,
        )
        assert "2 failed, 2 passed" in run.stdout, run.stdout[-300:]
        assert "GPU memory by test (vramtrace)" in run.stdout, "no table of the tests"
        return "a limit and a leak failed, two tests passed"
