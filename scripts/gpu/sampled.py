"""The part `sampled` of the GPU check: what VRAMTRACE_RECORD=sampled costs text generation with GPT-2 (random weights).

Several pairs of programs run at once, one of each pair with the recorder, and step in turn: a ratio is that of two
steps right after each other, and each pair has memory layouts of its own. A fourth of the turns also steps a program
with the full recorder. The interval is that of a bootstrap over the pairs of programs and the turns of each.

Takes about 100 s: 30 s for the start of the programs, and TURNS turns of two or three steps of 0.25 s.
"""
import json
import random
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import stacks

MIB = 1 << 20
PAIRS = 6
TURNS = 120
# No turn begins after this time since the start of the part, and the programs are killed after it.
LAST_TURN_S, PATIENCE_S = 115, 150
FEWEST_TURNS = 20
MOST_RATIO, MOST_MEMORY = 1.02, 64 * MIB


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


def start(binary, program, environment, traces, log):
    def one(name, recording):
        variables = {"VRAMTRACE_RECORD": recording} if recording else {}
        trace = traces / f"{name}.vtrace" if recording else None
        return Program(name, [sys.executable, str(program)], environment(trace, **variables), log)

    pairs = [(one(f"bare-{n}", None), one(f"sampled-{n}", "sampled")) for n in range(PAIRS)]
    return pairs, one("full", "full")


def measure(pairs, full, begun):
    """Ratios of time by pair: sampled, full, and of two bare programs; processor time by kind of program."""
    ratios = {"sampled": [[] for _ in pairs], "full": [[] for _ in pairs], "noise": [[] for _ in pairs]}
    cpu = {"sampled": [[] for _ in pairs], "full": [[] for _ in pairs]}
    before = None
    for turn in range(TURNS):
        if turn >= FEWEST_TURNS and time.time() - begun > LAST_TURN_S:
            break
        at = turn % len(pairs)
        bare, sampled = pairs[at]
        # Each of the two is first in every second turn of its pair.
        order = (bare, sampled) if turn // len(pairs) % 2 == 0 else (sampled, bare)
        found = {program: program.measured_step() for program in order}
        ratios["sampled"][at].append(found[sampled][0] / found[bare][0])
        cpu["sampled"][at].append(found[sampled][1] / found[bare][1])
        if turn % 4 == 3:
            found[full] = full.measured_step()
            ratios["full"][at].append(found[full][0] / found[bare][0])
            cpu["full"][at].append(found[full][1] / found[bare][1])
        if before is not None:
            ratios["noise"][at].append(found[bare][0] / before)
        before = found[bare][0]
    return ratios, cpu


def section(check):
    print("\n### VRAMTRACE_RECORD=sampled: text generation with GPT-2\n")
    if not stacks.known(check.BIN, {"VRAMTRACE_RECORD": "sampled"}):
        print("SKIP sampled: this recorder has no VRAMTRACE_RECORD")
        return
    begun = time.time()
    log = open(check.LOGS / "sampled.log", "w")
    pairs, full = start(check.BIN, check.PROGRAMS / "steps.py", check.environment, check.TRACES, log)
    programs = [program for pair in pairs for program in pair] + [full]
    watchdog = threading.Timer(PATIENCE_S, lambda: [program.process.kill() for program in programs])
    watchdog.daemon = True
    watchdog.start()
    try:
        counts = [program.ready() for program in programs][0]
        for program in programs:  # all caches are warm
            program.step("generate", 1)
            program.times.clear()
        ratios, cpu = measure(pairs, full, begun)
        memory = statistics.median(sampled.resident() - bare.resident() for bare, sampled in pairs)
        full_memory = full.resident() - statistics.median(bare.resident() for bare, _ in pairs)
        table(counts, ratios, cpu, {"sampled": memory, "full": full_memory}, check.fail)
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
    print(f"A step makes {counts['generate']} blocks. Ratios to the bare program of the pair: medians.\n")
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
        title = "another bare program: the noise" if name == "noise" else name
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
