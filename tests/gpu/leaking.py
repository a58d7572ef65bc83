"""The part `leaks` of the GPU check: training loops with and without a leak: the line that is named, the exit status under
--fail-on-leak, and `leaks` on a running program."""
import subprocess
import sys

# A training loop. KEPT marks the line that `leaks` must name.
LOOP = """
import collections, sys, time, torch
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
kept, what, steps = [], sys.argv[1], int(sys.argv[2])
last = collections.deque(maxlen=20)
for step in range(steps):
    batch = torch.randn(64 + step * 37 % 64, 512, device="cuda")
    if what == "outputs":
        kept.append(model(batch))  # KEPT outputs
    loss = model(batch).square().mean()  # KEPT loss
    if what == "grad":
        kept.append(torch.autograd.grad(loss, model[0].weight, retain_graph=True)[0].norm())  # KEPT grad
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if what == "loss":
        kept.append(loss)
    elif what == "item":
        kept.append(loss.item())
    elif what == "host":
        kept.append(loss.detach().cpu())
    elif what == "last":
        last.append(loss)
    elif what == "live":
        kept.append(loss)
        time.sleep(0.005)
torch.cuda.synchronize()
if what == "live":
    print("READY", flush=True)
    sys.stdin.readline()
"""

# What is kept, the number of steps, and the mark of the line that `leaks` must name.
PROGRAMS = (
    ("loss", 600, "loss"),
    ("loss", 60, "loss"),
    ("loss", 5000, "loss"),
    ("outputs", 300, "outputs"),
    ("grad", 300, "grad"),
    ("item", 600, None),
    ("item", 60, None),
    ("host", 600, None),
    ("last", 600, None),
    ("nothing", 1, None),
    ("nothing", 3, None),
)


def line_of(mark):
    return 1 + next(at for at, line in enumerate(LOOP.splitlines()) if line.endswith(f"# KEPT {mark}"))


def verdicts(check, trace, file):
    """The verdicts of at least 0.5 confidence, and the lines of the program that they name."""
    sure = check.leaks(trace)
    for leak in sure:
        place = next((frame["line"] for frame in leak["frames"] if frame["file"].endswith(file)), None)
        leak["place"] = place
    return sure


def check_verdict(check, name, sure, wanted, more, trace):
    """Prints a row of the table, and the full output of `leaks` if the result is wrong."""
    printed = "; ".join(f"{leak['verdict']} at line {leak['place']}, {leak['bytes']} B, {leak['confidence']}" for leak in sure) or "-"
    # A kept tensor keeps its graph alive, which other lines allocated.
    right = (wanted in [leak["place"] for leak in sure] if wanted else not sure) and not more
    print(f"| {name} | {f'line {wanted}' if wanted else '-'} | {printed} | " + ("ok |" if right else check.fail(f"{more} |")))
    if not right:
        print(check.read("leaks", "--full", trace, statuses=(0, 1)))


def finished(check, program, kept, steps, mark):
    name = f"leaks_{kept}_{steps}"
    trace = check.TRACES / f"{name}.vtrace"
    command = [check.BIN / "vramtrace", "run", "--fail-on-leak", "--out", trace, "--", sys.executable, program, kept, steps]
    ended = check.run(name, command)
    status = 1 if mark else 0
    more = "" if ended.returncode == status else f"--fail-on-leak ended with {ended.returncode}: {ended.stderr[-300:]}"
    sure = verdicts(check, trace, program.name)
    check_verdict(check, f"{kept}, {steps} steps", sure, mark and line_of(mark), more, trace)


def living(check, program):
    trace = check.TRACES / "leaks_live.vtrace"
    child = subprocess.Popen(
        [sys.executable, str(program), "live", "400"], env=check.environment(trace), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )
    try:
        child.stdout.readline()
        sure = verdicts(check, trace, program.name)
        more = "" if all(leak["verdict"] == "growing" and leak["exhausted_in_s"] for leak in sure) else "growing, and until when"
        check_verdict(check, "loss, asked while it runs", sure, line_of("loss"), more, trace)
    finally:
        child.communicate("\n")


def section(check):
    program = check.TRACES / "kept.py"
    program.write_text(LOOP)
    print("| keeps | to be named | named | |\n|---|---|---|---|")
    for kept, steps, mark in PROGRAMS:
        try:
            finished(check, program, kept, steps, mark)
        except (OSError, ValueError, KeyError) as error:
            print(check.fail(f"{kept}, {steps} steps: {error!r}"))
    living(check, program)
