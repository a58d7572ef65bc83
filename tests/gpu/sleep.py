"""The part `sleep` of the GPU check: memory that torch_memory_saver unmaps and maps again.

VRAMTRACE_TMS_WHEEL=FILE   torch_memory_saver's wheel, where the package is not installed
"""
import os
import subprocess
import sys
import zipfile

CYCLES = 20
LEAK_MIB, LEAK_CYCLES = 16, 12
MIB = 1 << 20


def package(check):
    """The directory of torch_memory_saver for PYTHONPATH; or None, and the reason."""
    wheel = os.environ.get("VRAMTRACE_TMS_WHEEL")
    if wheel:
        if not os.path.isfile(wheel):
            return None, f"VRAMTRACE_TMS_WHEEL={wheel}: no such file"
        out = check.TRACES / "tms"
        zipfile.ZipFile(wheel).extractall(out)
        return out, None
    found = subprocess.run(
        [sys.executable, "-c", "import importlib.util as u; print(u.find_spec('torch_memory_saver').submodule_search_locations[0])"],
        capture_output=True, text=True,
    )
    if found.returncode:
        return None, "no torch_memory_saver, and no VRAMTRACE_TMS_WHEEL"
    return os.path.dirname(found.stdout.strip()), None


def library(check, where):
    """The path of torch_memory_saver's preload library for PyTorch's CUDA version, or None."""
    major = subprocess.run([sys.executable, "-c", "import torch; print(torch.version.cuda.split('.')[0])"], capture_output=True, text=True).stdout.strip()
    for name in (f"torch_memory_saver_hook_mode_preload_cu{major}.abi3.so", "torch_memory_saver_hook_mode_preload.abi3.so"):
        for folder in (where, os.path.join(where, "torch_memory_saver")):
            if os.path.isfile(os.path.join(folder, name)):
                return os.path.join(folder, name)
    return None


def run(check, name, where, preload, cycles, leak):
    """Runs the program: its trace and its marks; no trace if it failed, after a FAIL line."""
    trace = check.TRACES / f"{name}.vtrace"
    # Python stacks only: looking up the names of PyTorch's native functions takes long.
    env = check.environment(trace, VRAMTRACE_STACKS="python", VRAMTRACE_MAX="unlimited")
    env["LD_PRELOAD"] = ":".join(preload)
    env["PYTHONPATH"] = f"{where}{os.pathsep}{env['PYTHONPATH']}"
    command = [sys.executable, str(check.PROGRAMS / "sleeping.py"), str(cycles), str(leak)]
    ended = check.run(name, command, env)
    if ended.returncode or "RESULT" not in ended.stdout:
        last = ended.stderr.strip().splitlines()[-1:]
        print(f"FAIL {name}: status {ended.returncode} {last}, see its log")
        check.fail("")
        return None, []
    start = check.start_ns(trace)
    marks = [line.split()[1:] for line in ended.stdout.splitlines() if line.startswith("MARK")]
    return trace, [(word, int(at) - start, int(allocated), int(reserved)) for word, at, allocated, reserved in marks]


def owners(check, trace, at_ns, level):
    """Bytes and number of allocations by stack and library."""
    found = check.holders(trace, "--at", f"{at_ns / 1e9:.9f}", "--level", level, "--by", "stack")
    frames = lambda holder: tuple((frame["file"], frame["line"], frame["function"]) for frame in holder["frames"])
    return {(frames(holder), holder["library"]): (holder["bytes"], holder["count"]) for holder in found}


def verdict(check, good, what, why=""):
    print(f"{'PASS' if good else 'FAIL'} {what}" + ("" if good else f": {why}"))
    if not good:
        check.fail("")


