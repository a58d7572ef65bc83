"""The part `marks` of the GPU check."""
import json
import os
import subprocess
import sys


def run(check, name, *command):
    """Runs a program under `vramtrace run`: its trace; None if it failed, after a FAIL line."""
    trace = check.TRACES / f"{name}.vtrace"
    command = [str(check.BIN / "vramtrace"), "run", "--out", str(trace), "--", sys.executable, *map(str, command)]
    ended = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True)
    (check.LOGS / f"{name}.log").write_text(ended.stdout + ended.stderr)
    if ended.returncode:
        print(check.fail(f"{name}: status {ended.returncode}, see its log"))
        return None
    return trace


def ask(check, *arguments):
    answer = subprocess.run([str(check.BIN / "vramtrace"), *map(str, arguments)], capture_output=True, text=True)
    return json.loads(answer.stdout)


def marks(check):
    example = check.PROGRAMS.parents[2] / "examples" / "phases.py"
    trace = run(check, "phases", example)
    if trace is None:
        return
    phases = ask(check, "report", "--by", "phase", "--json", trace)["processes"][0]["phases"]
    times = {phase["path"][-1]: phase["times"] for phase in phases}
    found = {name: times.get(name) for name in ("forward", "backward", "optimizer")}
    right = all(count == 20 for count in found.values())
    print(f"phases of torch.cuda.nvtx: {found} " + ("ok" if right else check.fail("must be 20 of each")))
