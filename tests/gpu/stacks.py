"""The parts `stacks` and `steps` of the GPU check: the holders that call stacks name, and the cost of stacks.

names   GPT-2 training: the holders and libraries at the peak
steps   time of a step of training and of text generation: without the recorder, with several of its settings,
        and with PyTorch's own memory history; all programs run at once and step in turn
"""
import shutil
import statistics
import sys
import threading

from talk import Talk

MIB = 1 << 20

# Name, variables of the recorder (None: not preloaded), setting of PyTorch's memory history. A row is skipped if
# the recorder does not know its variable.
VARIANTS = [
    ("bare", None, None),
    ("bare again: the noise", None, None),
    ("no stacks, no blocks", {"VRAMTRACE_STACKS": "none", "VRAMTRACE_TENSORS": "off"}, None),
    ("stacks, no blocks", {"VRAMTRACE_TENSORS": "off"}, None),
    ("stacks, blocks with Python frames", {"VRAMTRACE_TENSORS": "python"}, None),
    ("stacks, blocks with all frames", {"VRAMTRACE_TENSORS": "full"}, None),
    ("torch's history, Python frames", None, "python"),
    ("torch's history, all frames", None, "all"),
]
# Turns, and steps per turn.
TURNS = {"train": (12, 3), "generate": (12, 1)}
PATIENCE_S = 170


def place(frame):
    file = frame["file"].rsplit("/", 1)[-1]
    return f"{file}:{frame['line']} {frame['function']}" if file else frame["function"]


def library_row(check, name, trace, wanted):
    """Bytes at the peak by library."""
    found = {}
    for holder in check.holders(trace, "--by", "library"):
        library = holder["library"] or "?"
        found[library] = found.get(library, 0) + holder["bytes"]
    lacking = [library for library in wanted if library not in found]
    shown = ", ".join(f"{library} {size / MIB:.1f}" for library, size in found.items())
    return f"| {name} | {shown} | {check.fail(f'no {lacking}') if lacking else 'named'} |"


def names(check):
    trace = check.TRACES / "gpt2.vtrace"
    # Native frames too: cuBLAS's workspace is a block of PyTorch, recognised by its native frames.
    env = check.environment(trace, VRAMTRACE_TENSORS="full")
    if status := check.Held("gpt2-train", [sys.executable, str(check.PROGRAMS / "gpt2_train.py")], env).finish():
        print(check.fail(f"gpt2_train.py: {status}, see its log"))
        return
    shutil.copy(trace, check.LOGS / trace.name) if trace.stat().st_size < 64 * MIB else None
    print("\n### Whom `holders --at peak` names: GPT-2 training (MiB)\n")
    found = check.ask("holders", "--at", "peak", trace)
    check.table(None, "bytes | count | library | innermost frame outside the framework | called from")
    ours = 0
    for holder in found["holders"][:10]:
        frames, lead, caller = holder["frames"], holder["lead"], holder["caller"]
        lead, caller = (place(frames[at]) if at is not None else "" for at in (lead, caller))
        ours += any(file in lead + caller for file in ("gpt2_train.py", "modeling_gpt2.py"))
        print(f"| {holder['bytes'] / MIB:.1f} | {holder['count']} | {holder['library']} | {lead} | {caller} |")
    total = min(len(found["holders"]), 10)
    # Autograd allocates gradients on a thread that runs no Python.
    verdict = "ok" if ours * 2 > total else check.fail("too few")
    print(f"\n{ours} of these {total} name a line of the script or of the model: {verdict}")
    for problem in found["problems"][:5]:
        print(f"- without names: {problem}")
    print("\n| trace | by library at the peak, MiB | |\n|---|---|---|")
    print(library_row(check, "gpt2_train.py", trace, ["PyTorch", "cuBLAS"]))


class Stepper(Talk):
    """A running steps.py that steps on request."""

    def __init__(self, name, command, env, log):
        super().__init__(log, command, env)
        self.name, self.times = name, {}

    def ready(self):
        self.counts = dict(part.split("=") for part in self.line("READY"))
        return self.counts

    def line(self, wanted):
        return self.until(lambda line: line.startswith(wanted), None).split()[1:]

    def step(self, what, times):
        self.say(what, times)
        figures = [float(figure) for figure in self.line("TIMES")]
        self.times.setdefault(what, []).append(statistics.median(figures))


def known(binary, variables):
    library = (binary / "libvramtrace.so").read_bytes()
    return all(name.encode() in library for name in variables or {})


def steps(check):
    print("\n### Time of a step of GPT-2, ms (all programs at once, in turn; medians)\n")
    steppers = []
    log = open(check.LOGS / "steps.log", "w")
    try:
        for at, (name, variables, history) in enumerate(VARIANTS):
            if not known(check.BIN, variables):
                print(f"- {name}: SKIP, this recorder has no {', '.join(variables)}")
                continue
            trace = None if variables is None else check.TRACES / f"steps-{at}.vtrace"
            env = check.environment(trace, **(variables or {}), **({"STEPS_HISTORY": history} if history else {}))
            steppers.append(Stepper(name, [sys.executable, str(check.PROGRAMS / "steps.py")], env, log))
        watchdog = threading.Timer(PATIENCE_S, lambda: [stepper.process.kill() for stepper in steppers])
        watchdog.daemon = True
        watchdog.start()
        for stepper in steppers:
            stepper.ready()
        for what, (turns, times) in TURNS.items():
            for turn in range(turns):
                # Each turn starts with another program.
                first = turn % len(steppers)
                for stepper in steppers[first:] + steppers[:first]:
                    stepper.step(what, times)
        watchdog.cancel()
        table(steppers)
    except (RuntimeError, BrokenPipeError) as error:
        print(check.fail(f"{error}; see steps.log"))
    finally:
        for stepper in steppers:
            stepper.kill()
        log.close()


def table(steppers):
    bare = steppers[0]
    head = " | ".join(f"{what} ({bare.counts[what]} allocations) | / bare" for what in TURNS)
    print(f"| | {head} |")
    print("|---|" + "---|---|" * len(TURNS))
    for stepper in steppers:
        cells = []
        for what in TURNS:
            # Ratios within a turn: other load affects both programs alike.
            ratios = [mine / theirs for mine, theirs in zip(stepper.times[what], bare.times[what])]
            cells += [f"{statistics.median(stepper.times[what]):.1f}", f"{statistics.median(ratios):.3f}"]
        print(f"| {stepper.name} | " + " | ".join(cells) + " |")
