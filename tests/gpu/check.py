"""The GPU check: runs each client without and with the preload, and prints Markdown tables.

    check.py BIN_DIR [PART]...      scripts/gpu-check.sh starts it

The module of a part describes it. PARTS lists all; only if named: those of BY_NAME_ONLY.

Exit status: 0 no FAIL, 1 a line says FAIL, 2 unknown part.
"""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aimdo
import cost
import fits
import forward
import graphs
import leaking
import limits
import llama
import marks
import oom
import roles
import same
import sampled
import sleep
import stacks
import story
import streams
import strangers
import suites
import tensors
import vllm_engine
import wheel
import whatif
from talk import Talk

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
ROOT = HERE.parents[1]
C = ("-std=gnu11", "-ldl", "-lpthread")
BIN = Path(sys.argv[1])
LOGS = Path(os.environ.get("VRAMTRACE_LOGS") or tempfile.mkdtemp(prefix="vramtrace-gpu-"))
TRACES = Path(tempfile.mkdtemp(prefix="vramtrace-traces-"))
LOGS.mkdir(parents=True, exist_ok=True)
MIB = 1 << 20
failed = False


def fail(text):
    global failed
    failed = True
    return "**FAIL** " + text


def table(title, columns):
    """The heading of a table; `columns` with bars between them. The title may be None."""
    print(*([f"\n### {title}\n"] if title else []), f"| {columns} |", "|" + "---|" * (columns.count("|") + 1), sep="\n")


def smi(pid=None, field="used_memory"):
    """The memory of one process by nvidia-smi, MiB; without `pid` the used memory of the first card."""
    query = "--query-gpu=memory.used" if pid is None else f"--query-compute-apps=pid,{field}"
    text = subprocess.run(
        ["nvidia-smi", query, "--format=csv,noheader,nounits"], capture_output=True, text=True
    ).stdout
    if pid is None:
        return int(text.split()[0])
    used = [part.split(",") for part in text.splitlines()]
    mine = [int(amount) for found, amount in used if int(found) == pid]
    return sum(mine) if mine else None  # nvidia-smi prints a line for each card that the process uses


def have(*modules):
    missing = [m for m in modules if subprocess.run([sys.executable, "-c", f"import importlib.util,sys; sys.exit(importlib.util.find_spec('{m}') is None)"]).returncode]
    return missing


def environment(trace=None, **extra):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("VRAMTRACE_")}
    env = dict(kept, PYTHONUNBUFFERED="1", **extra)
    env["PYTHONPATH"] = f"{PROGRAMS}{os.pathsep}{env.get('PYTHONPATH', '')}"
    if trace:
        env["LD_PRELOAD"] = str(BIN / "libvramtrace.so")
        env["VRAMTRACE_OUT"] = str(trace)
    return env


class Held(Talk):
    """A client that waits after it printed HOLD; `finish` lets it end."""

    def __init__(self, name, command, env):
        super().__init__(open(LOGS / f"{name}.log", "w"), command, env)
        self.name, self.lines, self.notes, self.pids = name, [], {}, {}
        while (line := self.next()) is not None:
            if line.startswith("RESULT"):
                self.lines.append(line)
            if line.startswith("PID"):
                _, rank, pid = line.split()
                self.pids[int(rank)] = int(pid)
            if line.startswith("HOLD"):
                self.notes = dict(part.split("=", 1) for part in line.split()[1:])
                break

    def finish(self):
        return self.end(120)


def run(name, command, env=None, **more):
    """Runs a command to its end; what it printed is also in NAME.log. Its status is "after the limit" if it ran out of time."""
    command = list(map(str, command))
    try:
        ended = subprocess.run(command, env=env or environment(), capture_output=True, text=True, **more)
    except subprocess.TimeoutExpired as late:
        said = lambda part: part.decode(errors="replace") if isinstance(part, bytes) else part or ""
        ended = subprocess.CompletedProcess(command, "after the limit", said(late.stdout), said(late.stderr))
    (LOGS / f"{name}.log").write_text(ended.stdout + ended.stderr)
    return ended


