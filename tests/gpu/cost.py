"""The part `cost` of the GPU check: nanoseconds of an allocation and its free, without the recorder and with parts of it, on
1, 2, 4 and 8 threads.

Each round runs every way once, the first one changing from round to round. The tables have the lowest and the median of
the rounds. `VRAMTRACE_HAMI` names HAMi-core's libvgpu.so, which limits memory and records nothing. Takes about 90 s.
"""
import os
import shutil
import statistics
import subprocess
from pathlib import Path

ROUNDS = 8
BARE = "bare"
CAP = {"VRAMTRACE_CAP": "100GiB"}
NO_STACKS = {"VRAMTRACE_STACKS": "none"}
# Most nanoseconds over bare for cuMemAllocAsync and its free on one thread, and the most times bare with several threads.
GOALS_NS = {"cap alone": 150, "trace and stacks": 250, "cap, trace and stacks": 350}
GOAL_OF_THREADS = 1.4
# What any library costs there whose code runs this long before each call of the driver.
SPIN_NS = 100


def ways(check, hami):
    """By name: the arguments of the program, and its environment in a round."""
    recorded = lambda **extra: lambda at: check.environment(check.TRACES / f"pairs-{at}.vtrace", **extra)
    off = lambda **extra: lambda at: check.environment("off", **extra)
    plain = lambda at: check.environment()
    every = {
        BARE: (["8"], plain),
        f"bare, {SPIN_NS} ns before each call": (["8", str(SPIN_NS)], plain),
        "no trace, no cap": (["8"], off()),
        "cap alone": (["8"], off(**CAP)),
        "trace": (["8"], recorded(**NO_STACKS)),
        "trace and stacks": (["8"], recorded()),
        "cap, trace and stacks": (["8"], recorded(**CAP)),
    }
    if hami:
        beside = {"LD_PRELOAD": hami, "CUDA_DEVICE_MEMORY_LIMIT": "100g", "LIBCUDA_LOG_LEVEL": "0"}
        cache = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": str(check.TRACES / "hami.cache")}
        every["HAMi-core, a cap"] = (["8"], lambda at: {**check.environment(), **beside, **cache})
    return every


def measured(check, program, every):
    """Nanoseconds by way, in the order of the rounds; the keys are the pair and the number of threads."""
    found, names = {}, list(every)
    for turn in range(ROUNDS):
        first = turn % len(names)
        for at, name in enumerate(names[first:] + names[:first]):
            arguments, environment = every[name]
            answer = subprocess.run(
                [str(program), *arguments], env=environment(f"{turn}-{at}"), capture_output=True, text=True, timeout=60
            )
            if answer.returncode:
                print(check.fail(f"cost: {name}: status {answer.returncode} {answer.stderr[:200]}"))
            for line in answer.stdout.splitlines():
                pair, threads, ns = line.split()
                if pair != "dlsym":
                    found.setdefault((pair, int(threads)), {}).setdefault(name, []).append(float(ns))
    return found


def cells(of, bare, threads, pair, name):
    lowest, least = min(of), min(bare)
    goal, met = "", True
    if pair == "async" and threads == 1 and name in GOALS_NS:
        goal, met = f"+{GOALS_NS[name]} ns", lowest - least <= GOALS_NS[name]
    elif pair == "async" and threads in (2, 8) and name == "cap, trace and stacks":
        goal, met = f"{GOAL_OF_THREADS} times", lowest <= GOAL_OF_THREADS * least
    verdict = (goal + (": met" if met else ": not met")) if goal else ""
    middle = statistics.median(of)
    return (
        f"{lowest:,.0f} | {lowest - least:+,.0f} | {lowest / least:.2f} | {middle:,.0f} | "
        f"{middle / statistics.median(bare):.2f} | {verdict}"
    )


def section(check):
    if not shutil.which("gcc"):
        print("SKIP cost: no gcc")
        return
    print(f"\n### An allocation and its free, ns: lowest and median of {ROUNDS} rounds\n")
    program = check.build("pairs", "gcc", check.ROOT / "benches/pairs.c", *check.C)
    if program is None:
        print(check.fail("cost: pairs.c does not build, see its log"))
        return
    hami = os.environ.get("VRAMTRACE_HAMI")
    if hami and not Path(hami).is_file():
        print(check.fail(f"cost: VRAMTRACE_HAMI: {hami}: must be HAMi-core's libvgpu.so"))
        hami = None
    found = measured(check, program, ways(check, hami))
    check.table(None, "pair | threads | with | lowest | over bare | times bare | median | times bare | goal")
    for (pair, threads), by in found.items():
        if BARE not in by:
            print(f"| {pair} | {threads} | {check.fail('nothing was measured without the recorder')} | | | | | | |")
            continue
        for name, of in by.items():
            print(f"| {pair} | {threads} | {name} | {cells(of, by[BARE], threads, pair, name)} |")
    if not os.environ.get("VRAMTRACE_HAMI"):
        print("\nSKIP HAMi-core: VRAMTRACE_HAMI does not name its library")
