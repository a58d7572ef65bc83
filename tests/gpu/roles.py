"""The part `roles` of the GPU check: the roles of blocks, compared with programs that count them themselves."""
import json
import os
import socket
import subprocess
import sys

# The modules that each program needs besides torch.
PROGRAMS = {
    "gpt2": ["transformers"],
    "resnet50": ["torchvision"],
    "partial": ["transformers"],
    "accumulation": ["transformers"],
    "generation": ["transformers"],
    "compile": ["transformers"],
    "fsdp": ["transformers"],
    "fsdp_mixed": ["transformers"],
    "fsdp_offload": ["transformers"],
    "fsdp_accumulation": ["transformers"],
    "fsdp_checkpointed": ["transformers"],
    "pipeline": [],
}
# Roles that the program counts together, as "rest".
REST = ["activations", "temporary", "workspace", "communication", "graph memory"]
WANTED = 98.0
MIB = 1 << 20


def start(check, name, called=None, **variables):
    """Starts a program, under the name `called` in the table and the logs."""
    called = called or name
    trace, truth = check.TRACES / f"roles-{called}.vtrace", check.LOGS / f"roles-{called}.json"
    program = check.PROGRAMS / "roles_truth.py"
    command = [str(check.BIN / "vramtrace"), "run", "--out", str(trace), "--", sys.executable, str(program), name, str(truth)]
    log = open(check.LOGS / f"roles-{called}.log", "w")
    return trace, truth, subprocess.Popen(command, env=dict(os.environ, **variables), stdout=log, stderr=subprocess.STDOUT)


def start_ranks(check):
    """Starts distributed training, one process per card."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    run = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return {f"ddp, rank {rank}": start(check, "ddp", f"ddp-{rank}", RANK=str(rank), **run) for rank in range(2)}


def score(moment, holders):
    """The bytes with the right role, the roles that differ, and the bytes of unknown role."""
    ours = {}
    for holder in holders:
        ours[holder["role"]] = ours.get(holder["role"], 0) + holder["bytes"]
    in_use = sum(ours.values()) - ours.get("free in cache", 0) - ours.get("context and modules", 0)
    # Memory that libraries take outside PyTorch's blocks is not in the program's figures; NCCL's is communication.
    beside = in_use - moment["total"]
    rest = sum(ours.get(role, 0) for role in REST) - beside - moment["communication"]
    right = min(max(rest, 0), moment["rest"])
    wrong = {}
    for role, truth in moment.items():
        if role in ("total", "rest"):
            continue
        bytes = ours.get(role, 0)
        right += min(bytes, truth)
        most = truth + beside if role == "communication" else truth
        if not truth <= bytes <= most:
            wrong[role] = f"{bytes / MIB:.1f} for {truth / MIB:.1f} MiB"
    return right, wrong, ours.get("unknown", 0)


def leaked_weights(check, trace):
    """The number of leaks by `leaks` whose stack moves or makes a module's parameters."""
    found = check.ask("leaks", trace, statuses=(0, 1))
    text = [leak for leak in found.get("leaks", []) if any(
        frame["file"].endswith("torch/nn/modules/module.py") and "_apply" in frame["function"] for frame in leak.get("frames", []))]
    return len(text)


def compare(check, name, trace, truth, process):
    """Waits for a process, and returns its row of the table."""
    try:
        status = process.wait(timeout=100)
    except subprocess.TimeoutExpired:
        process.kill()
        status = "none after 100 s"
    if status:
        log = truth.with_suffix(".log")
        lines = log.read_text(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"| {name} | " + check.fail(f"status {status}, see {log.name}: {last[:200]}") + " | | | | |"
    moments = json.loads(truth.read_text())
    peak = max(range(len(moments)), key=lambda index: moments[index]["total"])
    at = (moments[peak].pop("at_ns") - check.start_ns(trace)) / 1e9
    holders = check.holders(trace, "--by", "role", "--at", f"{at:.9f}")
    right, wrong, unknown = score(moments[peak], holders)
    part = 100 * right / moments[peak]["total"]
    leaks = leaked_weights(check, trace)
    verdict = f"{part:.2f} %" if part >= WANTED else check.fail(f"{part:.2f} %")
    differs = ", ".join(f"{role} {words}" for role, words in wrong.items()) or "-"
    total = moments[peak]["total"] / MIB
    return f"| {name} | {total:,.1f} MiB | {verdict} | {unknown / MIB:.1f} MiB | {differs} | {leaks if not leaks else check.fail(str(leaks))} |"


def section(check):
    started = {}
    for name, needs in PROGRAMS.items():
        missing = check.have("torch", *needs)
        if missing:
            print(f"SKIP roles {name}: no {missing}")
            continue
        started[name] = start(check, name)
    rows = [compare(check, name, *of) for name, of in started.items()]
    missing = check.have("torch", "transformers")
    if missing or check.cards() < 2:
        print("SKIP roles ddp: " + (f"no {missing}" if missing else f"{check.cards()} GPU, needs 2"))
    else:
        rows += [compare(check, name, *of) for name, of in start_ranks(check).items()]
    if rows:
        check.table(None, "program | blocks at the peak | right | unknown | differs | weights called a leak")
        print("\n".join(rows))
