#!/usr/bin/env bash
# What the wheel costs before it is used: measure.sh VENV, in which it is installed. Prints medians; runs
# with and without the preload alternate. Compare ratios, not milliseconds, between machines.
set -eu
"$1/bin/python" - "$1" <<'PYTHON'
import os, statistics, subprocess, sys, time

venv = sys.argv[1]
shim = subprocess.check_output([venv + "/bin/python", "-c", "import vramtrace; print(vramtrace.library())"], text=True).strip()


def once(command, preload=None):
    environment = dict(os.environ)
    if preload:
        environment["LD_PRELOAD"] = preload
    began = time.perf_counter()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    return 1e3 * (time.perf_counter() - began)


def both(command, runs):
    """Medians without and with the preload, and of the difference of neighbouring runs."""
    pairs = [(once(command), once(command, shim)) for _ in range(runs)]
    later = statistics.median(preloaded - bare for bare, preloaded in pairs)
    return [statistics.median(column) for column in zip(*pairs)] + [later]


code = "import time; t = time.perf_counter(); import vramtrace; print(1e3 * (time.perf_counter() - t))"
imports = [float(subprocess.check_output([venv + "/bin/python", "-c", code])) for _ in range(21)]
print("import vramtrace        %7.2f ms" % statistics.median(imports))
versions = [once([venv + "/bin/vramtrace", "--version"]) for _ in range(21)]
print("vramtrace --version     %7.2f ms" % statistics.median(versions))
bare, preloaded, later = both(["/bin/true"], 201)
print("/bin/true               %7.2f ms, preloaded %7.2f ms: %.2f ms later" % (bare, preloaded, later))
bare, preloaded, later = both([venv + "/bin/python", "-c", "0"], 51)
print("python -c 0             %7.2f ms, preloaded %7.2f ms: ratio %.3f" % (bare, preloaded, preloaded / bare))
PYTHON
