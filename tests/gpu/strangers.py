"""The part `strangers` of the GPU check: programs that are not PyTorch, and NVIDIA's own tools beside the recorder.

xgboost, tinygrad   the same result without and with the preload; the share of NVML's figure that has a name; of XGBoost
                    how far one line of Python is divided by the functions below it
tools               a program under compute-sanitizer, ncu and nsys, without and with the preload

What is not installed, or does not run without the recorder, is SKIP. 90 s at most.
"""
import shutil
import subprocess
import sys
import time

MIB = 1 << 20
ALL_S = 90
EACH_S = 40


def client(check, name, module, extra):
    """A row for a client that prints RESULT and holds its memory."""
    if missing := check.have(module):
        print(f"| {name} | SKIP no {missing} | | | |")
        return None
    command = [sys.executable, str(check.PROGRAMS / f"{module}_run.py")]
    bare = check.Held(f"stranger-{name}-bare", command, check.environment(**extra))
    bare_end = bare.finish(), bare.lines
    if bare_end[0] or not bare.lines:
        print(f"| {name} | SKIP it does not run without the recorder, see stranger-{name}-bare.log | | | |")
        return None
    trace = check.TRACES / f"stranger-{name}.vtrace"
    ours = check.Held(f"stranger-{name}-ours", command, check.environment(trace, **extra))
    used = check.smi(ours.pid)
    device = check.the_process(trace, ours.pid)["devices"][0]
    end = ours.finish(), ours.lines
    same = "same" if end == bare_end else check.fail(f"recorded {end}, bare {bare_end}")
    unknown = (device["driver_bytes"] or {}).get("unknown", device["unattributed_bytes"] or 0)
    whole = device["process_bytes"] or 0
    share = 1 - max(unknown, 0) / whole if whole else 0
    verdict = f"{share:.2%}" if share >= 0.99 else check.fail(f"{share:.2%}")
    print(f"| {name} | {same} | {used} | {whole / MIB:.0f} | {verdict} |", flush=True)
    return trace


def divided(check, trace):
    """Holders of XGBoost: none but functions of the engine has most of the memory."""
    holders = [one for one in check.holders(trace) if not one.get("driver_memory")]
    total = sum(holder["bytes"] for holder in holders)
    lead = lambda holder: holder["frames"][holder["lead"]] if holder.get("lead") is not None else {"function": "?", "language": "?"}
    print("\n| MiB | count | function |\n|---|---|---|")
    for holder in holders[:8]:
        print(f"| {holder['bytes'] / MIB:.1f} | {holder['count']} | `{lead(holder)['function'][:90]}` |")
    of_python = sum(holder["bytes"] for holder in holders if lead(holder)["language"] == "python")
    share = of_python / max(total, 1)
    print(f"\nof XGBoost {share:.0%} stands at lines of Python: " + ("ok" if share < 0.5 else check.fail("one line holds most")))


def tools(check):
    """A program under NVIDIA's own tools, beside the recorder."""
    program = check.build("cudart", "nvcc", check.PROGRAMS / "cudart_client.c", "-cudart", "shared") if shutil.which("nvcc") else None
    print("\n| tool | result |\n|---|---|")
    for tool, options in (
        ("compute-sanitizer", ["--print-limit", "1"]),
        ("ncu", ["--target-processes", "all"]),
        ("nsys", ["profile", "--force-overwrite", "true", "-o", str(check.TRACES / "stranger-nsys")]),
    ):
        if program is None or shutil.which(tool) is None:
            print(f"| {tool} | SKIP {'no nvcc' if program is None else 'not installed'} |")
            continue
        ends = []
        for trace in (None, check.TRACES / f"stranger-{tool}.vtrace"):
            name = f"stranger-{tool}-{'ours' if trace else 'bare'}"
            ended = check.run(name, [tool, *options, program], check.environment(trace), stdin=subprocess.DEVNULL, timeout=EACH_S)
            ends.append((ended.returncode, [line for line in ended.stdout.splitlines() if line.startswith("RESULT")]))
        bare, ours = ends
        if bare[0] != 0:
            print(f"| {tool} | SKIP it does not run here ({bare[0]}), see stranger-{tool}-bare.log |")
            continue
        traced = (check.TRACES / f"stranger-{tool}.vtrace").exists()
        verdict = "same" if bare == ours and traced else check.fail(f"bare {bare}, recorded {ours}, {'a' if traced else 'no'} trace")
        print(f"| {tool} | {verdict} |", flush=True)


def section(check):
    """`check`: the module check.py, which holds what all parts share."""
    print("\n## Strangers\n")
    began = time.time()
    print("| client | result | NVML, MiB | recorded, MiB | named |\n|---|---|---|---|---|")
    traces = {}
    for name, extra in (("xgboost", {}), ("tinygrad", {"DEV": "CUDA"})):
        try:
            traces[name] = client(check, name, name, extra)
        except (RuntimeError, LookupError) as error:  # the other clients still run
            print(f"| {name} | | | | {check.fail(str(error))} |", flush=True)
    trace = traces.get("xgboost")
    if trace:
        divided(check, trace)
    print()
    if time.time() - began > ALL_S:
        print(f"SKIP tools: {ALL_S} s are over")
    else:
        check.each((tools, check))
