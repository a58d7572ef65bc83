"""The GPU check: runs each client without and with the preload, and prints Markdown tables.

    check.py BIN_DIR [PART]...      scripts/gpu-check.sh starts it

Each part is described in the module of its name; here are:

same    each client has the same exit status and results under the preload, and a trace; allocations + context
        compared with NVML
nccl    the same for an all-reduce over two GPUs
cap     fills the card under VRAMTRACE_CAP=8GiB until a request is refused; NVML's figure at that time

PARTS lists all; only if named: those of BY_NAME_ONLY.

Exit status: 0 no FAIL, 1 a line says FAIL, 2 unknown part.
"""
import json
import os
import shutil
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
import sampled
import sleep
import stacks
import story
import streams
import strangers
import suites
import tensors
import truth
import wheel
import whatif
from talk import Talk

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
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
    """Runs a command to its end; what it printed is also in NAME.log."""
    ended = subprocess.run(list(map(str, command)), env=env or environment(), capture_output=True, text=True, **more)
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


def the_process(trace, pid):
    return next(p for p in report(trace) if p["pid"] == pid)


def build_c(name, source, *flags):
    out = TRACES / name
    built = subprocess.run(["nvcc", "-O2", "-o", str(out), str(PROGRAMS / source), *flags], capture_output=True, text=True)
    (LOGS / f"build-{name}.log").write_text(built.stdout + built.stderr)
    return out if built.returncode == 0 else None


def clients():
    """Each client: (name, command; None if it cannot run, the reason)"""
    python = sys.executable
    if shutil.which("nvcc"):
        for kind in ("static", "shared"):
            program = build_c(f"cudart-{kind}", "cudart_client.c", "-cudart", kind)
            yield f"cudart-{kind}", [str(program)] if program else None, "does not build"
    else:
        yield "cudart", None, "no nvcc"
    torch_missing = have("torch")
    for mode in ("native", "expandable", "async", "graphs", "compile", "gpt2", "resnet"):
        missing = torch_missing or (have("transformers") if mode == "gpt2" else have("torchvision") if mode == "resnet" else [])
        yield f"torch-{mode}", None if missing else [python, str(PROGRAMS / "torch_run.py"), mode], f"no {missing}"
    for name, module in (("cupy", "cupy"), ("jax", "jax"), ("numba", "numba_cuda"), ("triton", "triton")):
        missing = have(module)
        yield name, None if missing else [python, str(PROGRAMS / f"{name}_run.py")], f"no {missing}"


