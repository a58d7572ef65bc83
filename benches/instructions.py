"""The measurements of instructions.sh. Each command runs with N and with 2 N operations: the difference is the
cost of N operations without start-up and end. The clock is simulated and advances 0.5 us at each read: under
valgrind real time passes about 50 times faster per operation, and periodic work would be counted too often."""
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECK = sys.argv[1:2] == ["--check"]
BINS = [Path(word).resolve() for word in sys.argv[2 if CHECK else 1 :]]
BOUNDS = ROOT / "scripts/instructions.bounds"
# The function by which PyTorch's allocator asks how to round a request up.
DIVISIONS = "_ZN3c1016CachingAllocator26AcceleratorAllocatorConfig24roundup_power2_divisionsEm"
# A row may be this much above its bound. What the compiler inlines differs by as much between two builds.
SLACK = 0.03
PYTHON = sys.executable
SAMPLES = 2

PYTHON_PROGRAM = """
import ctypes, sys, threading
library = ctypes.CDLL(sys.argv[1])
sys.setswitchinterval(1000)  # a thread that waits for the interpreter's lock looks again after this time, a real one
def deep(depth):
    if depth > 4:  # this one and those of the thread are frames too
        return deep(depth - 1)
    library.repeat(ctypes.c_long(int(sys.argv[3])), 0)
def work():
    library.ready(sys.argv[2].encode(), sys.argv[4].encode())
    deep(20)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""

OUT, CAP, QUIET = "VRAMTRACE_OUT={}", "VRAMTRACE_CAP=20GiB", "VRAMTRACE_OUT=off"
NONE, NATIVE, BOTH = (f"VRAMTRACE_STACKS={which}" for which in ("none", "native", "native,python"))
SAMPLED = "VRAMTRACE_RECORD=sampled"
ONLY_PYTHON, SMALL_CAP = "VRAMTRACE_STACKS=python", "VRAMTRACE_CAP=1GiB"

# (name, caller: C, Python or a version of it, operation, count, variables; None: without the recorder)
OPERATIONS = [
    ("cuMemAlloc + Free: bare", "C", "pair", 2000, None),
    ("  not recorded", "C", "pair", 2000, [QUIET]),
    ("  not recorded, cap", "C", "pair", 2000, [QUIET, CAP]),
    ("  recorded, no stacks", "C", "pair", 2000, [OUT, NONE]),
    ("  recorded, no stacks, cap", "C", "pair", 2000, [OUT, NONE, CAP]),
    ("  recorded, 20 native frames", "C", "pair", 2000, [OUT, NATIVE]),
    ("  recorded, 20 native frames, cap", "C", "pair", 2000, [OUT, NATIVE, CAP]),
    ("  recorded, each of a new native stack", "C", "new-stack", 2000, [OUT, NATIVE]),
    ("  of 2 MiB: bare", "C", "page", 2000, None),
    ("  of 2 MiB: recorded, no stacks, cap", "C", "page", 2000, [OUT, NONE, CAP]),
    ("cuMemAllocAsync + FreeAsync: bare", "C", "async", 2000, None),
    ("  recorded, no stacks", "C", "async", 2000, [OUT, NONE]),
    ("  recorded, no stacks, cap", "C", "async", 2000, [OUT, NONE, CAP]),
    ("  recorded, no stacks, cap set while it runs", "C", "async-cap", 2000, [OUT, NONE]),
    # Rows with native stacks of Python have no bound: the rules of unwinding are cached by address, and two builds of one
    # code that load libraries elsewhere have other collisions.
    ("cuMemAlloc + Free from Python: bare", "Python", "pair", 2000, None),
    ("  recorded, 20 Python frames", "Python", "pair", 2000, [OUT, ONLY_PYTHON]),
    ("  recorded, native and Python", "Python", "pair", 2000, [OUT, BOTH]),
    ("PyTorch block made + freed: bare", "Python", "block", 4000, None),
    ("  not recorded", "Python", "block", 4000, [OUT, "VRAMTRACE_TENSORS=off"]),
    ("  recorded, no stacks", "Python", "block", 4000, [OUT, NONE]),
    ("  recorded, 20 Python frames", "Python", "block", 4000, [OUT]),
    ("  recorded, native and Python", "Python", "block", 4000, [OUT, "VRAMTRACE_TENSORS=full"]),
    # No bare row: the operation is C's, the frames are Python's.
    ("PyTorch block, 20 Python frames: recorded, Python 3.10", "3.10", "block", 4000, [OUT]),
    ("  recorded, Python 3.11", "3.11", "block", 4000, [OUT]),
    ("  recorded, Python 3.12", "3.12", "block", 4000, [OUT]),
    # From C: the addresses that Python takes differ, and with them the collisions in tables.
    ("PyTorch block from C: bare", "C", "block", 4000, None),
    ("  recorded, no stacks", "C", "block", 4000, [OUT, NONE]),
    # Few are recorded.
    ("  samples recorded, no stacks", "C", "block", 4000, [OUT, NONE, SAMPLED]),
    ("token of text generation from C: bare", "C", "token", 100, None),
    ("  recorded, no stacks", "C", "token", 100, [OUT, NONE]),
    ("  samples recorded, no stacks", "C", "token", 100, [OUT, NONE, SAMPLED]),
    ("its 328 blocks alone: bare", "C", "token-blocks", 100, None),
    ("  samples recorded, no stacks", "C", "token-blocks", 100, [OUT, NONE, SAMPLED]),
    ("its 328 launches alone: bare", "C", "token-launches", 100, None),
    ("  samples recorded, no stacks", "C", "token-launches", 100, [OUT, NONE, SAMPLED]),
    ("its 4 waits alone: bare", "C", "token-waits", 100, None),
    ("  samples recorded, no stacks", "C", "token-waits", 100, [OUT, NONE, SAMPLED]),
    # The allocator asks how to round the request up, as PyTorch's does.
    ("PyTorch block with its request: bare", "C", "request", 4000, None),
    ("  of another size, recorded, no stacks", "C", "request", 4000, [OUT, NONE]),
    ("  of the same size, recorded, no stacks", "C", "whole-request", 4000, [OUT, NONE]),
    ("  of another size, samples recorded, no stacks", "C", "request", 4000, [OUT, NONE, SAMPLED]),
    ("PyTorch autograd node made: bare", "Python", "node", 4000, None),
    ("  no forward lines", "Python", "node", 4000, [OUT, "VRAMTRACE_FORWARD=off"]),
    ("  recorded, 20 Python frames", "Python", "node", 4000, [OUT]),
    ("refused cuMemAlloc: bare", "C", "refused", 2000, None),
    ("  by the driver, recorded", "C", "refused", 2000, [OUT]),
    ("  by the cap, recorded", "C", "refused", 2000, [OUT, SMALL_CAP]),
    ("  by the cap, not recorded", "C", "refused", 2000, [QUIET, SMALL_CAP]),
    ("repeated launch: bare", "C", "launch", 10000, None),
    ("  recorded", "C", "launch", 10000, [OUT]),
    ("  recorded, cap", "C", "launch", 10000, [OUT, CAP]),
    # Not instructions: lines of the cache that the calls do not find, above those of the bare program. Before each call other
    # data and code take the place of all that lies in a first cache of 32 KiB each.
    ("cache lines of a PyTorch block: recorded, no stacks", "C", "cold-block", 500, [OUT, NONE]),
    ("  samples recorded, no stacks", "C", "cold-block", 500, [OUT, NONE, SAMPLED]),
    ("cache lines of a PyTorch block with its request: samples recorded, no stacks", "C", "cold-request", 500, [OUT, NONE, SAMPLED]),
    ("cache lines of a repeated launch: recorded", "C", "cold-launch", 1000, [OUT]),
    ("cache lines of cuMemAllocAsync + FreeAsync: recorded, no stacks", "C", "cold-async", 500, [OUT, NONE]),
    ("  recorded, no stacks, cap", "C", "cold-async", 500, [OUT, NONE, CAP]),
]
CACHES = ["--cache-sim=yes", "--I1=32768,8,64", "--D1=32768,8,64", "--LL=8388608,16,64"]

# Of a Python program only the operations are counted: its start differs between runs, by some hundred instructions an operation.
IN_OPERATIONS = ["--toggle-collect=down"]

# Placeholder for the path of an output file.
OUTPUT = "OUTPUT"

# (name, arguments of vramtrace, number of cuMemAlloc + Free pairs in the trace; it runs with twice as many too)
READING = [
    ("an event in `report`", ["report"], 50_000),
    ("an event in `report --json`", ["report", "--json"], 50_000),
    ("an event in `holders`", ["holders"], 50_000),
    ("an event in `leaks`", ["leaks"], 50_000),
    ("an event in `export --format csv`", ["export", "--format", "csv", "-o", OUTPUT], 5_000),
    ("an event in `export --format perfetto`", ["export", "-o", OUTPUT], 5_000),
]


def python(which):
    """The interpreter of a row; None: this version is not here. Its bounds are of the builds that pyenv makes."""
    if which == "Python":
        return PYTHON
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = sorted(versions.glob(f"{which}.*/bin/python3"))
    return str(found[-1]) if found else shutil.which(f"python{which}")


def is_here(row):
    return row[1] == "C" or python(row[1]) is not None


class Build:
    """One directory of binaries. All builds use the simulated driver of the first."""

    def __init__(self, number, bins, work):
        self.number, self.bins, self.work = number, bins, work

    def environment(self, variables, trace):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("VRAMTRACE_") and k != "LD_PRELOAD"}
        clean.update(LD_LIBRARY_PATH=str(self.work / "sim"), PYTHONHASHSEED="0", PYTHONDONTWRITEBYTECODE="1")
        # The C library's functions on strings have variants for processors.
        clean["GLIBC_TUNABLES"] = "glibc.cpu.hwcaps=-AVX,-AVX2,-ERMS,-FSRM,-BMI2,-RTM"
        clean["VRAMTRACE_OOM_REPORT"] = "off"
        if variables is None:
            return clean
        clean["LD_PRELOAD"] = f"{self.work / 'steady.so'}:{self.bins / 'libvramtrace.so'}"
        clean["VRAMTRACE_TEST_CLOCK"] = "0"
        for variable in variables:
            name, value = variable.split("=", 1)
            clean[name] = value.format(trace)
        return clean

    def operation(self, row, times):
        _, where, operation, count, variables = row
        with tempfile.TemporaryDirectory(dir=self.work) as scratch:
            cache = str(self.work / "libc10_cuda.so")
            command = [str(self.work / "instructions"), operation, str(times * count), cache]
            if where != "C":
                command = [python(where), "-s", "-S", "-c", PYTHON_PROGRAM, str(self.work / "libinstructions.so"), *command[1:]]
            environment = self.environment(variables, f"{scratch}/t.vtrace")
            flags = CACHES if is_of_lines(row) else [] if where == "C" else IN_OPERATIONS
            return counted(command, environment, flags)

    def check_stacks(self):
        """A compiler that makes two calls one makes fewer stacks, and the row another row."""
        name, _, operation, count, variables = next(row for row in OPERATIONS if row[2] == "new-stack")
        path = self.work / f"{self.number}.stacks.vtrace"
        command = [str(self.work / "instructions"), operation, str(count), ""]
        subprocess.run(command, env=self.environment(variables, path), check=True, capture_output=True)
        report = [str(self.bins / "vramtrace"), "report", "--json", str(path)]
        printed = subprocess.run(report, env=self.environment(None, None), check=True, capture_output=True)
        stacks = json.loads(printed.stdout)["processes"][0]["recorder"]["stacks"]
        if stacks < count:
            raise SystemExit(f"instructions:{name}: {stacks} stacks in {count} operations")

    def trace(self, pairs):
        path = self.work / f"{self.number}.{pairs}.vtrace"
        if not path.exists():
            command = [str(self.work / "endings"), "churn", str(pairs)]
            environment = self.environment([OUT, "VRAMTRACE_MAX=unlimited"], path)
            subprocess.run(command, env=environment, check=True, capture_output=True)
        return path

    def reading(self, row, times):
        # A directory of its own: others write at the same time.
        with tempfile.TemporaryDirectory(dir=self.work) as scratch:
            words = [f"{scratch}/output" if word == OUTPUT else word for word in row[1]]
            command = [str(self.bins / "vramtrace"), *words, str(self.trace(times * row[2]))]
            return counted(command, self.environment(None, None))


def is_of_lines(row):
    return row[2].startswith("cold-")


def counted(command, environment, flags=()):
    """Instructions of the whole process, or what the flags select; with caches, the lines that it did not find in the first ones."""
    # A temporary file, not /dev/null: valgrind replaces the file at the path, even a device.
    with tempfile.NamedTemporaryFile() as profile:
        run = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={profile.name}.out", *flags, *command]
        ended = subprocess.run(run, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        Path(f"{profile.name}.out").unlink(missing_ok=True)
    found = re.search(r"Collected : ([\d ]+)", ended.stderr)
    if ended.returncode != 0 or not found:
        raise SystemExit(f"instructions: {' '.join(command)}: {ended.returncode}\n{ended.stderr}")
    # Instructions, data read, data written, and what the first caches had not of each.
    figures = [int(figure) for figure in found[1].split()]
    if not figures[0]:
        raise SystemExit(f"instructions: {' '.join(command)}: counted nothing: it has no function of the name in {flags}")
    return sum(figures[3:6]) if "--cache-sim=yes" in flags else figures[0]


def each(measure, row, count):
    """The lowest of several samples: periodic work adds to the others."""
    bare = each(measure, (*row[:4], None), count) if is_of_lines(row) and row[4] is not None else 0
    once, twice = (min(measure(row, times) for _ in range(SAMPLES)) for times in (1, 2))
    return (twice - once) / count - bare


def compiled(work):
    def gcc(output, source, *flags):
        command = ["gcc", "-std=gnu11", "-O2", "-o", str(work / output), str(ROOT / source), *flags, "-ldl", "-lpthread"]
        subprocess.run(command, check=True)

    shared = ["-shared", "-fPIC", "-Wl,-rpath,$ORIGIN", "-L", str(work)]
    gcc("instructions", "benches/instructions.c")
    gcc("libinstructions.so", "benches/instructions.c", *shared)
    gcc("endings", "tests/programs/endings.c")
    gcc("steady.so", "tests/data/golden/steady.c", *shared, "-DLOOK_NS=500")
    requests = f'-DREQUESTS="{DIVISIONS}"'
    gcc("libc10.so", "tests/programs/libc10.c", *shared, "-Wl,-soname,libc10.so", requests, "-DDIVISIONS")
    gcc("libc10_cuda.so", "tests/programs/libc10_cuda.c", *shared, "-Wl,-soname,libc10_cuda.so", "-l:libc10.so", requests)
    command = ["g++", "-std=c++17", "-O2", "-o", str(work / "libtorch_cpu.so"), str(ROOT / "tests/programs/libtorch_cpu.cpp")]
    subprocess.run([*command, *shared, "-Wl,-soname,libtorch_cpu.so", "-l:libc10_cuda.so", "-lpthread"], check=True)
    (work / "sim").mkdir()
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (work / "sim" / name).symlink_to(BINS[0] / "libvramtrace_sim.so")


def shown(name, figures):
    cells = [f"{figure:,.1f}" for figure in figures]
    if len(figures) > 1:
        cells.append(f"{figures[1] / figures[0]:.4f}")
    print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def head(what, builds):
    names = ["instructions"] if len(builds) == 1 else [str(build.bins) for build in builds] + ["second / first"]
    print(f"| {what} | " + " | ".join(names) + " |")
    print("|---|" + "---:|" * len(names))


def toolchain():
    """What the counts depend on beside the sources."""
    rustc = subprocess.run(["rustc", "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
    gcc = subprocess.run(["gcc", "-dumpversion"], check=True, capture_output=True, text=True).stdout.strip()
    valgrind = subprocess.run(["valgrind", "--version"], check=True, capture_output=True, text=True).stdout.strip()
    return f"{platform.machine()} rustc-{rustc} glibc-{platform.libc_ver()[1]} gcc-{gcc} {valgrind}"


def check():
    """Compares with the bounds. On another toolchain than theirs it prints the table, and nothing fails."""
    lines = [line for line in BOUNDS.read_text().splitlines() if line and not line.startswith("#")]
    theirs, bounds = lines[0], {}
    for line in lines[1:]:
        name, bound, commit, why = (cell.strip() for cell in line.split("|"))
        bounds[name] = float(bound)
    rows, group = [], ""
    for row in OPERATIONS:
        group = row[0].split(":")[0] if not row[0].startswith(" ") else group
        name = row[0] if not row[0].startswith(" ") else f"{group}, {row[0].strip()}"
        if name in bounds:
            rows.append((name, row))
    if len(rows) != len(bounds):
        unknown = sorted(set(bounds) - {name for name, _ in rows})
        raise SystemExit(f"instructions: {BOUNDS}: no such rows: {', '.join(unknown)}")
    for name, row in rows:
        if not is_here(row):
            print(f"not counted: {name}: there is no Python {row[1]}")
    rows = [(name, row) for name, row in rows if is_here(row)]
    with tempfile.TemporaryDirectory(prefix="vramtrace-instructions-") as name:
        work = Path(name)
        compiled(work)
        build = Build(0, BINS[0], work)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            counts = [pool.submit(each, build.operation, row, row[3]) for _, row in rows]
            print("| an operation | instructions | bound | ratio |\n|---|---:|---:|---:|")
            ratios = []
            for (name, _), count in zip(rows, counts):
                ratio = count.result() / bounds[name]
                print(f"| {name} | {count.result():,.1f} | {bounds[name]:,.10g} | {ratio:.4f} |", flush=True)
                ratios.append((ratio, name))
    if toolchain() != theirs:
        print(f"not compared: this is {toolchain()}; the bounds are of {theirs}")
        return
    for ratio, name in ratios:
        if ratio < 1 - SLACK:
            print(f"{name}: {ratio:.4f} of its bound: lower the bound in {BOUNDS.name}")
    above = [f"{name} ({ratio:.4f})" for ratio, name in ratios if ratio > 1 + SLACK]
    if above:
        raise SystemExit(f"instructions: above the bounds of {BOUNDS.name}: {', '.join(above)}")


def main():
    with tempfile.TemporaryDirectory(prefix="vramtrace-instructions-") as name:
        work = Path(name)
        compiled(work)
        builds = [Build(number, bins, work) for number, bins in enumerate(BINS)]
        for build in builds:
            build.check_stacks()
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            operations = [
                [pool.submit(each, build.operation, row, row[3]) for build in builds[: 1 if row[4] is None else None]]
                for row in filter(is_here, OPERATIONS)
            ]
            for build in builds:  # made before several threads read them
                for pairs in {times * row[2] for row in READING for times in (1, 2)}:
                    build.trace(pairs)
            reading = [[pool.submit(each, build.reading, row, 2 * row[2]) for build in builds] for row in READING]
            head("an operation", builds)
            for row, found in zip(filter(is_here, OPERATIONS), operations):
                figures = [future.result() for future in found]
                shown(row[0], figures * (len(builds) if row[4] is None else 1))
            print()
            head("reading", builds)
            for row, found in zip(READING, reading):
                shown(row[0], [future.result() for future in found])


if CHECK:
    check()
else:
    main()
