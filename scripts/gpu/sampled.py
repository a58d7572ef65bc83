"""The part `sampled` of the GPU check: what VRAMTRACE_RECORD=sampled costs text generation with GPT-2 (random weights).

Groups of three programs run at once, each group on a processor core of its own: one without the recorder, one with
samples, one with the full recorder. They step in turn: a ratio is that of a step to the mean of the two steps of the bare
program right before and after it, on the same core; each group has memory layouts of its own. The ratio of these two says
how large the noise is. The interval is that of a bootstrap over the groups and the turns of each.

Takes about 110 s: 40 s for the start of the programs, and turns of four steps of 0.13 s.
"""
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import stacks

MIB = 1 << 20
GROUPS = 8
TOKENS = 24
# A group takes so many turns before the next one has its turns, and has two such visits.
TURNS_OF_VISIT, VISITS = 8, 2
# No turn begins after this time since the start of the part, and the programs are killed after it.
LAST_TURN_S, PATIENCE_S = 115, 150
FEWEST_TURNS = 20
MOST_RATIO, MOST_MEMORY = 1.02, 64 * MIB
KINDS = ["bare", "sampled", "full"]


class Program(stacks.Stepper):
    def cpu_ns(self):
        """The processor time of its threads so far."""
        total = 0
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            try:
                total += int((task / "schedstat").read_text().split()[0])
            except OSError:
                pass
        return total

    def resident(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) << 10

    def measured_step(self):
        """Milliseconds of a step, and of processor time."""
        before = self.cpu_ns()
        self.step("generate", 1)
        return self.times["generate"][-1], (self.cpu_ns() - before) / 1e6


