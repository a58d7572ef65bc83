"""The part `sampled` of the GPU check: what VRAMTRACE_RECORD=sampled costs text generation with GPT-2 (random weights).

Groups of four programs, each group on a processor core of its own: without a library, with a library that does nothing, with
samples, and with the full recorder. They run in turn, one at a time, each for 6 steps or 0.8 s: work that is due once in a time
has its share then, and would have a larger one in a short run after a long rest. A ratio is that of the time of a run to the mean
of the two runs of the bare program right before and after it. Two processes of one program differ by 2 % and more, by where the
kernel has put their memory, so many groups are needed: the library that does nothing says how large that noise is. The interval
is that of a bootstrap over the groups and the turns of each.

VRAMTRACE_SAMPLED_BATCHES=N    so many times 4 groups, one batch after the other (default 1)

A batch takes about 95 s: 25 s for the start of its programs, and 3 turns of a group, of 7 runs. More programs at once would make
readings of NVML slow, which lists the processes of the GPU.
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
GROUPS, TURNS, STEPS_OF_RUN = 4, 3, 6
TOKENS = 24
# The programs are killed after this time since the start of the batch.
PATIENCE_S = 180
MOST_RATIO, MOST_MEMORY = 1.02, 64 * MIB
NOTHING = "nothing"
OTHERS = [NOTHING, "sampled", "full"]
KINDS = ["bare", *OTHERS]
TITLES = {NOTHING: "a library that does nothing: the noise"}


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

    def run(self, steps):
        """Milliseconds, and those of processor time."""
        before = self.cpu_ns()
        print("generate", steps, file=self.process.stdin, flush=True)
        return sum(float(ms) for ms in self.line("TIMES")), (self.cpu_ns() - before) / 1e6


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
    """One processor for each group. The programs of the others wait meanwhile."""
    return sorted(os.sched_getaffinity(0))[:GROUPS]


def start(check, nothing, batch, log):
    def one(kind, at):
        trace = check.TRACES / f"{kind}-{batch}-{at}.vtrace" if kind in ("sampled", "full") else None
        extra = {"VRAMTRACE_RECORD": kind} if trace else {"LD_PRELOAD": str(nothing)} if kind == NOTHING else {}
        variables = check.environment(trace, STEPS_KINDS="generate", STEPS_TOKENS=str(TOKENS), **extra)
        program = str(check.PROGRAMS / "steps.py")
        return Program(f"{kind}-{batch}-{at}", [sys.executable, program], variables, log)

    return [{kind: one(kind, at) for kind in KINDS} for at in range(len(cores()))]


def pin(program, core):
    """Not before it is ready: its start takes long on one processor."""
    for thread in Path(f"/proc/{program.process.pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def measure(groups):
    """Ratios to the bare program of the group, by kind and group: of time, and of processor time."""
    ratios, cpu = ({kind: [[] for _ in groups] for kind in OTHERS} for _ in range(2))
    for at, group in enumerate(groups):
        for program in group.values():  # the caches and the clock of that core
            program.run(1)
        for turn in range(TURNS):
            before = group["bare"].run(STEPS_OF_RUN)
            for kind in OTHERS[turn:] + OTHERS[:turn]:
                found, after = group[kind].run(STEPS_OF_RUN), group["bare"].run(STEPS_OF_RUN)
                ms, cpu_ms = (2 * one / (former + latter) for one, former, latter in zip(found, before, after))
                ratios[kind][at].append(ms)
                cpu[kind][at].append(cpu_ms)
                before = after
    return ratios, cpu


def batch(check, nothing, number):
    """Its ratios, more bytes of memory by kind and group, and the number of blocks of a step."""
    begun = time.time()
    with open(check.LOGS / f"sampled-{number}.log", "w") as log:
        groups = start(check, nothing, number, log)
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
            ratios, cpu = measure(groups)
            memory = {kind: [group[kind].resident() - group["bare"].resident() for group in groups] for kind in OTHERS}
            print(f"{len(programs)} programs were ready after {ready:.0f} s, and done after {time.time() - begun:.0f} s.")
            return ratios, cpu, memory, counts
        finally:
            watchdog.cancel()
            for program in programs:
                program.process.kill()
                program.process.wait()


def section(check):
    print("\n### VRAMTRACE_RECORD=sampled: text generation with GPT-2\n")
    if not stacks.known(check.BIN, {"VRAMTRACE_RECORD": "sampled"}):
        print("SKIP sampled: this recorder has no VRAMTRACE_RECORD")
        return
    # Not nvcc, which links CUDA's runtime.
    nothing = check.TRACES / "libnothing.so"
    built = subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(nothing), str(check.PROGRAMS / "nothing.c")])
    if built.returncode:
        print(check.fail("sampled: nothing.c does not build"))
        return
    every = [{kind: [] for kind in OTHERS} for _ in range(3)]
    try:
        for number in range(int(os.environ.get("VRAMTRACE_SAMPLED_BATCHES", 1))):
            *found, counts = batch(check, nothing, number)
            for all_of, of_batch in zip(every, found):
                for kind in OTHERS:
                    all_of[kind] += of_batch[kind]
    except (RuntimeError, BrokenPipeError, OSError) as error:
        print(check.fail(f"{error}; see sampled-{number}.log"))
        return
    table(counts, *every, check.fail)
    described(check, check.TRACES / "sampled-0-0.vtrace")


def table(counts, ratios, cpu, memory, fail):
    print(f"A step makes {counts['generate']} blocks. Ratios to the bare program on the same core: medians.\n")
    print("| | groups | turns | time, 95 % interval | processor time, 95 % interval | memory, MiB | |\n|---|---|---|---|---|---|---|")
    for kind in OTHERS:
        groups = [group for group in ratios[kind] if group]
        if not groups:
            continue
        median, low, high = interval(groups)
        of_memory = statistics.median(memory[kind])
        verdict = ""
        if kind == "sampled":
            wrong = []
            if high > MOST_RATIO:
                wrong.append(f"the upper end is above {MOST_RATIO}")
            if of_memory > MOST_MEMORY:
                wrong.append(f"more than {MOST_MEMORY // MIB} MiB")
            verdict = fail("; ".join(wrong)) if wrong else "PASS"
        of_cpu = "{:.3f} ({:.3f} to {:.3f})".format(*interval([group for group in cpu[kind] if group]))
        turns = sum(len(group) for group in groups)
        print(
            f"| {TITLES.get(kind, kind)} | {len(groups)} | {turns} | {median:.3f} ({low:.3f} to {high:.3f}) | {of_cpu} | "
            f"{of_memory / MIB:+.1f} | {verdict} |"
        )


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
