"""The part `truth` of the GPU check: NVML's figure for a process as a sum of named parts. The goal is 97 % named
for training, and 95 % for two GPUs with NCCL. A lower share is printed, and is not a failure. A sum that differs
from NVML's figure is a failure."""

import sys

MIB = 1 << 20
GOALS = {"torch-gpt2": 97, "torch-resnet": 97, "torch-compile": 97}
NCCL_GOAL = 95
CAUSES = ["modules", "local_memory", "heap", "streams", "graphs", "sharing", "context", "other", "unknown"]
NAMES = ["allocations", "contexts"] + CAUSES


def sums(process):
    """MiB by name, over the devices of a process."""
    names = dict.fromkeys(NAMES, 0)
    for device in process["devices"]:
        managed = device["by_kind"].get("managed", {}).get("live_bytes", 0)
        names["allocations"] += (device["live_bytes"] - managed) / MIB
        names["contexts"] += device["context_bytes"] / MIB
        for cause, taken in (device["driver_bytes"] or {}).items():
            names[cause] += taken / MIB
    return names


def row(check, name, used, process, goal):
    names = sums(process)
    # "other" is memory that several concurrent calls took: it has no name either.
    named = sum(names.values()) - names["unknown"] - names["other"]
    if not used:
        share = "NVML does not know this pid"
    else:
        share = f"{100 * named / used:.1f} %"
        if goal and 100 * named / used < goal:
            share += f" (below the goal of {goal} %)"
        # nvidia-smi truncates to whole MiB for each device.
        if abs(sum(names.values()) - used) > 2 * len(process["devices"]):
            share += " " + check.fail(f"the names add up to {sum(names.values()):.0f}")
    figures = " | ".join(f"{names[key]:.1f}" for key in NAMES)
    return f"| {name} | {used} | {figures} | {share} |"


def table_head():
    print("| client | NVML | " + " | ".join(name.replace("_", " ") for name in NAMES) + " | named |")
    print("|---" * (len(NAMES) + 3) + "|")


def makers(name, process):
    """Rows of the call sites that made the driver take most of its memory."""
    rows = []
    for device in process["devices"]:
        for taken in device["driver_bytes_by"][:6]:
            if taken["bytes"] < MIB:
                continue
            lead = taken["lead"] or {}
            line = f"{lead.get('file', '').rsplit('/', 1)[-1]}:{lead['line']}" if lead.get("line") else lead.get("function", "")
            rows.append(
                f"| {name} | {taken['bytes'] / MIB:.1f} | {taken['cause']} | {taken['library'] or '?'} | {taken['api']} "
                f"| `{(taken['name'] or '')[:60]}` | {line} |"
            )
    return rows


def two_gpus(check, listed):
    """Two ranks of an all-reduce."""
    if check.cards() < 2 or check.have("torch"):
        print(f"| nccl | SKIP {check.cards()} GPU(s), needs 2 and torch |" + " |" * (len(NAMES) + 1))
        return
    traces = check.TRACES / "truth-nccl"
    command = [sys.executable, str(check.PROGRAMS / "nccl_run.py")]
    ours = check.Held("truth-nccl", command, check.environment(f"{traces}/"))
    for rank, pid in sorted(ours.pids.items()):
        try:
            process = check.the_process(traces, pid)
            print(row(check, f"nccl rank {rank}", check.smi(pid), process, NCCL_GOAL))
            listed += makers(f"nccl rank {rank}", process)
        except Exception as error:  # the table must show every rank
            print(f"| nccl rank {rank} | {check.fail(str(error))} |" + " |" * (len(NAMES) + 1))
    ours.finish()


def section(check):
    print("\n### NVML's figure by name (MiB)\n")
    table_head()
    listed = []
    for name, command, why in check.clients():
        if command is None:
            print(f"| {name} | SKIP {why} |" + " |" * (len(NAMES) + 1))
            continue
        trace = check.TRACES / f"truth-{name}.vtrace"
        client = check.Held(f"truth-{name}", command, check.environment(trace))
        used = check.smi(client.pid)
        try:
            process = check.the_process(trace, client.pid)
            print(row(check, name, used, process, GOALS.get(name)))
            listed += makers(name, process)
        except Exception as error:  # the table must show every client
            print(f"| {name} | {check.fail(str(error))} |" + " |" * (len(NAMES) + 1))
        client.finish()
    two_gpus(check, listed)
    print("\nWho made the driver take it:\n")
    check.table(None, "client | MiB | for | library | call | name | line")
    for line in listed:
        print(line)
