"""The part `forward` of the GPU check: the forward lines of memory that PyTorch's backward pass allocates, compared with
PyTorch's own tracebacks of a second run (programs/forward_truth.py). At least 95 % of the bytes have the right line, and
none a wrong one."""
import collections
import csv
import json
import re
import sys

# The modules that each program needs besides torch.
PROGRAMS = {"gpt2": ["transformers"], "resnet50": ["torchvision"], "partial": ["transformers"], "plain": [], "double_backward": []}
WANTED = 95.0
MIB = 1 << 20
# `MulBackward0 of model.py:7 < train.py:23`
NAMED = re.compile(r"^(.+) of ([^<>]+:\d+)(?: < (.+))?$")
# The class of a node. Sums of gradients, which the engine makes, have the name of another function.
NODE = re.compile(r"\w*Backward\w*|CopySlices")
# Names of backward's memory without a line.
UNNAMED = re.compile(r"\(backward\)$|^autograd thread, no line$")


def execute(check, what, name, *command):
    ended = check.run(f"forward-{name}-{what}", command, timeout=300)
    if ended.returncode:
        raise RuntimeError(f"{what}: status {ended.returncode}, see forward-{name}-{what}.log")


def recorded(check, name, program):
    """Bytes of the blocks by node and forward line, and those of backward without a line, from a recorded run."""
    trace = check.TRACES / f"forward-{name}.vtrace"
    vramtrace = check.BIN / "vramtrace"
    execute(check, "recorded", name, vramtrace, "run", "--out", trace, "--", sys.executable, program, name)
    rows = check.LOGS / f"forward-{name}.csv"
    execute(check, "export", name, vramtrace, "export", trace, "--format", "csv", "--force", "-o", rows)
    named, unnamed = collections.Counter(), collections.Counter()
    with open(rows) as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            if row["record"] != "allocation" or row["kind"] != "block":
                continue
            bytes = int(row["bytes"])
            if found := NAMED.match(row["line"]):
                named[found.groups()] += bytes
            elif UNNAMED.search(row["line"]):
                unnamed[row["line"]] += bytes
    return named, unnamed


def true_lines(check, name, program):
    """Bytes by (innermost line outside of PyTorch), and for each such line the frames of its tracebacks."""
    out = check.LOGS / f"forward-{name}.json"
    execute(check, "tracebacks", name, sys.executable, program, name, out)
    bytes_of, frames_of = collections.Counter(), collections.defaultdict(set)
    for node, bytes, frames in json.loads(out.read_text()):
        outside = [frame for frame in frames if not frame.startswith("torch ")]
        # The line of an operation that PyTorch's own code calls alone is the innermost one.
        lead = (outside or [frame.removeprefix("torch ") for frame in frames] or ["?"])[0]
        bytes_of[lead] += bytes
        frames_of[lead].update(outside)
    return bytes_of, frames_of


def compare(check, name):
    program = check.PROGRAMS / "forward_truth.py"
    named, unnamed = recorded(check, name, program)
    truth, frames = true_lines(check, name, program)
    # Of these some are in a node's count, and others are made between two nodes.
    others = collections.Counter()
    ours = collections.Counter()
    wrong = collections.Counter()
    for (node, line, caller), bytes in named.items():
        if not NODE.fullmatch(node):
            others[line] += bytes
            continue
        ours[line] += bytes
        if caller and line in frames and caller not in frames[line]:
            wrong[f"{line} < {caller}"] += bytes
    right = sum(min(ours[line] + others[line], bytes) for line, bytes in truth.items())
    for line, bytes in ours.items():
        # Libraries may take other temporary memory in another run: up to 1 %, or 1 MiB.
        if bytes > truth[line] + max(truth[line] // 100, MIB) or line not in truth:
            wrong[line] += bytes - truth[line]
    total = sum(bytes for line, bytes in truth.items() if line != "?")
    share = 100 * right / total if total else 0.0
    details = ", ".join(f"{line} {bytes / MIB:.1f} MiB" for line, bytes in wrong.most_common(3)) or "none"
    verdict = f"{share:.2f} %"
    if share < WANTED:
        verdict = check.fail(f"{verdict}, wanted {WANTED} %")
    if wrong:
        details = check.fail(details)
    found = ours + others
    missed = collections.Counter({line: truth[line] - found[line] for line in truth if truth[line] > found[line] + MIB})
    rest = ", ".join(f"{line} {bytes / MIB:.1f}" for line, bytes in missed.most_common(3)) or "none"
    # A gradient that is kept is no temporary memory of a forward line.
    gradients = sum(bytes for line, bytes in unnamed.items() if line.startswith("AccumulateGrad"))
    without = sum(unnamed.values()) - gradients
    return (
        f"| {name} | {total / MIB:.1f} | {len(truth)} | {verdict} | {details} | {rest} | {without / MIB:.1f} "
        f"| {gradients / MIB:.1f} | {sum(others.values()) / MIB:.1f} |"
    )


def section(check):
    rows = []
    for name, modules in PROGRAMS.items():
        missing = check.have(*modules)
        if missing:
            print(f"SKIP forward {name}: no {missing}")
            continue
        try:
            rows.append(compare(check, name))
        except (RuntimeError, OSError) as error:
            rows.append(f"| {name} | " + check.fail(str(error)) + " |" * 8)
    if rows:
        check.table(None, "program | MiB by nodes | lines | right | wrong | missed, MiB | no line, MiB | AccumulateGrad, MiB | other functions, MiB")
        print("\n".join(rows))
