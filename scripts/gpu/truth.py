"""What NVML shows for a process, as a sum of names. The goal is 97 % named for training, and 95 %
for two GPUs with NCCL; what falls short is said, it is no failure of the run."""

MIB = 1 << 20
GOALS = {"torch-gpt2": 97, "torch-resnet": 97, "torch-compile": 97}


def sums(process):
    """MiB by name, over the devices of a process."""
    names = {"allocations": 0, "context": 0, "limits": 0, "unknown": 0}
    for device in process["devices"]:
        managed = device["by_kind"].get("managed", {}).get("live_bytes", 0)
        limits = device.get("limit_bytes") or 0
        names["allocations"] += (device["live_bytes"] - managed) / MIB
        names["context"] += device["context_bytes"] / MIB
        names["limits"] += limits / MIB
        names["unknown"] += ((device["unattributed_bytes"] or 0) - limits) / MIB
    return names


def row(name, used, process, goal):
    names = sums(process)
    named = names["allocations"] + names["context"] + names["limits"]
    if not used:
        share = "NVML does not know this pid"
    else:
        share = f"{100 * named / used:.1f} %"
        if goal and 100 * named / used < goal:
            share += f" (below the goal of {goal} %)"
    figures = " | ".join(f"{names[key]:.1f}" for key in ("allocations", "context", "limits", "unknown"))
    return f"| {name} | {used} | {figures} | {share} |"


def section(check):
    print("\n### NVML's figure by name (MiB)\n")
    print("| client | NVML | allocations | contexts | limits (cuCtxSetLimit) | unknown | named |")
    print("|---|---|---|---|---|---|---|")
    for name, command, why in check.clients():
        if command is None:
            print(f"| {name} | SKIP {why} | | | | | |")
            continue
        trace = check.TRACES / f"truth-{name}.vtrace"
        client = check.Held(f"truth-{name}", command, check.environment(trace))
        used = check.smi(client.pid)
        try:
            print(row(name, used, check.the_process(trace, client.pid), GOALS.get(name)))
        except Exception as error:  # the table must show every client
            print(f"| {name} | {used} | {check.fail(str(error))} | | | | |")
        client.finish()
