"""The part `aimdo` of the GPU check: comfy-aimdo, which replaces the beginning of the driver's functions, and PyTorch's
backend cudaMallocAsync, which ComfyUI takes by default. About 60 s: ten runs of a small program, four at a time.

hooks   a training with comfy-aimdo's hooks: the same results without and with the preload; owners, lines and bytes are
        those of the recorded run without the hooks
pages   weights in its pages: their role, and the evicted bytes by its counters and by the trace
async   a training under backend:cudaMallocAsync: results, named bytes, steps, roles; the message of an out-of-memory
        under a cap; the reserved memory of the native allocator, predicted and measured
"""
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

MIB = 1 << 20
ASYNC = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
# (name, the program's mode, its environment, recorded).
RUNS = [
    ("plain-ours", "plain", {}, True),
    ("plain-bare", "plain", {}, False),
    ("hooks-bare", "hooks", {}, False),
    ("hooks-ours", "hooks", {}, True),
    ("async-bare", "plain", ASYNC, False),
    ("async-ours", "plain", ASYNC, True),
    ("async-hooks-bare", "hooks", ASYNC, False),
    ("async-hooks-ours", "hooks", ASYNC, True),
    ("pages-bare", "pages", ASYNC, False),
    ("pages-ours", "pages", ASYNC, True),
]


def run(check, name, mode, extra, is_recorded):
    """Exit status, RESULT lines, notes of HOLD, trace; and while the program holds its memory, the trace's device and roles."""
    trace = check.TRACES / f"aimdo-{name}.vtrace" if is_recorded else None
    command = [sys.executable, str(check.PROGRAMS / "aimdo_run.py"), mode]
    held = check.Held(f"aimdo-{name}", command, check.environment(trace, **extra))
    device, roles = {}, {}
    if is_recorded and held.notes:
        device = check.the_process(trace, held.pid)["devices"][0]
        roles = {row["role"]: row["bytes"] for row in check.holders(trace, "--by", "role", "--at", "end")}
    return held.finish(), held.lines, held.notes, trace, device, roles


def holders(check, trace):
    """(library, line, calling line) -> (bytes, count) at the peak of what was allocated; and the named share."""
    found, named, all_bytes = {}, 0, 0
    for holder in check.holders(trace):
        frame = lambda at: holder["frames"][holder[at]] if holder.get(at) is not None else {}
        place = lambda of: f"{of.get('file', '')}:{of.get('line', '')}"
        key = holder["library"] or "?", place(frame("lead")), place(frame("caller"))
        is_named = holder.get("lead") is not None and holder["library"]
        all_bytes += holder["bytes"]
        named += holder["bytes"] if is_named else 0
        # What the driver took, and the free part of PyTorch's cache, have no requester.
        if holder.get("driver_memory") or not frame("lead").get("file"):
            continue
        count, known = found.get(key, (0, 0))
        found[key] = count + holder["bytes"], known + holder["count"]
    return found, named / max(all_bytes, 1)


def notes(check, trace):
    return [line for line in check.read("report", trace).splitlines() if "replaced the beginning" in line]


def same(check, table, bare, ours):
    bare, ours = table[bare], table[ours]
    return "same" if bare[:2] == ours[:2] and bare[0] == 0 else check.fail(f"bare {bare[:2]}, recorded {ours[:2]}")


def near(found, wanted):
    """Bytes within 0.1 %: the pool reaches its peak one small request earlier or later."""
    return found is not None and abs(found[0] - wanted[0]) <= 0.001 * wanted[0]


def hooks(check, table):
    print("\n| run | results | note | libraries | owners, lines and bytes as without the hooks |\n|---|---|---|---|---|")
    for name, plain in (("hooks", "plain-ours"), ("async-hooks", "async-ours")):
        if f"{name}-ours" not in table:
            continue
        trace, without = table[f"{name}-ours"][3], table[plain][3]
        (found, _), (wanted, _) = holders(check, trace), holders(check, without)
        wrong = {key: (found.get(key), wanted[key]) for key in wanted if not near(found.get(key), wanted[key])}
        libraries = sorted({key[0] for key in found})
        verdict = "PASS" if not wrong and "aimdo.so" not in libraries else check.fail(str(list(wrong.items())[:3]))
        noted = len(notes(check, trace))
        noted = noted if noted == 1 else check.fail(f"{noted} notes")
        print(f"| {name} | {same(check, table, f'{name}-bare', f'{name}-ours')} | {noted} | {', '.join(libraries)} | {verdict} |", flush=True)


