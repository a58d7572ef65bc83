"""The part `whatif` of the GPU check: the reserved memory under each allocator setting, predicted from one
recorded run, and measured in a separate process."""
import os
import subprocess
import sys
import time

STEPS = os.environ.get("VRAMTRACE_WHATIF_STEPS", "25")
SETTINGS = [
    "default",
    "expandable_segments:True",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "large_segment_size_mb:64",
    "max_split_size_mb:256",
    "max_split_size_mb:64",
]
GIB = 1 << 30
# The largest error of a prediction, per cent.
GOAL = 1.0


def train(check, env):
    """Runs the program: the figures of its lines by first word, and its status for a FAIL line."""
    program = [sys.executable, str(check.PROGRAMS / "train.py"), STEPS]
    ended = subprocess.run(program, env=env, capture_output=True, text=True)
    printed = {}
    for line in ended.stdout.splitlines():
        first, *rest = line.split()
        facts = dict(word.split("=") for word in rest if "=" in word)
        printed[first] = {name: int(value) for name, value in facts.items()} or rest
    return printed, f"status {ended.returncode} {ended.stderr.strip().splitlines()[-1:]}"


def command(check, *arguments):
    started = time.time()
    return check.ask(*arguments)["devices"][0], time.time() - started


def section(check):
    """`check`: the module check.py, which holds what all parts share."""
    trace = check.TRACES / "whatif.vtrace"
    printed, why = train(check, check.environment(trace, VRAMTRACE_MAX="unlimited"))
    if "STATS" not in printed:
        print(check.fail(f"the recorded run: {why}"))
        return
    confs = [word for setting in SETTINGS for word in ("--conf", setting)]
    predicted, took = command(check, "whatif", trace, *confs)
    by_conf = {setting["conf"]: setting for setting in predicted["settings"]}
    print(f"\n### What-if: predicted from one recorded run of {STEPS} steps, and measured with the setting (GiB)\n")
    print(f"The trace has {trace.stat().st_size} bytes; whatif took {took:.2f} s.\n")
    check.table(None, "setting | predicted | measured | off | allocated: predicted / measured | driver calls: predicted / measured | verdict")
    ranking = []
    for name in SETTINGS:
        measured, why = train(check, check.environment(PYTORCH_CUDA_ALLOC_CONF="" if name == "default" else name))
        if "STATS" not in measured:
            old = "Unrecognized" in why
            print(f"| {name} | | {'SKIP: this torch does not know it' if old else check.fail(why)} | | | | |")
            continue
        stats, guess = measured["STATS"], by_conf[name]
        off = 100 * (guess["peak_reserved_bytes"] / stats["peak_reserved"] - 1)
        ranking.append((guess["peak_reserved_bytes"], stats["peak_reserved"]))
        print(
            f"| {name} | {guess['peak_reserved_bytes'] / GIB:.3f} | {stats['peak_reserved'] / GIB:.3f} | {off:+.2f} % "
            f"| {guess['peak_allocated_bytes'] / GIB:.3f} / {stats['peak_allocated'] / GIB:.3f} "
            f"| {guess['driver_allocations']} / {stats['mallocs']} | {'ok' if abs(off) <= GOAL else check.fail('')} |"
        )
    measured = [reserved for _, reserved in sorted(ranking)]
    right = all(later > 0.99 * earlier for earlier, later in zip(measured, measured[1:]))
    print(f"\nranking: {'right' if right else check.fail('')}; caveats: {predicted['caveats']}")
    frag(check, trace, printed)
    caps(check, by_conf["default"]["smallest_capacity_bytes"])


def caps(check, smallest):
    print("\n### Runs under 1.02 and 0.97 of the predicted smallest cap (default setting)\n")
    if smallest is None:
        print(check.fail("none was found"))
        return
    print("| cap | predicted | measured | retries | verdict |\n|---|---|---|---|---|")
    for share, fits in ((1.02, True), (0.97, False)):
        cap = int(smallest * share) // (1 << 20)
        printed, why = train(check, check.environment("off") | {"VRAMTRACE_CAP": f"{cap}MiB"})
        if "STATS" not in printed and "OOM" not in printed:
            print(f"| {cap} MiB | | {check.fail(why)} | | |")
            continue
        good = ("STATS" in printed) == fits
        retries = printed.get("STATS", {}).get("retries", "")
        print(
            f"| {cap} MiB ({share:.2f} of {smallest >> 20}) | {'fits' if fits else 'does not fit'} "
            f"| {'fits' if 'STATS' in printed else 'out of memory'} | {retries} | {'ok' if good else check.fail('')} |"
        )


def frag(check, trace, printed):
    print("\n### frag against torch.cuda.memory_snapshot() and memory_stats() of the recorded run\n")
    at = (int(printed["MARK"][0]) - check.start_ns(trace)) / 1e9
    ours, took = command(check, "frag", trace, "--at", f"{at:.6f}")
    theirs, stats = printed["SEGMENTS"], printed["STATS"]
    print(f"At {at:.3f} s; frag took {took:.2f} s.\n\n| | frag | torch | verdict |\n|---|---|---|---|")
    for name, key, value in (
        ("reserved", "reserved_bytes", theirs["reserved"]),
        ("allocated", "allocated_bytes", theirs["allocated"]),
        ("free in segments", "free_in_segments_bytes", theirs["free"]),
        ("largest free block", "largest_free_block_bytes", theirs["largest_free"]),
        ("segments", "segments", theirs["segments"]),
        ("peak reserved", "peak_reserved_bytes", stats["peak_reserved"]),
        ("peak allocated", "peak_allocated_bytes", stats["peak_allocated"]),
    ):
        print(f"| {name} | {ours[key]} | {value} | {'same' if ours[key] == value else check.fail('')} |")
