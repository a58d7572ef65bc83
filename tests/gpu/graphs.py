"""The part `graphs` of the GPU check: what the driver takes for executable graphs, by whom, and the verdict."""
import re
import subprocess
import sys
import time

# What the program does; whether `leaks` must report it; the least share of the driver's bytes at lines, in percent.
PROGRAMS = (("kept", True, 95), ("threads", None, None), ("captures", False, None), ("cache", False, None), ("last", False, None))
MIB = 1 << 20
# Requests of `kept`: the verdict must be there after so many.
KEPT = 50
# Readings of NVML take 30 ms and 1 in 1,000 of the time; the programs run for 2 to 8 s.
MOST_OF_TIME = 0.02


def run(check, program, what):
    trace = check.TRACES / f"graphs_{what}.vtrace"
    ended = check.run(f"graphs_{what}", [sys.executable, program, what], check.environment(trace))
    result = re.search(r"^RESULT (\d+) (\d+)$", ended.stdout, re.M)
    return trace, ended, result


def by_line(check, trace, file):
    """MiB of graphs by line of the program, and without one."""
    lines, unknown = {}, 0.0
    for process in check.report(trace):
        for device in process["devices"]:
            for taken in device["driver_bytes_by"]:
                if taken["cause"] != "graphs":
                    continue
                frames = [taken["frames"][at] for at in (taken["caller"], taken["lead"]) if at is not None]
                line = next((f["line"] for f in frames if (f.get("file") or "").endswith(file)), None)
                if line is None:
                    unknown += taken["bytes"] / MIB
                else:
                    lines[line] = lines.get(line, 0) + taken["bytes"] / MIB
    return lines, unknown


def held_at_end(check, trace, file):
    """MiB of graphs at lines of the program, as `holders --at end` lists them."""
    of_graphs = [one for one in check.holders(trace, "--at", "end") if one.get("driver_memory") == "graphs"]
    at_line = [one for one in of_graphs if any((frame.get("file") or "").endswith(file) for frame in one["frames"])]
    return sum(one["bytes"] for one in at_line) / MIB


def recorder_cost(check, trace, threads):
    """Seconds that the recorder took in the calls of all threads, the time of these, and the calls that it timed."""
    process = check.report(trace)[0]
    cost = process["recorder"]
    return cost.get("in_calls_s") or 0, process["duration_s"] * threads, cost["timed_calls"]


def of_threads(program, printed, lines, of_driver):
    """No line has more than its half, and a tenth: what grows while both threads are in a call has none."""
    wrong = []
    together = re.search(r"^CAPTURES (\d+) (\d+)$", printed, re.M)
    if not together or int(together[1]) == 0:
        wrong.append("no two captures were under way at once")
    text = program.read_text().splitlines()
    both = [number for number, line in enumerate(text, 1) if line.endswith(("# ONE", "# TWO"))]
    for line, mib in lines.items():
        if line in both and mib / (of_driver / 2) > 1.1:
            wrong.append(f"line {line} has {mib:.0f} MiB, more than half of {of_driver} MiB")
    return wrong


def of_rate(leak, printed, of_driver):
    """Bytes of one of the kept graphs, and the rate, are those that the program itself measures, within 10 %."""
    span = float(re.search(r"^SPAN (\S+)$", printed, re.M)[1])
    each, rate = leak["each_bytes"] / MIB, leak["rate_bytes_per_s"] / MIB
    wanted = of_driver / KEPT, of_driver * (KEPT - 1) / KEPT / span
    near = abs(each / wanted[0] - 1) < 0.1 and abs(rate / wanted[1] - 1) < 0.1
    said = f"{each:.2f} MiB each, {rate:.1f} MiB/s, measured {wanted[0]:.2f} and {wanted[1]:.1f}"
    return said, [] if near else ["not within 10 %"]