def evictions(check, table):
    print("\n| pages | results | role, MiB | evicted, MiB: comfy-aimdo | the trace | verdict |\n|---|---|---|---|---|---|")
    status, lines, _, trace, device, _ = table["pages-ours"]
    if status or not lines:
        print(f"| pages | {same(check, table, 'pages-bare', 'pages-ours')} | | | | SKIP it does not run |")
        return
    counters = dict(part.split("=") for part in lines[0].split()[1:])
    roles = {row["role"]: row["bytes"] for row in check.holders(trace, "--by", "role")}
    # While the pages are there: at their end they are unmapped, too, and nobody evicts them.
    sleeps = device.get("sleeps") or {"sleeps": []}
    unmapped = sum(call["bytes"] for sleep in sleeps["sleeps"] for call in sleep["unmapped_by"])
    paged = roles.get("weights (paged)", 0)
    right = paged == int(counters["loaded"]) and unmapped == int(counters["evicted"])
    verdict = "PASS" if right else check.fail(f"loaded {counters['loaded']}, {json.dumps(sleeps)[:200]}")
    print(f"| pages | {same(check, table, 'pages-bare', 'pages-ours')} | {paged / MIB:.0f} | {int(counters['evicted']) / MIB:.0f} | {unmapped / MIB:.0f} | {verdict} |")


def driver_pool(check, table):
    print("\n| cudaMallocAsync | found | verdict |\n|---|---|---|")
    row = lambda what, found, right: print(f"| {what} | {found} | {'PASS' if right else check.fail('')} |", flush=True)
    print(f"| results | | {same(check, table, 'async-bare', 'async-ours')} |")
    trace = table["async-ours"][3]
    found, share = holders(check, trace)
    libraries = sorted({key[0] for key in found})
    row("named", f"{share:.2%}, {', '.join(libraries)}", share >= 0.99)
    steps = check.ask("report", "--by", "step", trace)["processes"][0]["steps"]
    updates = sum(step["updates"] for step in steps["steps"])
    row("steps", f"{steps['count']}, {updates} updates of the optimizer, of 4 ({steps['why']})", steps["count"] in (3, 4) and updates in (3, 4))
    roles = table["async-ours"][5]
    wanted = 6 * (1024 * 1024 + 1024) * 4
    close = lambda role, bytes: abs(roles.get(role, 0) - bytes) <= 0.01 * bytes
    row("roles after the last step, MiB", {role: round(bytes / MIB, 1) for role, bytes in roles.items()}, close("weights", wanted) and close("optimizer state", 2 * wanted))
    answer = check.run("aimdo-async-whatif", [check.BIN / "vramtrace", "whatif", trace, "--conf", "default"])
    row("whatif", answer.stderr.splitlines()[:1], answer.returncode != 0 and "the run used backend:cudaMallocAsync" in answer.stderr)


def out_of_memory(check):
    """Under a cap: PyTorch's own exception, our message, and `oom` of the trace."""
    trace = check.TRACES / "aimdo-fill.vtrace"
    command = [sys.executable, str(check.PROGRAMS / "oom_run.py"), "holds"]
    env = check.environment(trace, VRAMTRACE_CAP="8GiB", **ASYNC)
    ended = check.run("aimdo-fill", command, env, stdin=subprocess.DEVNULL, timeout=60)
    own = "torch.OutOfMemoryError" in ended.stderr
    message = "out of memory" in ended.stderr and "oom_run.py" in ended.stderr and "by the cap" in ended.stderr
    told = check.run("aimdo-fill-oom", [check.BIN / "vramtrace", "oom", trace])
    said = "oom_run.py" in told.stdout and "OUT OF MEMORY" in told.stdout
    verdict = "PASS" if own and message and said else check.fail(f"exception {own}, message {message}, `oom` {said}, see aimdo-fill.log")
    print(f"| out of memory under a cap of 8 GiB | {(told.stdout.splitlines() or ['nothing'])[0][:100]} | {verdict} |", flush=True)


def section(check):
    """`check`: the module check.py, which holds what all parts share."""
    print("\n## ComfyUI: replaced functions, and PyTorch's backend cudaMallocAsync\n")
    wheel = not check.have("comfy_aimdo")
    if not wheel:
        print("SKIP comfy-aimdo: not installed (pip install comfy-aimdo)")
    runs = [each for each in RUNS if wheel or each[1] == "plain"]
    with ThreadPoolExecutor(4) as pool:
        running = {name: pool.submit(run, check, name, mode, extra, recorded) for name, mode, extra, recorded in runs}
        table = {name: of.result() for name, of in running.items()}
    if wheel:
        check.each((hooks, check, table), (evictions, check, table))
    check.each((driver_pool, check, table), (out_of_memory, check))
