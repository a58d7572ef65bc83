"""The part `per_tensor` of the GPU check: with `vramtrace run --per-tensor`, 95 % of the bytes that JAX
holds at its peak have a Python line."""
import json
import subprocess
import sys

WANTED = 0.95


def section(check):
    """`check`: the module check.py, which holds what all parts share."""
    print("\n### JAX by tensor: the bytes at the peak that have a Python line\n")
    if check.have("jax"):
        print("SKIP per-tensor: jax is not installed")
        return
    print("| options | bytes at the peak | with a Python line | share |\n|---|---|---|---|")
    for options in ([], ["--per-tensor"]):
        share = run(check, options)
        if options and (share is None or share < WANTED):
            print(check.fail(f"--per-tensor: {share} of the bytes have a Python line: must be at least {WANTED}"))


def run(check, options):
    trace = check.TRACES / f"per-tensor{len(options)}.vtrace"
    command = [str(check.BIN / "vramtrace"), "run", "--out", str(trace), *options]
    command += [sys.executable, str(check.PROGRAMS / "per_tensor_jax.py")]
    ended = subprocess.run(command, env=check.environment(), capture_output=True, text=True)
    (check.LOGS / f"per-tensor{len(options)}.log").write_text(ended.stdout + ended.stderr)
    if ended.returncode or not trace.exists():
        print(check.fail(f"jax under {options}: status {ended.returncode}, see per-tensor{len(options)}.log"))
        return None
    read = [str(check.BIN / "vramtrace"), "holders", "--json", str(trace)]
    holders = json.loads(subprocess.run(read, capture_output=True, text=True, check=True).stdout)["holders"]
    named = lambda holder: any(frame["language"] == "python" for frame in holder["frames"])
    total = sum(holder["bytes"] for holder in holders)
    with_line = sum(holder["bytes"] for holder in holders if named(holder))
    share = with_line / max(total, 1)
    print(f"| {' '.join(options) or '(none)'} | {total:,} | {with_line:,} | {100 * share:.1f} % |")
    return share