def cycles_agree(check, name, trace, marks):
    """Checks owners after each wake-up, totals at each mark, and the sleeps in the report."""
    awake = [mark for mark in marks if mark[0] == "awake"]
    asleep = [mark for mark in marks if mark[0] == "asleep"]
    wrong, totals, resident = [], [], []
    for word, at, allocated, reserved in marks:
        *ours, device = check.totals(trace, at)
        if ours != [allocated, reserved]:
            totals.append((word, ours[0] - allocated, ours[1] - reserved))
        if word == "awake" and device.get("reserved_paused_bytes", 0):
            resident.append(device["reserved_paused_bytes"])
    for level in ("tensor", "driver"):
        before = owners(check, trace, awake[0][1], level)
        for number, mark in enumerate(awake[1:], 1):
            after = owners(check, trace, mark[1], level)
            if level == "tensor" and number == len(asleep) // 2 + 1:
                # The program freed one tensor while it was paused, and made it again at another line.
                before = after
            elif after != before:
                differ = sorted(set(before.items()) ^ set(after.items()), key=str)
                wrong.append((level, number, differ[:2]))
    process = check.report(trace)[0]
    odd = {key: value for key, value in process["inconsistencies"].items() if value}
    found = [device["sleeps"] for device in process["devices"] if device.get("sleeps")]
    if not found:
        print(f"| {name} | {len(asleep)} / 0 | | | |")
        return (("sleeps are found", False, "the report has none"),)
    sleeps = found[0]
    low = min(sleep["asleep_bytes"] for sleep in sleeps["sleeps"])
    grown = {entry["what"]: entry["growth_bytes_per_sleep"] for entry in sleeps["stayed"] if entry["growth_bytes_per_sleep"]}
    print(f"| {name} | {len(asleep)} / {sleeps['count']} | {low / MIB:.0f} | {sleeps['sleeps'][-1]['stayed_bytes'] / MIB:.0f} | {grown or '-'} |")
    return (
        ("owners after waking are those before, to the byte", not wrong, wrong[:3]),
        ("PyTorch's own totals equal ours at every mark", not totals, totals[:3]),
        ("all has memory when it is awake", not resident, resident[:3]),
        (f"{len(asleep)} sleeps are found", sleeps["count"] == len(asleep), sleeps["count"]),
        ("no unmatched free, nothing that does not fit together", not odd, odd),
    )


def leak(check, where, preload):
    trace, marks = run(check, "sleep-leak", where, preload, LEAK_CYCLES, LEAK_MIB)
    if trace is None:
        return
    program = check.PROGRAMS / "sleeping.py"
    wanted = 1 + next(at for at, line in enumerate(program.read_text().splitlines()) if line.endswith("# LEAK"))
    lines = [next((frame["line"] for frame in found["frames"] if frame["file"].endswith("sleeping.py")), None) for found in check.leaks(trace)]
    verdict(check, lines == [wanted], f"a leak of {LEAK_MIB} MiB a cycle is named at line {wanted} within {LEAK_CYCLES} cycles", f"named: {lines}")


def section(check):
    where, why = package(check)
    if why:
        print(f"SKIP sleep: {why}")
        return
    hook = library(check, where)
    if hook is None:
        print(f"SKIP sleep: no preload library of PyTorch's CUDA version in {where}")
        return
    ours = str(check.BIN / "libvramtrace.so")
    if "torch_memory_saver" in ours:
        print("SKIP sleep: the path of libvramtrace.so contains torch_memory_saver, which that package searches LD_PRELOAD for")
        return
    check.table(f"{CYCLES} sleeps of torch_memory_saver, both orders in LD_PRELOAD", "order | sleeps: program / report | MiB asleep, least | MiB stayed | grows a sleep")
    verdicts = []
    for name, preload in (("sleep-us-first", (ours, hook)), ("sleep-us-last", (hook, ours))):
        trace, marks = run(check, name, where, preload, CYCLES, 0)
        if trace is not None:
            verdicts += [(name, *one) for one in cycles_agree(check, name, trace, marks)]
    print()
    for name, what, good, why in verdicts:
        verdict(check, good, f"{name}: {what}", why)
    leak(check, where, (ours, hook))
