"""The part `graphs` of the GPU check: what the driver takes for executable graphs, by whom, and the verdict."""
import json
import re
import subprocess
import sys
from pathlib import Path

# What the program does; whether `leaks` must report it; the least share of the driver's bytes at its line, in percent.
PROGRAMS = (("kept", True, 95), ("threads", None, None), ("captures", False, None), ("cache", False, None), ("last", False, None))
MIB = 1 << 20


def run(check, program, what):
    trace = check.TRACES / f"graphs_{what}.vtrace"
    ended = subprocess.run(
        [sys.executable, str(program), what], env=check.environment(trace), capture_output=True, text=True
    )
    (check.LOGS / f"graphs_{what}.log").write_text(ended.stdout + ended.stderr)
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
                frames = [taken.get("caller"), taken.get("lead")]
                line = next((f["line"] for f in frames if f and (f.get("file") or "").endswith(file)), None)
                if line is None:
                    unknown += taken["bytes"] / MIB
                else:
                    lines[line] = lines.get(line, 0) + taken["bytes"] / MIB
    return lines, unknown


def leaks_of(check, trace):
    answer = subprocess.run([str(check.BIN / "vramtrace"), "leaks", "--json", str(trace)], capture_output=True, text=True)
    return [leak for leak in json.loads(answer.stdout)["leaks"] if leak["confidence"] >= 0.5]


def section(check):
    print("\n## Executable graphs\n")
    print("| program | MiB in all | reserved by PyTorch | graphs, MiB by line | without a line | leaks | |")
    print("|---|---|---|---|---|---|---|")
    program = Path(check.PROGRAMS) / "graph_growth.py"
    for what, leaks, least in PROGRAMS:
        trace, ended, result = run(check, program, what)
        if ended.returncode or not result:
            print(f"| {what} | " + check.fail(f"ended with {ended.returncode}: {ended.stderr[-300:]} |"))
            continue
        taken, reserved = int(result[1]), int(result[2])
        lines, unknown = by_line(check, trace, program.name)
        found = leaks_of(check, trace)
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
        if wrong:
            shown = subprocess.run([str(check.BIN / "vramtrace"), "leaks", "--full", str(trace)], capture_output=True, text=True)
            (check.LOGS / f"graphs_{what}.leaks").write_text(shown.stdout + shown.stderr)
        places = ", ".join(f"{mib:.0f} at line {line}" for line, mib in sorted(lines.items())) or "-"
        print(f"| {what} | {taken} | {reserved} | {places} | {unknown:.0f} | {said} | " + (check.fail(", ".join(wrong)) if wrong else "ok") + " |", flush=True)
    names(check)


def names(check):
    """Functions that the real driver exports and the list of classified names lacks."""
    known = {}
    for line in (Path(check.HERE).parents[1] / "shim" / "tests" / "driver_functions.txt").read_text().splitlines():
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
