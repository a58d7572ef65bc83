#!/usr/bin/env python3
"""Measures what vramtrace adds to the start of a process that never uses a GPU, and the start-up times of
the command and of the Python package. Needs Python's standard library only, and no GPU.

    benches/bench-startup.py                    measures target/release, which must be built
    benches/bench-startup.py --venv VENV        measures a venv in which the wheel is installed
    benches/bench-startup.py --bin DIR          measures the vramtrace and libvramtrace.so in DIR
    benches/bench-startup.py --pairs 2000 --cpu 3 --check

Runs with and without the preload alternate on one processor, and their order alternates too: other load
affects both alike. The figures are medians. `later` is the median of the differences within a pair, with its
95 % confidence interval. `processor` is the difference in CPU time (user and kernel), which depends less on
other load. The row `again` has no preload in either run: it shows the noise of this machine. With --check the
exit status is 1 if a figure exceeds the limit in docs/PACKAGING.md.
"""
import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

#: The limits of docs/PACKAGING.md, ms.
LATER, VERSION, IMPORT = 0.3, 10.0, 5.0


def main():
    parser = argparse.ArgumentParser(usage="%(prog)s [options]", description=__doc__.split("\n\n")[0])
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--venv", help="a venv in which the wheel is installed")
    where.add_argument("--bin", help="the directory of vramtrace and libvramtrace.so")
    parser.add_argument("--pairs", type=int, default=1000, help="number of pairs of runs of `true` (default 1000)")
    parser.add_argument("--cpu", type=int, help="the processor that all runs use (default: the last one)")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a figure exceeds its limit")
    arguments = parser.parse_args()
    if arguments.pairs < 20:
        parser.error("--pairs %d: must be 20 or more" % arguments.pairs)
    allowed = sorted(os.sched_getaffinity(0))
    cpu = allowed[-1] if arguments.cpu is None else arguments.cpu
    if cpu not in allowed:
        parser.error("--cpu %d: must be one of the processors of this process: %s" % (cpu, ", ".join(map(str, allowed))))
    command, library, python, package = find(arguments, parser)
    os.sched_setaffinity(0, {cpu})
    with tempfile.TemporaryDirectory() as empty:
        os.chdir(empty)
        kept = measure(arguments.pairs, command, library, python, package)
    sys.exit(0 if kept or not arguments.check else 1)


def find(arguments, parser):
    """The paths of the command, the recorder, an interpreter, and the package (None: it is installed)."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if arguments.venv:
        binaries = os.path.join(os.path.abspath(arguments.venv), "bin")
        python, package = os.path.join(binaries, "python"), None
        code = "import vramtrace; print(vramtrace.library())"
        try:
            library = subprocess.check_output([python, "-c", code], universal_newlines=True).strip()
        except (OSError, subprocess.CalledProcessError) as error:
            parser.error("--venv %s: %s" % (arguments.venv, error))
    else:
        binaries = os.path.abspath(arguments.bin or os.path.join(here, "target", "release"))
        library, python = os.path.join(binaries, "libvramtrace.so"), sys.executable
        package = os.path.join(here, "python")
    command = os.path.join(binaries, "vramtrace")
    for file in (command, library):
        if not os.path.exists(file):
            parser.error("%s does not exist; build it: cargo build --release --workspace" % file)
    return command, library, python, package


def environment(library=None, package=None):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VRAMTRACE")}
    kept.pop("LD_PRELOAD", None)
    if library:
        kept["LD_PRELOAD"] = library
    if package:
        kept["PYTHONPATH"] = package
    return kept


NULL = os.open(os.devnull, os.O_RDWR)
ACTIONS = [(os.POSIX_SPAWN_DUP2, NULL, 0), (os.POSIX_SPAWN_DUP2, NULL, 1)]


def once(command, env):
    """Runs a process: its elapsed time in ms, its CPU time in ms, and its minor page faults."""
    began = time.perf_counter()
    pid = os.posix_spawn(command[0], command, env, file_actions=ACTIONS)
    _, status, used = os.wait4(pid, 0)
    took = 1e3 * (time.perf_counter() - began)
    if status:
        sys.exit("bench-startup: %s: wait status %d" % (" ".join(command), status))
    return took, 1e3 * (used.ru_utime + used.ru_stime), used.ru_minflt


def pairs(command, count, first, second):
    """`count` pairs of results of `once`; the order within a pair alternates."""
    found = []
    for turn in range(count + 3):
        if turn % 2:
            later = once(command, second)
            found.append((once(command, first), later))
        else:
            found.append((once(command, first), once(command, second)))
    # The first runs read files from the disk.
    return found[3:]


def interval(values):
    """The 95 % confidence interval of the median, by rank."""
    values = sorted(values)
    half = 0.98 * len(values) ** 0.5
    middle = len(values) / 2
    return values[max(0, int(middle - half))], values[min(len(values) - 1, int(middle + half) + 1)]


def row(name, command, count, first, second):
    found = pairs(command, count, first, second)
    before = statistics.median(pair[0][0] for pair in found)
    after = statistics.median(pair[1][0] for pair in found)
    differences = [pair[1][0] - pair[0][0] for pair in found]
    later = statistics.median(differences)
    low, high = interval(differences)
    computed, faults = (statistics.median(pair[1][n] - pair[0][n] for pair in found) for n in (1, 2))
    figures = name, count, before, after, later, low, high, computed, faults
    print("| %s | %d | %.3f | %.3f | %+.3f (%+.3f to %+.3f) | %+.3f | %+d |" % figures, flush=True)
    return later


def measure(count, command, library, python, package):
    bare, preloaded = environment(), environment(library)
    true = [shutil.which("true")]
    print("%s, %s; processor %d of %d\n" % (command, os.uname().machine, min(os.sched_getaffinity(0)), os.cpu_count()))
    print("| process without CUDA | pairs | without, ms | with, ms | later, ms (95 %) | processor, ms | page faults |")
    print("|---|---|---|---|---|---|---|")
    row("true, again", true, count, bare, bare)
    kept = []
    kept.append(("`true` starts at most %g ms later" % LATER, row("true", true, count, bare, preloaded) <= LATER))
    row("sh -c :", ["/bin/sh", "-c", ":"], count // 2, bare, preloaded)
    row("python -c 0", [python, "-c", "0"], max(20, count // 10), bare, preloaded)
    print("\n| | runs | median, ms | limit, ms |\n|---|---|---|---|")
    times = [once([command, "--version"], bare)[0] for _ in range(103)][3:]
    version = statistics.median(times)
    print("| vramtrace --version | 100 | %.2f | below %g |" % (version, VERSION))
    code = "import time; t = time.perf_counter(); import vramtrace; print(1e3 * (time.perf_counter() - t))"
    for name, env in (("import vramtrace", environment(None, package)), ("the same, recorded", environment(library, package))):
        took = [float(subprocess.check_output([python, "-c", code], env=env)) for _ in range(53)][3:]
        print("| %s | 50 | %.2f | below %g |" % (name, statistics.median(took), IMPORT))
        kept.append(("%s below %g ms" % (name, IMPORT), statistics.median(took) < IMPORT))
    kept.append(("vramtrace --version below %g ms" % VERSION, version < VERSION))
    broken = [limit for limit, holds in kept if not holds]
    print("\nLimits: %s" % ("NOT kept: " + "; ".join(broken) if broken else "all kept"))
    return not broken


if __name__ == "__main__":
    main()
