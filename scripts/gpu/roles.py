"""The part `roles` of the GPU check: what blocks are for, against programs that count it themselves."""
import json
import os
import subprocess
import sys

# What each program needs beside torch.
PROGRAMS = {
    "gpt2": ["transformers"],
    "resnet50": ["torchvision"],
    "partial": ["transformers"],
    "accumulation": ["transformers"],
    "generation": ["transformers"],
    "compile": ["transformers"],
}
# These the program does not tell apart.
REST = ["activations", "temporary", "workspace", "communication", "graph memory"]
WANTED = 98.0
MIB = 1 << 20


def start(check, name):
    trace, truth = check.TRACES / f"roles-{name}.vtrace", check.LOGS / f"roles-{name}.json"
    program = check.PROGRAMS / "roles_truth.py"
    command = [str(check.BIN / "vramtrace"), "run", "--out", str(trace), "--", sys.executable, str(program), name, str(truth)]
    log = open(check.LOGS / f"roles-{name}.log", "w")
    return trace, truth, subprocess.Popen(command, env=dict(os.environ), stdout=log, stderr=subprocess.STDOUT)


def ask(check, *arguments):
    answer = subprocess.run([str(check.BIN / "vramtrace"), *map(str, arguments)], capture_output=True, text=True)
    if answer.returncode:
        raise RuntimeError(answer.stderr.strip()[:200])
    return json.loads(answer.stdout)


def seconds_of_marks(check, trace):
    events = ask(check, "export", trace, "--format", "chrome", "--min-size", "1TiB", "-o", "-")["traceEvents"]
    marks = [event for event in events if event["name"].startswith("truth:")]
    return {int(event["name"].split(":")[1]): event["ts"] / 1e6 for event in marks}


def score(moment, holders):
    """Bytes of blocks whose role is right."""
    ours = {}
    for holder in holders:
        ours[holder["role"]] = ours.get(holder["role"], 0) + holder["bytes"]
    in_use = sum(ours.values()) - ours.get("free in cache", 0)
    # Memory of libraries beside the blocks is not in the program's figures.
    rest = sum(ours.get(role, 0) for role in REST) - (in_use - moment["total"])
    right = min(max(rest, 0), moment["rest"])
    wrong = {}
    for role, truth in moment.items():
        if role not in ("total", "rest"):
            right += min(ours.get(role, 0), truth)
            if ours.get(role, 0) != truth:
                wrong[role] = f"{ours.get(role, 0) / MIB:.1f} for {truth / MIB:.1f} MiB"
    return right, wrong, ours.get("unknown", 0)



def leaked_weights(check, trace):
    """Bytes that `leaks` calls a leak and whose stack moves or makes a module's parameters."""
    answer = subprocess.run([str(check.BIN / "vramtrace"), "leaks", "--json", str(trace)], capture_output=True, text=True)
    found = json.loads(answer.stdout)
    text = [leak for leak in found.get("leaks", []) if any(
        frame["file"].endswith("torch/nn/modules/module.py") and "_apply" in frame["function"] for frame in leak.get("frames", []))]
    return len(text)


def roles(check):
    started = {}
    for name, needs in PROGRAMS.items():
        missing = check.have("torch", *needs)
        if missing:
            print(f"SKIP roles {name}: no {missing}")
            continue
        started[name] = start(check, name)
    if not started:
        return
    print("| program | blocks at the peak | right | unknown | differs | weights called a leak |")
    print("|---|---|---|---|---|---|")
    for name, (trace, truth, process) in started.items():
        try:
            status = process.wait(timeout=100)
        except subprocess.TimeoutExpired:
            process.kill()
            status = "none after 100 s"
        if status:
            lines = (check.LOGS / f"roles-{name}.log").read_text(errors="replace").split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), "")
            print(f"| {name} | " + check.fail(f"status {status}, see roles-{name}.log: {last[:200]}") + " | | | | |")
            continue
        moments = json.loads(truth.read_text())
        peak = max(range(len(moments)), key=lambda index: moments[index]["total"])
        at = seconds_of_marks(check, trace)[peak]
        holders = ask(check, "holders", "--by", "role", "--at", f"{at:.9f}", "--json", trace)["holders"]
        right, wrong, unknown = score(moments[peak], holders)
        part = 100 * right / moments[peak]["total"]
        leaks = leaked_weights(check, trace)
        verdict = f"{part:.2f} %" if part >= WANTED else check.fail(f"{part:.2f} %")
        differs = ", ".join(f"{role} {words}" for role, words in wrong.items()) or "-"
        total = moments[peak]["total"] / MIB
        print(f"| {name} | {total:,.1f} MiB | {verdict} | {unknown / MIB:.1f} MiB | {differs} | {leaks if not leaks else check.fail(str(leaks))} |")
