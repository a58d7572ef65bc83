"""The part `per_tensor` of the GPU check: with XLA's allocator by tensor, 95 % of the bytes that JAX
holds at its peak have a Python line."""
import sys

WANTED = 0.95


def section(check):
    """`check`: the module check.py, which holds what all parts share."""
    check.table("JAX by tensor: the bytes at the peak that have a Python line", "variables | bytes at the peak | with a Python line | share")
    for variables in ([], ["XLA_PYTHON_CLIENT_ALLOCATOR=platform"]):
        share = share_with(check, variables)
        if variables and (share is None or share < WANTED):
            print(check.fail(f"{variables}: {share} of the bytes have a Python line: must be at least {WANTED}"))


def share_with(check, variables):
    name = f"per-tensor{len(variables)}"
    trace = check.TRACES / f"{name}.vtrace"
    program = check.PROGRAMS / "per_tensor_jax.py"
    ended = check.run(name, [check.BIN / "vramtrace", "run", "--out", trace, "env", *variables, sys.executable, program])
    if ended.returncode or not trace.exists():
        print(check.fail(f"jax with {variables}: status {ended.returncode}, see {name}.log"))
        return None
    holders = check.holders(trace)
    named = lambda holder: any(frame["language"] == "python" for frame in holder["frames"])
    total = sum(holder["bytes"] for holder in holders)
    with_line = sum(holder["bytes"] for holder in holders if named(holder))
    share = with_line / max(total, 1)
    print(f"| {' '.join(variables) or '(none)'} | {total:,} | {with_line:,} | {100 * share:.1f} % |")
    return share