def same(check):
    print("\n### The same result as without the recorder; allocations + context compared with NVML (MiB)\n")
    print("| client | result | NVML | allocations | context | managed | unattributed | allocations + context | explained |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, command, why in clients():
        if command is None:
            print(f"| {name} | SKIP {why} | | | | | | | |")
            continue
        bare = Held(f"{name}-bare", command, environment())
        bare_status = bare.finish()
        trace = TRACES / f"{name}.vtrace"
        ours = Held(f"{name}-ours", command, environment(trace))
        used = smi(ours.pid)
        try:
            process = the_process(trace, ours.pid)
        except Exception as error:  # the table shows every client
            process, problem = None, str(error)
        status = ours.finish()
        if (status, ours.lines) != (bare_status, bare.lines):
            verdict = fail(f"recorded: status {status} {ours.lines}; bare: status {bare_status} {bare.lines}")
        elif bare_status != 0:
            verdict = f"both end {status}"
        else:
            verdict = "same"
        if process is None:
            print(f"| {name} | {fail(problem)} | {used} | | | | | | |")
            continue
        print(row(name, verdict, used, process))
        shutil.copy(trace, LOGS / trace.name) if trace.stat().st_size < 4 * MIB else None


def row(name, verdict, used, process):
    live = managed = context = unattributed = 0
    for device in process["devices"]:
        live += device["live_bytes"]
        managed += device["by_kind"].get("managed", {}).get("live_bytes", 0)
        context += device["context_bytes"]
        unattributed += device["unattributed_bytes"] or 0
    ours = (live - managed + context) / MIB
    part = f"{100 * ours / used:.1f} %" if used else "?"
    return (
        f"| {name} | {verdict} | {used} | {live / MIB:.1f} | {context / MIB:.1f} | {managed / MIB:.1f} "
        f"| {unattributed / MIB:.1f} | {ours:.1f} | {part} |"
    )


def nccl(check):
    print("\n### Two-GPU NCCL all-reduce, per rank (MiB)\n")
    if cards() < 2:
        print(f"SKIP nccl: {cards()} GPU(s), needs 2")
        return
    print("| client | result | NVML | allocations | context | managed | unattributed | allocations + context | explained |")
    print("|---|---|---|---|---|---|---|---|---|")
    command = [sys.executable, str(PROGRAMS / "nccl_run.py")]
    bare = Held("nccl-bare", command, environment())
    bare_status = bare.finish()
    traces = TRACES / "nccl"
    ours = Held("nccl-ours", command, environment(f"{traces}/"))
    measured = {}
    for rank, pid in sorted(ours.pids.items()):
        try:
            measured[rank] = (smi(pid), the_process(traces, pid))
        except Exception as error:
            print(f"| rank {rank} | {fail(str(error))} | | | | | | | |")
    status = ours.finish()
    same = "same" if (status, ours.lines) == (bare_status, bare.lines) else fail(f"recorded: status {status} {ours.lines}; bare: status {bare_status} {bare.lines}")
    for rank, (used, process) in measured.items():
        print(row(f"nccl rank {rank}", same, used, process))
    print("\n| traces | by library at the peak of both ranks, MiB | |\n|---|---|---|")
    print(stacks.library_row(sys.modules[__name__], "nccl", traces, ["PyTorch", "NCCL"]))


def cap(check):
    cap = 8192
    print(f"\n### Filled until refused under VRAMTRACE_CAP=8GiB ({cap} MiB)\n")
    print("| filled by | NVML at the refusal | of the cap | got | the program saw | total shown | verdict |")
    print("|---|---|---|---|---|---|---|")
    for how in ("torch", "expandable", "async", "vmm", "pool", "device", "pitched", "array", "graph", "managed"):
        missing = have("torch") if how in ("torch", "expandable", "async") else have("cuda")
        if missing:
            print(f"| {how} | SKIP no {missing} | | | | | |")
            continue
        before = smi()
        trace = TRACES / f"fill-{how}.vtrace"
        ours = Held(f"fill-{how}", [sys.executable, str(PROGRAMS / "fill.py"), how], environment(trace, VRAMTRACE_CAP="8GiB"))
        used = smi(ours.pid)
        if how == "managed":  # NVML's figure for a process excludes managed memory: use the card's
            used = smi() - before
        ours.finish()
        # The driver takes managed memory in steps of 128 MiB.
        good = used is not None and (0.97 if how == "managed" else 0.99) * cap <= used <= cap
        wanted = "OutOfMemoryError" if how in ("torch", "expandable", "async") else "CUDA_ERROR_OUT_OF_MEMORY"
        if ours.notes.get("verdict") != wanted:
            good = False
        verdict = "ok" if good else fail("")
        print(f"| {how} | {used} | {100 * (used or 0) / cap:.2f} % | {ours.notes.get('got')} | {ours.notes.get('verdict')} | {ours.notes.get('total')} | {verdict} |")
    if not have("jax"):
        trace = TRACES / "fill-jax.vtrace"
        ours = Held("fill-jax", [sys.executable, str(PROGRAMS / "jax_run.py"), "prealloc"], environment(trace, VRAMTRACE_CAP="8GiB"))
        used, limit = smi(ours.pid), int(ours.notes.get("limit", "0")) // MIB
        status = ours.finish()
        good = status == 0 and used is not None and used <= cap and 0 < limit <= cap
        print(f"| jax (sizes itself) | {used} | {100 * (used or 0) / cap:.2f} % | {limit} | status {status} | | {'ok' if good else fail('')} |")


TORCH, GPT2, MODELS = ["torch"], ["torch", "transformers"], ["torch", "transformers", "torchvision"]
# What runs a part, with this module, and the Python modules that it needs.
PARTS = {
    "same": (same, []),
    "nccl": (nccl, TORCH),
    "cap": (cap, []),
    "cost": (cost.section, []),
    "stacks": (stacks.names, GPT2),
    "steps": (stacks.steps, GPT2),
    "sampled": (sampled.section, GPT2),
    "tensors": (tensors.section, TORCH),
    "truth": (truth.section, []),
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
}
BY_NAME_ONLY = ("fits", "suites")
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
