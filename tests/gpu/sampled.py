"""The part `sampled` of the GPU check: what VRAMTRACE_RECORD=sampled, and the full recorder, cost text generation with GPT-2
(random weights).

Two processes of one program differ by 2 % and more, by where the kernel has put their memory: too much for what is measured here
(the row "bare again" of `steps` shows it). So the pairs are those of one process. It generates 8 tokens with the calls of PyTorch and of CUDA's
runtime library going through the recorder, and 8 with the same calls going past it, in turn before and after each other
(programs/bypass.py). Work that is due once in a time is done in the former alone, which has twice its share then. Several processes
of each kind, one after the other, each on a processor core of its own. The interval is that of a bootstrap over the processes and
the pairs of each. A process without the recorder says how much memory that takes.

Takes about 160 s. `VRAMTRACE_SAMPLED_KINDS` names what is compared (default sampled,full): also `no stacks` and `no blocks`, the parts of the full
recorder's cost.
"""
import os
import random
import statistics
import sys
import threading
from pathlib import Path

import stacks

MIB = 1 << 20
RECORDING = {
    "sampled": {"VRAMTRACE_RECORD": "sampled"},
    "full": {"VRAMTRACE_RECORD": "full"},
    "no stacks": {"VRAMTRACE_STACKS": "none"},
    "no blocks": {"VRAMTRACE_TENSORS": "off"},
}
KINDS = os.environ.get("VRAMTRACE_SAMPLED_KINDS", "sampled,full").split(",")
PROCESSES, SECONDS, TOKENS = 4, 14, 8
# The programs are killed after this time.
PATIENCE_S = 90 + len(KINDS) * PROCESSES * SECONDS
MOST_RATIO, MOST_MEMORY = 1.02, 64 * MIB


class Program(stacks.Stepper):
    def resident(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) << 10

    def pairs(self, seconds):
        """Ratios of time, and of processor time, of the calls through the recorder to those past it; names of the functions."""
        self.say("pairs", seconds)
        functions = self.line("PAST")
        pairs = [pair.split(",") for pair in self.line("PAIRS")]
        return [float(time) for time, _ in pairs], [float(cpu) for _, cpu in pairs], functions


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
    """One processor for each program: every second one where there are enough, because two neighbours may share a core."""
    found = sorted(os.sched_getaffinity(0))
    return found[::2] if len(found) >= 2 * len(KINDS) * PROCESSES else found


def pin(program, core):
    """Not before it is ready: its start takes long on one processor."""
    for thread in Path(f"/proc/{program.process.pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def section(check):
    print("\n### VRAMTRACE_RECORD=sampled: text generation with GPT-2\n")
    if not stacks.known(check.BIN, {"VRAMTRACE_RECORD": "sampled"}):
        print("SKIP sampled: this recorder has no VRAMTRACE_RECORD")
        return
    log = open(check.LOGS / "sampled.log", "w")

    def start(kind, at):
        trace = check.TRACES / f"{kind}-{at}.vtrace".replace(" ", "-") if kind else None
        recording = RECORDING[kind] if kind else {}
        variables = check.environment(trace, STEPS_KINDS="generate", STEPS_TOKENS=str(TOKENS), **recording)
        return Program(f"{kind}-{at}", [sys.executable, str(check.PROGRAMS / "steps.py")], variables, log)

    bare = start(None, 0)
    recorded = [(kind, start(kind, at)) for at in range(PROCESSES) for kind in KINDS]
    programs = [bare, *(program for _, program in recorded)]
    watchdog = threading.Timer(PATIENCE_S, lambda: [program.process.kill() for program in programs])
    watchdog.daemon = True
    watchdog.start()
    ratios, cpu, memory = ({kind: [] for kind in KINDS} for _ in range(3))
    try:
        counts = [program.ready() for program in programs][0]
        for program in programs:
            program.step("generate", 20)
        for kind, program in recorded:
            memory[kind].append(program.resident() - bare.resident())
        for at, (kind, program) in enumerate(recorded):
            pin(program, cores()[at % len(cores())])
            of_time, of_cpu, functions = program.pairs(SECONDS)
            ratios[kind].append(of_time)
            cpu[kind].append(of_cpu)
        table(counts, functions, ratios, cpu, memory, check.fail)
        if "sampled" in KINDS:
            described(check, check.TRACES / "sampled-0.vtrace")
    except (RuntimeError, BrokenPipeError, OSError) as error:
        print(check.fail(f"{error}; see sampled.log"))
    finally:
        watchdog.cancel()
        for program in programs:
            program.kill()
        log.close()


def table(counts, functions, ratios, cpu, memory, fail):
    needed = ["cuLaunchKernel", "reportMemoryUsageToProfiler", "roundup_power2_divisions"]
    if "no blocks" in KINDS:
        needed = needed[:1]
    if missing := [name for name in needed if not any(name in function for function in functions)]:
        print(fail(f"calls do not go past the recorder: {', '.join(missing)}"))
    print(f"{TOKENS} tokens make {counts['generate']} blocks; {len(functions)} functions are gone past. Medians of pairs.\n")
    print("| | processes | pairs | time, 95 % interval | processor time, 95 % interval | memory, MiB | |\n|---|---|---|---|---|---|---|")
    for kind in KINDS:
        of_time, of_cpu = ("{:.3f} ({:.3f} to {:.3f})".format(*interval(of[kind])) for of in (ratios, cpu))
        high, of_memory = interval(ratios[kind])[2], statistics.median(memory[kind])
        verdict = ""
        if kind == "sampled":
            wrong = []
            if high > MOST_RATIO:
                wrong.append(f"the upper end is above {MOST_RATIO}")
            if of_memory > MOST_MEMORY:
                wrong.append(f"more than {MOST_MEMORY // MIB} MiB")
            verdict = fail("; ".join(wrong)) if wrong else "PASS"
        pairs = sum(map(len, ratios[kind]))
        print(f"| {kind} | {len(ratios[kind])} | {pairs} | {of_time} | {of_cpu} | {of_memory / MIB:+.1f} | {verdict} |")


def described(check, trace):
    """The rate of samples at the end, and the recorder's own estimate of its cost."""
    process = check.report(trace)[0]
    sampling = process["sampling"]
    torch = process["devices"][0]["torch"]
    print(
        f"\nOne sample for each {sampling['rate_bytes'] / MIB:.0f} MiB at the end (at most {sampling['highest_rate_bytes'] / MIB:.0f}); "
        f"the recorder's estimate of its cost: {sampling['cost_share'] * 100:.2f} %, bound {sampling['bound_share'] * 100:.0f} %; "
        f"{torch['allocations']} blocks counted, {process['events']} events, {process['trace_bytes'] / MIB:.1f} MiB of trace"
    )
