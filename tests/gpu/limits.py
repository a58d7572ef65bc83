"""The parts `cap` and `limits` of the GPU check.

cap     fills the card under VRAMTRACE_CAP=8GiB until a request is refused; NVML's figure at that time
limits  a budget for two processes, limits that change while a program runs, a cap that only warns, and two services on one card
"""
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from talk import Talk

MIB = 1 << 20
CAP = 8192
STACK = 16384
REFUSED = 2


def order(check, *arguments):
    """Changes a limit with `vramtrace cap`: its output, and the times at which it started and returned, ns."""
    began = time.monotonic_ns()
    out = check.read("cap", *arguments).strip()
    return out, began, time.monotonic_ns()


def shown(check, pid):
    """The process, as `vramtrace ps` lists it."""
    return next((process for process in check.ask("ps")["processes"] if process["pid"] == pid), None)


def first_device(process):
    return process["devices"][0] if process and process["devices"] else {}


def judged(check, good, why=""):
    return "ok" if good else check.fail(why)


def interactive(check, name, **extra):
    """A running tests/programs/interactive.c: an order on each line, a result for each."""
    program = check.build("interactive", "gcc", check.ROOT / "tests/programs/interactive.c", *check.C)
    env = check.environment(check.TRACES / f"{name}.vtrace", **extra)
    talk = Talk(open(check.LOGS / f"{name}.log", "w"), [str(program)], env)
    talk.until(lambda line: line == "ready")
    return talk


def fill(talk, mib):
    """Takes so many MiB at a time, until it is refused."""
    while talk.ask(f"a {mib}") == "0":
        pass


# What fills the card, and the module that it needs.
WAYS = {"torch": "torch", "expandable": "torch", "async": "torch", "cupy": "cupy", "jax": "jax"}
WAYS |= dict.fromkeys(("vmm", "pool", "device", "pitched", "array", "graph", "managed"), "cuda")
WITH_STACK = ("torch", "expandable", "device")


def cap(check):
    check.table(
        f"NVML at the first refusal under VRAMTRACE_CAP=8GiB, of some with a stack limit of {STACK} bytes on the way (MiB)",
        "filled by | stack limit | NVML | of the cap | got | the program saw | total shown | verdict",
    )
    for how, module in WAYS.items():
        if missing := check.have(module):
            print(f"| {how} | SKIP no {missing} | | | | | | |")
            continue
        before, trace, stack = check.smi(), check.TRACES / f"fill-{how}.vtrace", STACK if how in WITH_STACK else 0
        env = check.environment(trace, VRAMTRACE_CAP="8GiB", FILL_STACK=str(stack))
        ours = check.Held(f"fill-{how}", [sys.executable, str(check.PROGRAMS / "fill.py"), how], env)
        # NVML's figure for a process excludes managed memory: there the card's is used.
        used = check.smi() - before if how == "managed" else check.smi(ours.pid)
        limits = first_device(check.the_process(trace, ours.pid)).get("driver_bytes", {}).get("local_memory", 0)
        ours.finish()
        saw, wanted = ours.notes.get("verdict"), "CUDA_ERROR_OUT_OF_MEMORY" if module == "cuda" else "OutOfMemoryError"
        # The driver takes managed memory in steps of 128 MiB.
        least, most = (0.97 if how == "managed" else 0.99) * CAP, CAP + (2 if stack else 0)
        good = used is not None and least <= used <= most and saw == wanted and (not stack or limits > 0)
        named = f"{limits // MIB} named" if stack else "as it was"
        print(
            f"| {how} | {named} | {used} | {100 * (used or 0) / CAP:.2f} % | {ours.notes.get('got')} | {saw} "
            f"| {ours.notes.get('total')} | {judged(check, good, f'must be {least:.0f} to {most}')} |"
        )
    if not check.have("jax"):
        env = check.environment(check.TRACES / "fill-prealloc.vtrace", VRAMTRACE_CAP="8GiB")
        ours = check.Held("fill-prealloc", [sys.executable, str(check.PROGRAMS / "jax_run.py"), "prealloc"], env)
        used, limit = check.smi(ours.pid), int(ours.notes.get("limit", "0")) // MIB
        status = ours.finish()
        good = status == 0 and used is not None and used <= CAP and 0 < limit <= CAP
        print(f"| jax (sizes itself) | | {used} | {100 * (used or 0) / CAP:.2f} % | {limit} | status {status} | | {judged(check, good)} |")