def interval(groups, resamples=2000):
    """The median of all figures, and its 95 % interval: groups are drawn, and figures within each."""
    generator = random.Random(1)
    medians = []
    for _ in range(resamples):
        drawn = [generator.choice(groups) for _ in groups]
        medians.append(statistics.median(one for group in drawn for one in generator.choices(group, k=len(group))))
    medians.sort()
    every = [one for group in groups for one in group]
    return statistics.median(every), medians[resamples // 40], medians[resamples - 1 - resamples // 40]


def cores():
    """One processor for each group: every second one where there are enough, because two neighbours may share a core."""
    found = sorted(os.sched_getaffinity(0))
    every_second = found[::2]
    return every_second[:GROUPS] if len(every_second) >= GROUPS else found[:GROUPS]


def start(binary, program, environment, traces, log):
    def one(kind, at):
        trace = None if kind == "bare" else traces / f"{kind}-{at}.vtrace"
        recording = {} if kind == "bare" else {"VRAMTRACE_RECORD": kind}
        variables = environment(trace, STEPS_KINDS="generate", STEPS_TOKENS=str(TOKENS), **recording)
        return Program(f"{kind}-{at}", [sys.executable, str(program)], variables, log)

    return [{kind: one(kind, at) for kind in KINDS} for at in range(len(cores()))]


def pin(program, core):
    """Not before it is ready: its start takes long on one processor."""
    for thread in Path(f"/proc/{program.process.pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def measure(groups, begun):
    """Ratios to the bare program of the group, by kind and group: of time, and of processor time."""
    ratios = {kind: [[] for _ in groups] for kind in ["noise", "full", "sampled"]}
    cpu = {kind: [[] for _ in groups] for kind in ["full", "sampled"]}
    order = [at for _ in range(VISITS) for at in range(len(groups)) for _ in range(TURNS_OF_VISIT)]
    visited = None
    for turn, at in enumerate(order):
        if turn >= FEWEST_TURNS and time.time() - begun > LAST_TURN_S:
            break
        group = groups[at]
        if at != visited:  # the caches and the clock of that core
            for kind in KINDS:
                group[kind].measured_step()
            visited = at
        others = ["sampled", "full"] if turn % 2 == 0 else ["full", "sampled"]
        first = group["bare"].measured_step()
        found = {kind: group[kind].measured_step() for kind in others}
        last = group["bare"].measured_step()
        bare = [(one + other) / 2 for one, other in zip(first, last)]
        for kind, (ms, cpu_ms) in found.items():
            ratios[kind][at].append(ms / bare[0])
            cpu[kind][at].append(cpu_ms / bare[1])
        ratios["noise"][at].append(last[0] / first[0])
    return ratios, cpu


def section(check):
    print("\n### VRAMTRACE_RECORD=sampled: text generation with GPT-2\n")
    if not stacks.known(check.BIN, {"VRAMTRACE_RECORD": "sampled"}):
        print("SKIP sampled: this recorder has no VRAMTRACE_RECORD")
        return
    begun = time.time()
    log = open(check.LOGS / "sampled.log", "w")
    groups = start(check.BIN, check.PROGRAMS / "steps.py", check.environment, check.TRACES, log)
    programs = [program for group in groups for program in group.values()]
    watchdog = threading.Timer(PATIENCE_S, lambda: [program.process.kill() for program in programs])
    watchdog.daemon = True
    watchdog.start()
    try:
        counts = [program.ready() for program in programs][0]
        for group, core in zip(groups, cores()):
            for program in group.values():
                pin(program, core)
        ready = time.time() - begun
        ratios, cpu = measure(groups, begun)
        print(f"{len(programs)} programs were ready after {ready:.0f} s.", end=" ")
        memory = {
            kind: statistics.median(group[kind].resident() - group["bare"].resident() for group in groups)
            for kind in cpu
        }
        table(counts, ratios, cpu, memory, check.fail)
        described(check, check.TRACES / "sampled-0.vtrace")
    except (RuntimeError, BrokenPipeError, OSError) as error:
        print(check.fail(f"{error}; see sampled.log"))
    finally:
        watchdog.cancel()
        for program in programs:
            program.process.kill()
            program.process.wait()
        log.close()


def table(counts, ratios, cpu, memory, fail):
    print(f"A step makes {counts['generate']} blocks. Ratios to the bare program on the same core: medians.\n")
    print("| | turns | time, 95 % interval | processor time, 95 % interval | memory, MiB | |\n|---|---|---|---|---|---|")
    for name in ["noise", "full", "sampled"]:
        groups = [group for group in ratios[name] if group]
        if not groups:
            continue
        median, low, high = interval(groups)
        verdict = ""
        if name == "sampled":
            wrong = []
            if high > MOST_RATIO:
                wrong.append(f"the upper end is above {MOST_RATIO}")
            if memory[name] > MOST_MEMORY:
                wrong.append(f"more than {MOST_MEMORY // MIB} MiB")
            verdict = fail("; ".join(wrong)) if wrong else "PASS"
        title = "two steps of the bare program: the noise" if name == "noise" else name
        of_cpu = ""
        if name in cpu:
            of_cpu = "{:.3f} ({:.3f} to {:.3f})".format(*interval([group for group in cpu[name] if group]))
        of_memory = f"{memory[name] / MIB:+.1f}" if name in memory else ""
        turns = sum(len(group) for group in groups)
        print(f"| {title} | {turns} | {median:.3f} ({low:.3f} to {high:.3f}) | {of_cpu} | {of_memory} | {verdict} |")


def described(check, trace):
    """The rate of samples at the end, and the recorder's own estimate of its cost."""
    command = [str(check.BIN / "vramtrace"), "report", "--json", str(trace)]
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode:
        print(check.fail(f"report: {answer.stderr.strip()[:300]}"))
        return
    process = json.loads(answer.stdout)["processes"][0]
    sampling = process["sampling"]
    torch = process["devices"][0]["torch"]
    print(
        f"\nOne sample for each {sampling['rate_bytes'] / MIB:.0f} MiB at the end (at most {sampling['highest_rate_bytes'] / MIB:.0f}); "
        f"the recorder's estimate of its cost: {sampling['cost_share'] * 100:.2f} %, bound {sampling['bound_share'] * 100:.0f} %; "
        f"{torch['allocations']} blocks counted, {process['events']} events, {process['trace_bytes'] / MIB:.1f} MiB of trace"
    )
