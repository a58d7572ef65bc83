#!/usr/bin/env bash
# What the wheel costs before it is used: measure.sh VENV, in which it is installed. Prints the median of
# 21 runs each; compare ratios, not milliseconds, between machines.
set -eu
"$1/bin/python" - "$1" <<'PYTHON'
import os, statistics, subprocess, sys, time

venv = sys.argv[1]
shim = subprocess.check_output([venv + "/bin/python", "-c", "import vramtrace; print(vramtrace.library())"], text=True).strip()


def median(command, preload=None, runs=21):
    environment = dict(os.environ)
    if preload:
        environment["LD_PRELOAD"] = preload
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


code = "import time; t = time.perf_counter(); import vramtrace; print(1e3 * (time.perf_counter() - t))"
imports = [float(subprocess.check_output([venv + "/bin/python", "-c", code])) for _ in range(21)]
print("import vramtrace        %7.2f ms" % statistics.median(imports))
print("vramtrace --version     %7.2f ms" % median([venv + "/bin/vramtrace", "--version"]))
bare, preloaded = median(["/bin/true"], runs=101), median(["/bin/true"], shim, runs=101)
print("/bin/true               %7.2f ms, preloaded %7.2f ms: %.2f ms later" % (bare, preloaded, preloaded - bare))
bare, preloaded = median([venv + "/bin/python", "-c", "0"]), median([venv + "/bin/python", "-c", "0"], shim)
print("python -c 0             %7.2f ms, preloaded %7.2f ms: ratio %.3f" % (bare, preloaded, preloaded / bare))
PYTHON
