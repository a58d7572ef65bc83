"""The parts `marks` and `leaks` of the GPU check."""
import json
import os
import subprocess
import sys

# A training loop that keeps its losses, or what they say.
LOOP = """
import sys, torch
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
losses = []
for step in range(600):
    loss = model(torch.randn(64, 512, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss if sys.argv[1] == "loss" else loss.item())
torch.cuda.synchronize()
"""


def run(check, name, *command):
    """A program under `vramtrace run`: its trace, or None after saying why."""
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
    phases = ask(check, "report", "--by-phase", "--json", trace)["processes"][0]["phases"]
    times = {phase["path"][-1]: phase["times"] for phase in phases}
    found = {name: times.get(name) for name in ("forward", "backward", "optimizer")}
    right = all(count == 20 for count in found.values())
    print(f"phases of torch.cuda.nvtx: {found} " + ("ok" if right else check.fail("20 of each were marked")))


def leaks(check):
    for kept, leaking in (("loss", True), ("item", False)):
        program = check.TRACES / f"losses_{kept}.py"
        program.write_text(LOOP)
        trace = run(check, f"losses_{kept}", program, kept)
        if trace is None:
            continue
        wanted = 1 + next(at for at, line in enumerate(LOOP.splitlines()) if line.lstrip().startswith("loss ="))
        sure = [leak for leak in ask(check, "leaks", "--json", trace)["leaks"] if leak["confidence"] >= 0.5]
        lines = {frame["line"] for leak in sure for frame in leak["frames"] if frame["file"].endswith(program.name)}
        right = (wanted in lines) if leaking else not sure
        said = [(leak["verdict"], leak["level"], leak["bytes"], leak["confidence"]) for leak in sure]
        print(f"keeps {kept}: {said} at lines {sorted(lines)} " + ("ok" if right else check.fail(f"line {wanted}: {leaking}")))
