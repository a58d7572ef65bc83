"""The part `marks` of the GPU check: phases of torch.cuda.nvtx."""
import sys


def section(check):
    trace = check.TRACES / "phases.vtrace"
    example = check.ROOT / "examples" / "phases.py"
    ended = check.run("phases", [check.BIN / "vramtrace", "run", "--out", trace, "--", sys.executable, example])
    if ended.returncode:
        print(check.fail(f"phases: status {ended.returncode}, see its log"))
        return
    phases = check.ask("report", "--by", "phase", trace)["processes"][0]["phases"]
    times = {phase["path"][-1]: phase["times"] for phase in phases}
    found = {name: times.get(name) for name in ("forward", "backward", "optimizer")}
    right = all(count == 20 for count in found.values())
    print(f"phases of torch.cuda.nvtx: {found} " + ("ok" if right else check.fail("must be 20 of each")))