def read(*words, statuses=(0,)):
    """What a command of vramtrace prints."""
    answer = subprocess.run([str(BIN / "vramtrace"), *map(str, words)], capture_output=True, text=True)
    if answer.returncode not in statuses:
        raise RuntimeError(f"{' '.join(map(str, words))}: {answer.stderr.strip()[:300]}")
    return answer.stdout


def ask(*words, statuses=(0,)):
    return json.loads(read(*words, "--json", statuses=statuses))


def holders(trace, *options):
    return ask("holders", *options, trace)["holders"]


def leaks(trace):
    """The leaks of at least 0.5 confidence."""
    return [leak for leak in ask("leaks", trace, statuses=(0, 1))["leaks"] if leak["confidence"] >= 0.5]


def report(trace):
    return ask("report", trace)["processes"]


def cards():
    return len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.splitlines())


def start_ns(trace):
    """The start of the recording, ns of CLOCK_MONOTONIC (docs/FORMAT.md)."""
    with open(trace, "rb") as file:
        return struct.unpack_from("<Q", file.read(64), 56)[0]


def totals(trace, at_ns):
    """PyTorch's allocated and reserved bytes at this time since the start, by `frag`, and the rest of its answer."""
    device = ask("frag", trace, "--at", f"{at_ns / 1e9:.9f}")["devices"][0]
    return device["allocated_bytes"], device["reserved_bytes"], device


def each(*parts):
    """Calls functions, each with its arguments. If one fails the others still run."""
    for part, *arguments in parts:
        try:
            part(*arguments)
        except Exception as error:
            print(fail(f"{part.__name__}: {error!r}"), flush=True)


def the_process(trace, pid):
    return next(p for p in report(trace) if p["pid"] == pid)


def build(name, compiler, source, *flags):
    """A program, or None: see build-NAME.log."""
    out = TRACES / name
    return None if run(f"build-{name}", [compiler, "-O2", "-o", out, source, *flags]).returncode else out


TORCH, GPT2, MODELS = ["torch"], ["torch", "transformers"], ["torch", "transformers", "torchvision"]
# What runs a part, with this module, and the Python modules that it needs.
PARTS = {
    "same": (same.section, []),
    "nccl": (same.nccl, TORCH),
    "cap": (limits.cap, []),
    "cost": (cost.section, []),
    "stacks": (stacks.names, GPT2),
    "steps": (stacks.steps, GPT2),
    "sampled": (sampled.section, GPT2),
    "tensors": (tensors.section, TORCH),
    "whatif": (whatif.section, GPT2),
    "streams": (streams.section, TORCH),
    "fix": (story.fix, GPT2),
    "story": (story.section, GPT2),
    "marks": (marks.section, TORCH),
    "leaks": (leaking.section, TORCH),
    "graphs": (graphs.section, TORCH),
    "llama": (llama.section, []),
    "strangers": (strangers.section, []),
    "aimdo": (aimdo.section, TORCH),
    "oom": (oom.section, []),
    "limits": (limits.section, []),
    "sleep": (sleep.section, TORCH),
    "roles": (roles.section, []),
    "forward": (forward.section, TORCH),
    "wheel": (wheel.section, []),
    "fits": (fits.section, MODELS),
    "suites": (suites.section, ["pytest"]),
    "vllm": (vllm_engine.section, ["vllm"]),
}
BY_NAME_ONLY = ("fits", "suites", "vllm")
chosen = sys.argv[2:] or [name for name in PARTS if name not in BY_NAME_ONLY]
if unknown := [name for name in chosen if name not in PARTS]:
    print(f"gpu-check: unknown part '{unknown[0]}': must be one of {', '.join(PARTS)}", file=sys.stderr)
    sys.exit(2)
print(f"GPU check, {time.strftime('%Y-%m-%d')}, " + subprocess.run(
    ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"], capture_output=True, text=True
).stdout.strip().replace("\n", "; "))
for name in chosen:
    started, (part, modules) = time.time(), PARTS[name]
    try:
        if missing := have(*modules):
            print(f"SKIP {name}: no {missing}")
        else:
            part(sys.modules[__name__])
    except Exception as error:  # the other parts still run
        print(fail(f"part {name}: {error!r}"))
    print(f"\n({name}: {time.time() - started:.0f} s)", flush=True)
shutil.rmtree(TRACES, ignore_errors=True)
sys.exit(1 if failed else 0)
