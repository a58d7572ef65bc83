"""The part `oom` of the GPU check: the message of an out-of-memory, and no message if the program continues."""
import sys
from pathlib import Path

PROGRAM = Path(__file__).resolve().parent / "programs" / "oom_run.py"
CAP = "4GiB"


def line_of(words):
    lines = PROGRAM.read_text().splitlines()
    return f"{PROGRAM.name}:{1 + next(at for at, line in enumerate(lines) if words in line)}"


KEEPS = line_of("hidden = x")
# (argument of oom_run.py, cap, whether a message is expected, words of the message)
RUNS = [
    ("holds", CAP, True, ["torch is out of memory", KEEPS, "4.00 GiB"]),
    ("saved", "1GiB", False, []),
    ("fraction", None, True, ["torch is out of memory", KEEPS, "torch"]),
    ("caught", CAP, True, ["torch is out of memory", KEEPS]),
    ("many", None, True, ["torch is out of memory"]),
    # CuPy frees its arrays before the recorder reports at exit.
    ("cupy", CAP, True, ["out of memory", line_of("cupy.ones"), "\n  holds     3."]),
]


def run(check, how, env):
    ended = check.run(f"oom-{how}{'' if 'VRAMTRACE_OUT' in env else '-bare'}", [sys.executable, PROGRAM, how], env)
    results = [line for line in ended.stdout.splitlines() if line.startswith("RESULT")]
    took = next((line.split()[1:] for line in ended.stdout.splitlines() if line.startswith("TOOK")), [])
    return ended, results, [float(ms) for ms in took]


def section(check):
    """`check`: the module check.py, which holds what all parts share."""
    check.table("Out of memory: the message at that moment", "program | cap | ends as without us | lines printed | verdict")
    texts = []
    for how, cap, speaks, words in RUNS:
        if missing := check.have("cupy" if how == "cupy" else "torch"):
            print(f"| {how} | SKIP no {missing} | | | |")
            continue
        trace = check.TRACES / f"oom-{how}.vtrace"
        ours, results, took = run(check, how, check.environment(trace, **({"VRAMTRACE_CAP": cap} if cap else {})))
        printed = [line for line in ours.stderr.splitlines() if line.startswith("vramtrace")]
        at = ours.stderr.find("vramtrace ")
        text = ours.stderr[at:].split("\nTraceback")[0] if at >= 0 else ""
        wrong = [word for word in words if word not in text]
        same = "yes"
        if cap is None:
            bare, bare_results, bare_took = run(check, how, check.environment())
            if (bare.returncode, bare_results) != (ours.returncode, results):
                same = check.fail(f"recorded: status {ours.returncode} {results}; bare: status {bare.returncode} {bare_results}")
            if took:
                same += f"; ms until the exception: {took}, bare {bare_took}"
        good = bool(printed) == speaks and not wrong
        verdict = "ok" if good else check.fail(f"printed {printed[:2]}, lacks {wrong}")
        print(f"| {how} | {cap or '-'} | {same} ({ours.returncode}) | {len(printed)} | {verdict} |")
        if speaks:
            texts.append((how, text.strip(), trace))
    for how, text, trace in texts[:1]:
        print(f"\n{how}, on stderr:\n\n```\n{text}\n```")
        shown = check.run("oom-shown", [check.BIN / "vramtrace", "oom", trace])
        verdict = "" if shown.returncode == 0 and KEEPS in shown.stdout else check.fail("")
        print(f"\n`vramtrace oom`: status {shown.returncode} {verdict}\n\n```\n{(shown.stdout + shown.stderr).strip()}\n```")