def section(check):
    print("\n## Executable graphs\n")
    check.table(None, "program | MiB in all | reserved by PyTorch | graphs, MiB by line | without a line | holders at the end, MiB at lines | leaks | recorder, of the time | s |")
    section_began, costs = time.monotonic(), []
    program = check.PROGRAMS / "graph_growth.py"
    for what, leaks, least in PROGRAMS:
        began = time.monotonic()
        trace, ended, result = run(check, program, what)
        if ended.returncode or not result:
            print(f"| {what} | " + check.fail(f"ended with {ended.returncode}: {ended.stderr[-300:]} |"))
            continue
        taken, reserved = int(result[1]), int(result[2])
        lines, unknown = by_line(check, trace, program.name)
        found = check.leaks(trace)
        driver = [leak for leak in found if leak.get("driver_memory") == "graphs"]
        said = "; ".join(
            f"{leak['verdict']} {leak.get('driver_memory') or leak['level']} {(leak.get('each_bytes') or 0) / MIB:.1f} MiB each"
            for leak in found
        ) or "no leak"
        wrong = []
        if leaks is not None and bool(driver) != leaks:
            wrong.append("wrong verdict")
        if leaks is False and found:
            wrong.append("a leak is reported")
        of_driver = taken - reserved
        if least and sum(lines.values()) * 100 < least * of_driver:
            wrong.append(f"less than {least} % of {of_driver} MiB at the line")
        held = held_at_end(check, trace, program.name)
        if least and held * 100 < least * of_driver:
            wrong.append(f"holders: less than {least} % of {of_driver} MiB at the line")
        if least and abs(held - sum(lines.values())) > 1:
            wrong.append("holders and report differ")
        if what == "threads":
            wrong += of_threads(program, ended.stdout, lines, of_driver)
        if what == "kept" and driver:
            rate, far = of_rate(driver[0], ended.stdout, of_driver)
            said, wrong = f"{said} ({rate})", wrong + far
        costs.append(recorder_cost(check, trace, 2 if what == "threads" else 1))
        recorder = costs[-1][0] / costs[-1][1]
        if wrong:
            check.run(f"graphs_{what}.leaks", [check.BIN / "vramtrace", "leaks", "--full", trace])
        places = ", ".join(f"{mib:.0f} at line {line}" for line, mib in sorted(lines.items())) or "-"
        print(f"| {what} | {taken} | {reserved} | {places} | {unknown:.0f} | {held:.0f} | {said} | {recorder:.2%} | {time.monotonic() - began:.0f} | " + (check.fail(", ".join(wrong)) if wrong else "ok") + " |", flush=True)
    took = time.monotonic() - section_began
    print(f"\nthe five programs with their commands took {took:.0f} s (expected: 60 at most)")
    # One call in 256 is timed, a few in each program: only all of them together are judged.
    spent, of, calls = map(sum, zip((0, 1e-9, 0), *costs))
    verdict = "ok" if spent <= MOST_OF_TIME * of else check.fail(f"more than {MOST_OF_TIME:.0%}")
    print(f"the recorder took {spent / of:.2%} of the time of their threads, by {calls} timed calls: {verdict}")
    names(check)


def names(check):
    """Functions that the real driver exports and the list of classified names lacks."""
    known = {}
    for line in (check.ROOT / "shim" / "tests" / "driver_functions.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, kind = line.split()[:2]
            known[name] = kind
    found = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
    paths = re.findall(r"libcuda\.so\.1 .*=> (\S+)", found)
    if not paths:
        print("SKIP names: ldconfig knows no libcuda.so.1")
        return
    listed = subprocess.run(["nm", "-D", "--defined-only", paths[0]], capture_output=True, text=True)
    if listed.returncode:
        print(f"SKIP names: nm {paths[0]}: {listed.stderr.strip()[:200]}")
        return
    exported = {line.split()[-1].split("@")[0] for line in listed.stdout.splitlines() if line}
    new = sorted(name for name in exported if re.match(r"cu[A-Z]", name) and name not in known)
    print(f"\n{len(exported)} names of {paths[0]}, {len(new)} not classified: " + (check.fail(" ".join(new)) if new else "ok"))
