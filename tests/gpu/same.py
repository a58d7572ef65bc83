"""The parts `same` and `nccl` of the GPU check: each client, or an all-reduce over two GPUs, has the same exit status and results
under the preload as without it, and NVML's figure for its process is a sum of named parts. The goal is 97 % named for
training, and 95 % for two GPUs with NCCL. A lower share is printed, and is not a failure. A sum that differs from NVML's
figure is a failure."""
import shutil
import sys

import stacks

MIB = 1 << 20
GOALS = {"torch-gpt2": 97, "torch-resnet": 97, "torch-compile": 97, "nccl": 95}
CAUSES = ["modules", "local_memory", "heap", "streams", "graphs", "sharing", "context", "other", "unknown"]
NAMES = ["allocations", "contexts"] + CAUSES


def clients(check):
    """Each client: (name, command; None if it cannot run, the reason)"""
    python = sys.executable
    if shutil.which("nvcc"):
        for kind in ("static", "shared"):
            program = check.build(f"cudart-{kind}", "nvcc", check.PROGRAMS / "cudart_client.c", "-cudart", kind)
            yield f"cudart-{kind}", [str(program)] if program else None, "does not build"
    else:
        yield "cudart", None, "no nvcc"
    torch_missing = check.have("torch")
    for mode in ("native", "expandable", "async", "graphs", "compile", "gpt2", "resnet"):
        missing = torch_missing or (check.have("transformers") if mode == "gpt2" else check.have("torchvision") if mode == "resnet" else [])
        yield f"torch-{mode}", None if missing else [python, str(check.PROGRAMS / "torch_run.py"), mode], f"no {missing}"
    for name, module in (("cupy", "cupy"), ("jax", "jax"), ("numba", "numba_cuda"), ("triton", "triton")):
        missing = check.have(module)
        yield name, None if missing else [python, str(check.PROGRAMS / f"{name}_run.py")], f"no {missing}"


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


def row(check, name, result, used, process):
    names, goal = sums(process), GOALS.get(name.split()[0])
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
    return f"| {name} | {result} | {used} | {figures} | {share} |"


def makers(name, process):
    """Rows of the call sites that made the driver take most of its memory."""
    rows = []
    for device in process["devices"]:
        for taken in device["driver_bytes_by"][:6]:
            if taken["bytes"] < MIB:
                continue
            lead = {} if taken["lead"] is None else taken["frames"][taken["lead"]]
            line = f"{lead.get('file', '').rsplit('/', 1)[-1]}:{lead['line']}" if lead.get("line") else lead.get("function", "")
            rows.append(
                f"| {name} | {taken['bytes'] / MIB:.1f} | {taken['cause']} | {taken['library'] or '?'} | {taken['api']} "
                f"| `{(taken['needed_for'] or '')[:60]}` | {line} |"
            )
    return rows


def head(check):
    check.table(None, " | ".join(["client", "result", "NVML", *(name.replace("_", " ") for name in NAMES), "named"]))


def compared(check, name, command, out):
    """Prints a row of each process of a client. Returns the rows of `makers`."""
    bare = check.Held(f"{name}-bare", command, check.environment())
    bare_end = bare.finish(), bare.lines
    ours = check.Held(f"{name}-ours", command, check.environment(out))
    measured, listed = {}, []
    for rank, pid in sorted(ours.pids.items()) or [(None, ours.pid)]:
        called = name if rank is None else f"{name} rank {rank}"
        try:
            measured[called] = check.smi(pid), check.the_process(str(out).rstrip("/"), pid)
        except Exception as error:  # the table shows every process
            print(f"| {called} | {check.fail(str(error))} |" + " |" * (len(NAMES) + 2))
    end = ours.finish(), ours.lines
    result = "same" if end[0] == 0 else f"both end {end[0]}"
    if end != bare_end:
        result = check.fail(f"recorded: status {end[0]} {end[1]}; bare: status {bare_end[0]} {bare_end[1]}")
    for called, (used, process) in measured.items():
        print(row(check, called, result, used, process))
        listed += makers(called, process)
    return listed


def made(check, listed):
    print("\nWho made the driver take it:\n")
    check.table(None, "client | MiB | for | library | call | name | line")
    print("\n".join(listed))


def section(check):
    print("\n### The same result as without the recorder; NVML's figure by name (MiB)\n")
    head(check)
    listed = []
    for name, command, why in clients(check):
        if command is None:
            print(f"| {name} | SKIP {why} |" + " |" * (len(NAMES) + 2))
            continue
        trace = check.TRACES / f"{name}.vtrace"
        listed += compared(check, name, command, trace)
        if trace.exists() and trace.stat().st_size < 4 * MIB:
            shutil.copy(trace, check.LOGS / trace.name)
    made(check, listed)


def nccl(check):
    print("\n### Two-GPU NCCL all-reduce, per rank (MiB)\n")
    if check.cards() < 2:
        print(f"SKIP nccl: {check.cards()} GPU(s), needs 2")
        return
    head(check)
    traces = check.TRACES / "nccl"
    made(check, compared(check, "nccl", [sys.executable, str(check.PROGRAMS / "nccl_run.py")], f"{traces}/"))
    print("\n| traces | by library at the peak of both ranks, MiB | |\n|---|---|---|")
    print(stacks.library_row(check, "nccl", traces, ["PyTorch", "NCCL"]))