def group(check):
    check.table("Two processes in a group of 8 GiB (MiB)", "moment | NVML of both | of the budget | verdict")
    name = f"gpu-check-{time.monotonic_ns():x}"
    both = [interactive(check, f"group-{n}", VRAMTRACE_CAP_GROUP=f"{name}:8GiB") for n in "ab"]
    a, b = both
    open_ones = {0, 1}
    while open_ones:  # in turns, until both are refused
        open_ones = {n for n in open_ones if int(both[n].ask("a 64")) != REFUSED}
    for talk in both:
        fill(talk, 2)
    used = [check.smi(talk.pid) or 0 for talk in both]
    good = 0.99 * CAP <= sum(used) <= CAP + 4
    parts = " + ".join(map(str, used))
    print(f"| filled in turns | {parts} = {sum(used)} | {100 * sum(used) / CAP:.2f} % | {judged(check, good)} |")
    before = int(b.ask("a 2"))
    a.kill()
    after = int(b.ask(f"a {used[0] - 64}"))
    good = (before, after) == (REFUSED, 0)
    print(f"| one killed, the other's next request for {used[0] - 64} | results {before}, {after} | | {judged(check, good)} |")
    fill(b, 2)
    used = check.smi(b.pid) or 0
    print(f"| and the rest of it | {used} | {100 * used / CAP:.2f} % | {judged(check, 0.99 * CAP <= used <= CAP + 2)} |")
    out, _, _ = order(check, "--group", name, "4GiB")
    print(f"| `vramtrace cap --group` | {out.partition(': ')[2]} | | {judged(check, 'are refused until' in out)} |")
    b.end()


def latency(check):
    """The delay from a change of the limit to the first result under it, in a program that allocates all the time."""
    talk = interactive(check, "hammer")
    talk.say("t")
    talk.until(lambda line: len(line.split()) == 3)
    lower, raised = [], []
    for _ in range(15):
        for limit, answer, into in (("100MiB", REFUSED, lower), ("none", 0, raised)):
            _, began, returned = order(check, "--pid", talk.pid, limit)
            moment = int(talk.until(lambda line: line.startswith(f"{answer} "), 5).split()[1])
            into.append(((moment - began) / 1e6, (moment - returned) / 1e6))
    talk.kill()
    check.table("From `vramtrace cap --pid` to the first answer under the new limit, ms", "change | times | from the command's start: median, highest | from its return: median, highest | verdict")
    for name, figures in (("lowered", lower), ("raised", raised)):
        starts, returns = zip(*figures)
        verdict = judged(check, max(returns) <= 10, "must be at most 10 ms")
        print(
            f"| {name} | {len(figures)} | {statistics.median(starts):.2f}, {max(starts):.2f} "
            f"| {statistics.median(returns):.2f}, {max(returns):.2f} | {verdict} |"
        )


def facts(line):
    return {key: int(value) for key, value in (part.split("=") for part in line.split()[1:])}


