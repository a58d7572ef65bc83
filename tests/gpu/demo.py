"""The part `demo` of the GPU check: a training run that fragmentation ends, recorded under a cap; the
file that `vramtrace demo` shows; and PyTorch's own viewer on our snapshot of it."""
import gzip
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

GIB = 1 << 30
MOST = 1_000_000
JUDGE = Path(__file__).resolve().parents[2] / "tests" / "python" / "torch_snapshot.py"


def section(check):
    """`check`: the module check.py, which holds what all parts share."""
    print("\n### A run that fragmentation ends, recorded under a cap\n")
    place = check.TRACES / "demo"
    place.mkdir()
    # A copy in a neutral place: the shipped file must not contain paths of this machine.
    shutil.copy(check.PROGRAMS / "train.py", place / "train.py")
    trace = failing(check, place)
    if trace is None:
        return
    ship(check, trace)
    viewer(check, trace)


def train(check, place, cap, name):
    trace = place / f"{name}.vtrace"
    extra = {"VRAMTRACE_CAP": f"{cap}MiB"} if cap else {}
    ended = check.run(f"demo-{name}", [sys.executable, "train.py"], check.environment(trace, VRAMTRACE_MAX="unlimited", **extra), cwd=place)
    words = {line.split()[0]: line.split()[1:] for line in ended.stdout.splitlines() if line}
    return trace, ended.returncode, [int(word) for word in words.get("PEAKS", [])]


def failing(check, place):
    """The trace of the run under the highest cap (within 256 MiB) at which it fails."""
    _, status, peaks = train(check, place, None, "free")
    if status or len(peaks) != 2:
        print(check.fail(f"train.py without a cap: status {status}, see demo-free.log"))
        return None
    allocated, reserved = peaks
    print(f"without a cap: {allocated / GIB:.2f} GiB allocated, {reserved / GIB:.2f} GiB reserved at the peaks")
    # The context and the libraries add to both figures, at most 2 GiB.
    low, high, found = allocated >> 20, (reserved >> 20) + 2048, None
    while high - low > 256:
        cap = (low + high) // 2
        trace, status, peaks = train(check, place, cap, f"cap-{cap}")
        if status not in (0, 3):
            print(check.fail(f"train.py under {cap} MiB: status {status}, see demo-cap-{cap}.log"))
            return None
        if status == 3:
            low, found = cap, (cap, trace, peaks)
        else:
            high = cap
    if found is None:
        print(check.fail(f"no cap above {low} MiB ends the run"))
        return None
    cap, trace, (allocated, reserved) = found
    print(f"under {cap} MiB it ends: {allocated / GIB:.2f} GiB allocated, {reserved / GIB:.2f} GiB reserved at the peaks")
    return trace


def ship(check, trace):
    packed = trace.with_suffix(".packed.vtrace")
    check.read("pack", trace, "-o", packed)
    small = gzip.compress(packed.read_bytes(), 9, mtime=0)
    (check.LOGS / "recorded.vtrace.gz").write_bytes(small)
    good = len(small) < MOST
    print(f"recorded.vtrace.gz: {len(small)} bytes {'ok' if good else check.fail(f'must be less than {MOST:,}: use fewer STEPS in train.py')}")


def viewer(check, trace):
    print("\n### Our snapshot of it in torch's own _memory_viz.py\n")
    pickle = trace.with_suffix(".pickle")
    print(check.read("export", "--format", "torch-snapshot", "-o", pickle, trace).strip())
    viz = Path(importlib.util.find_spec("torch").origin).parent / "cuda" / "_memory_viz.py"
    for what in (["opcodes"], ["rules"], ["viewer"]):
        # stats, trace, segments, memory, and the pages for the browser.
        more = [str(viz)] if what == ["viewer"] else []
        ended = subprocess.run([sys.executable, str(JUDGE), *what, str(pickle), *more], capture_output=True, text=True)
        verdict = "ok" if ended.returncode == 0 else check.fail(ended.stderr.strip()[-300:])
        print(f"* {what[0]}: {verdict}")
