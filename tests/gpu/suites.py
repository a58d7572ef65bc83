"""The part `suites` of the GPU check: the tests of PyTorch, CuPy and numba, without and with the preload.

All suites run at the same time, each of them twice: bare and preloaded. The outcomes of each test must be
equal. A test with different outcomes runs again, first bare and then preloaded, when nothing else runs, and counts only if it
differs again: some tests of these suites depend on time or on free memory, and CuPy's take 70 % of the card.

VRAMTRACE_SUITE_TORCH=FILE    PyTorch's test/test_cuda.py
VRAMTRACE_SUITE_CUPY=DIR      CuPy's tests/cupy_tests, or a folder in it
VRAMTRACE_SUITE_NUMBA=DIR     numba-cuda's tests (default: those of the installed package)
VRAMTRACE_SUITE_SECONDS=N     time limit for a suite (default 900); tests that finished in both runs are compared
VRAMTRACE_SUITE_SELECT=EXPR   pytest's -k, for all suites
"""
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def found(check):
    """(name, module that must be installed, pytest's arguments or None, why not)"""
    file = os.environ.get("VRAMTRACE_SUITE_TORCH")
    yield "PyTorch", "torch", [file] if file else None, "VRAMTRACE_SUITE_TORCH names no file"
    folder = os.environ.get("VRAMTRACE_SUITE_CUPY")
    yield "CuPy", "cupy", [folder] if folder else None, "VRAMTRACE_SUITE_CUPY names no folder"
    folder = os.environ.get("VRAMTRACE_SUITE_NUMBA")
    # The package lies in a folder that is none: pytest finds its name only so.
    packaged = ["--pyargs", "-o", "consider_namespace_packages=true", "numba.cuda.tests.cudadrv", "numba.cuda.tests.cudapy"]
    inside = not check.have("numba") and not check.have("numba.cuda.tests")
    yield "numba", "numba", [folder] if folder else packaged if inside else None, (
        "VRAMTRACE_SUITE_NUMBA names no folder, and the installed package has no tests"
    )


def run(check, name, mode, arguments, seconds):
    """Outcomes by test, the exit status (None: time limit), and the seconds that it took."""
    outcomes = check.TRACES / f"{name}-{mode}.outcomes"
    outcomes.write_text("")
    trace = check.TRACES / f"suite-{name}" if mode != "bare" else None
    env = check.environment(
        f"{trace}/" if trace else None, OUTCOMES=str(outcomes), PYTHONDONTWRITEBYTECODE="1",
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
    )
    env["CUPY_CACHE_DIR"] = str(check.TRACES / f"cupy-cache-{mode}")
    work = check.TRACES / f"work-{name}-{mode}"
    work.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "outcomes", "-p", "no:cacheprovider"]
    # A file that cannot be imported because a package is missing fails both ways.
    command += ["-p", "no:randomly", "--no-header", "--tb=line", "--continue-on-collection-errors"]
    if chosen := os.environ.get("VRAMTRACE_SUITE_SELECT"):
        command += ["-k", chosen]
    command += arguments
    started = time.time()
    with open(check.LOGS / f"suite-{name}-{mode}.log", "a") as log:
        process = subprocess.Popen(command, env=env, cwd=work, stdout=log, stderr=log, start_new_session=True)
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = None
    lines = [line.split("\t", 1) for line in outcomes.read_text().splitlines()]
    return {test: outcome for outcome, test in lines}, status, time.time() - started


def both(check, name, arguments, seconds):
    with ThreadPoolExecutor() as pool:
        bare = pool.submit(run, check, name, "bare", arguments, seconds)
        ours = pool.submit(run, check, name, "preloaded", arguments, seconds)
        return bare.result(), ours.result()


def compared(check, name, arguments, results):
    """Prints the row of a suite. Returns the tests that differ."""
    (bare, bare_status, bare_time), (ours, status, ours_time) = results
    shared = bare.keys() & ours.keys()
    differ = sorted(test for test in shared if bare[test] != ours[test])
    again = []
    for test in differ[:20]:
        # By name with -k: the printed path is relative to the directory of the first run.
        alone = [*arguments, "-k", test.split("::")[-1]]
        first, second = (run(check, name, mode, alone, 120)[0].get(test) for mode in ("bare", "preloaded"))
        if first != second:
            again.append(f"{test}: {first} bare, {second} preloaded")
    # A run that ends by a signal, or by another status than the other, is a difference too.
    crashed = status is not None and bare_status is not None and (status < 0) != (bare_status < 0)
    unseen = (bare.keys() ^ ours.keys()) if None not in (bare_status, status) else set()
    counts = {kind: sum(1 for test in shared if ours[test] == kind) for kind in ("passed", "failed", "skipped")}
    wrong = bool(again) or crashed or bool(unseen) or len(differ) > 20
    if not shared:
        verdict = check.fail(f"no test finished in both (status {bare_status} bare, {status} preloaded)")
    elif wrong:
        verdict = check.fail(f"{len(again)} differ again, {len(unseen)} ran in one only, status {bare_status} and {status}")
    else:
        verdict = "same"
    limit = ", time limit" if status is None or bare_status is None else ""
    if limit and bare:
        # The next one takes long, or hangs.
        limit += f" after {list(bare)[-1]}"
    print(
        f"| {name} | {len(shared)} | {counts['passed']} | {counts['failed']} | {counts['skipped']} "
        f"| {len(differ)} | {len(again)} | {bare_time:.0f} / {ours_time:.0f}{limit} | {verdict} |",
        flush=True,
    )
    return again + sorted(f"{test}: ran in one only" for test in unseen)[:20]


def section(check):
    print("\n### Test suites of PyTorch, CuPy and numba, bare and preloaded\n")
    seconds = int(os.environ.get("VRAMTRACE_SUITE_SECONDS", "900"))
    check.table(None, "suite | tests in both | passed | failed (both) | skipped | differed once | differed again | seconds |")
    rows, jobs = [], []
    with ThreadPoolExecutor() as pool:
        for name, module, arguments, why in found(check):
            if check.have(module):
                print(f"| {name} | SKIP no {module} | | | | | | | |")
            elif arguments is None:
                print(f"| {name} | SKIP {why} | | | | | | | |")
            elif arguments[0] != "--pyargs" and not Path(arguments[0]).exists():
                print(f"| {name} | " + check.fail(f"{arguments[0]} does not exist") + " | | | | | | | |")
            else:
                arguments = [str(Path(a).resolve()) if Path(a).exists() else a for a in arguments]
                jobs.append((name, arguments, pool.submit(both, check, name, arguments, seconds)))
    for name, arguments, job in jobs:
        rows += compared(check, name, arguments, job.result())
    for row in rows:
        print(f"* {row}")