def training(check):
    print("\n### A limit that changes under a training loop (MiB)\n")
    if missing := check.have("torch"):
        print(f"SKIP training: no {missing}")
        return
    env = check.environment(check.TRACES / "elastic.vtrace")
    loop = Talk(open(check.LOGS / "elastic.log", "w"), [sys.executable, str(check.PROGRAMS / "elastic.py")], env)

    def at(steps=0, seconds=30):
        """The program's figures after `steps` more steps."""
        now = facts(loop.until(lambda line: line.startswith("AT")))
        while steps > 0:
            later = facts(loop.until(lambda line: line.startswith("AT"), seconds))
            if later["steps"] - now["steps"] >= steps:
                return later
        return now

    def later(seconds):
        end, now = time.monotonic() + seconds, at()
        while time.monotonic() < end:
            now = at()
        return now

    check.table(None, "moment | limit | NVML | ps: live, counted, cap, refused | steps | out of memory | cache emptied by torch | verdict")

    def row(moment, limit, before, now, verdict):
        device = first_device(shown(check, loop.pid))
        figures = [device.get(key) for key in ("live_bytes", "counted_bytes", "cap_bytes")]
        figures = ", ".join("-" if figure is None else str(figure // MIB) for figure in figures)
        parts = [now[key] - before[key] for key in ("steps", "ooms", "retries")]
        print(
            f"| {moment} | {limit} | {check.smi(loop.pid)} | {figures}, {device.get('refused_by_cap')} "
            f"| {parts[0]} | {parts[1]} | {parts[2]} | {verdict} |"
        )

    start = at()
    now = at(60)
    device = first_device(shown(check, loop.pid))
    good = device.get("live_bytes", 0) > 0 and device.get("cap_bytes") is None and now["ooms"] == 0
    row("no cap", "-", start, now, judged(check, good))
    peak = device["peak_bytes"] // MIB
    mib = int(peak * 0.75)
    out, _, _ = order(check, "--pid", loop.pid, f"{mib}MiB")
    start, now = now, later(3)
    used = check.smi(loop.pid) or 0
    bites = now["ooms"] + now["retries"] > start["ooms"] + start["retries"]
    good = bites and now["steps"] > start["steps"] and used <= mib + 2
    row("lowered to 3/4 of its peak", mib, start, now, judged(check, good))
    mib = 640
    out, began, returned = order(check, "--pid", loop.pid, f"{mib}MiB")
    first = facts(loop.until(lambda line: line.startswith("OOM") and facts(line)["ns"] >= began))
    start, now = now, later(1.5)
    good = now["ooms"] > start["ooms"] and now["steps"] - start["steps"] < 40 and "are refused until" in out
    took = (first["ns"] - returned) / 1e6
    row(f"below what the model has; {took:.1f} ms to OutOfMemoryError", mib, start, now, judged(check, good))
    order(check, "--pid", loop.pid, "none")
    later(0.3)
    start = at()
    now = at(60)
    row("raised: none", "-", start, now, judged(check, now["ooms"] == start["ooms"]))
    status = loop.end()
    print(f"\nIt ended with status {status} " + judged(check, status == 0))


def warns(check):
    print("\n### VRAMTRACE_CAP_MODE=warn, a cap of 600 MiB\n")
    if missing := check.have("torch"):
        print(f"SKIP warn: no {missing}")
        return
    command = [sys.executable, str(check.PROGRAMS / "torch_run.py"), "native"]
    trace = check.TRACES / "warn.vtrace"
    env = check.environment(trace, VRAMTRACE_CAP="600MiB", VRAMTRACE_CAP_MODE="warn")
    with ThreadPoolExecutor(2) as pool:
        bare = pool.submit(check.Held, "warn-bare", command, check.environment())
        ours = pool.submit(check.Held, "warn-ours", command, env)
        bare, ours = bare.result(), ours.result()
    device = check.the_process(trace, ours.pid)["devices"][0]
    ends = bare.finish(), ours.finish()
    messages = [line for line in (check.LOGS / "warn-ours.log").read_text().splitlines() if line.startswith("vramtrace")]
    good = ends[0] == ends[1] == 0 and bare.lines == ours.lines and device["would_have_refused"] > 0 and messages
    print(
        f"status {ends[1]}, {ours.lines} against {bare.lines}; would have refused {device['would_have_refused']}; "
        f"stderr: {messages[:2]} " + judged(check, good and device["refused_by_cap"] == 0)
    )


def services(check):
    print("\n### Two services that size themselves, on one card, each under a cap of 48 % of it (MiB)\n")
    if missing := check.have("torch"):
        print(f"SKIP services: no {missing}")
        return
    total = int(subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"], capture_output=True, text=True
    ).stdout.split()[0])
    cap = total * 48 // 100
    gates = 0

    def start(names):
        nonlocal gates
        gates += 1
        gate = check.TRACES / f"gate{gates}"
        gate.mkdir()
        command = [sys.executable, str(check.PROGRAMS / "kv_service.py"), "0.9", str(gate)]
        with ThreadPoolExecutor(len(names)) as pool:
            env = lambda name: check.environment(check.TRACES / f"{name}.vtrace", VRAMTRACE_CAP=f"{cap}MiB")
            started = [pool.submit(check.Held, name, command, env(name)) for name in names]
            end = time.monotonic() + 60
            while len(list(gate.iterdir())) < len(names) and time.monotonic() < end:
                time.sleep(0.02)
            (gate / "go").touch()
            return [held.result() for held in started]

    check.table(None, "service | failed | blocks of 64 | growth beside torch | total it sees | NVML | of the cap | verdict")
    alone = None
    for names in (["service-alone"], ["service-a", "service-b"]):
        for held in (together := start(names)):
            used, notes = check.smi(held.pid) or 0, held.notes
            blocks = int(notes.get("blocks", -1))
            alone = blocks if alone is None else alone
            # Neither service may take blocks from the other; lazily loaded kernels may cost one block.
            good = notes.get("failed") == "no" and abs(blocks - alone) <= 1 and 0.6 * cap < used <= cap + 2
            print(
                f"| {held.name} | {notes.get('failed')} | {blocks} | {notes.get('growth')} | {notes.get('total')} "
                f"| {used} | {100 * used / cap:.1f} % | {judged(check, good)} |"
            )
        for held in together:
            held.finish()


def section(check):
    if shutil.which("gcc"):
        check.each((group, check), (latency, check))
    else:
        print("SKIP group, latency: no gcc")
    check.each((training, check), (warns, check), (services, check))
