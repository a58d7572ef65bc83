"""The part `streams` of the GPU check: streams, private pools and requested sizes of PyTorch's blocks compared with its own
snapshot, and the reserved memory of runs with them, and of runs under a limit, predicted from one recorded run and measured.
Where the requests are known without a card, the same is predicted from them too.
About 60 s: each run is a process of its own, four at a time, with at most 3 GiB of the card."""
import csv
import importlib.util
import json
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

MIB, GIB = 1 << 20, 1 << 30
# The largest error of a prediction, per cent.
GOAL = 1.0
# Limits in MiB, below what `churn` reserves without one (1,536): it fits in the first with retries, and not in the second.
LIMITS = (1400, 1300)
GARBAGE = ("garbage_collection_threshold:0.6", "garbage_collection_threshold:0.8")
# (program's mode, setting, limit in MiB).
RUNS = [
    ("turns", "default", 0),
    ("turns", "expandable_segments:True", 0),
    ("turns", "roundup_power2_divisions:4", 0),
    ("graph", "default", 0),
    ("graph", "expandable_segments:True", 0),
    ("uses", "default", 0),
    ("churn", "default", 0),
    *[("churn", setting, limit) for limit in LIMITS for setting in ("default", *GARBAGE)],
    ("churn", "max_split_size_mb:20", LIMITS[0]),
]


def run(check, mode, env, limit=0):
    """The program's figures: STATS with `oom`, and its blocks. Raises RuntimeError with the reason where it failed."""
    program = [sys.executable, str(check.PROGRAMS / "cache_run.py"), mode, str(limit)]
    ended = subprocess.run(program, env=env, capture_output=True, text=True, timeout=120)
    lines = dict(line.partition(" ")[::2] for line in ended.stdout.splitlines())
    if "STATS" not in lines or "BLOCKS" not in lines:
        raise RuntimeError(f"{mode}: status {ended.returncode} {ended.stderr.strip().splitlines()[-1:]}")
    return json.loads(lines["STATS"]) | {"oom": "OOM" in lines}, json.loads(lines["BLOCKS"])


def recorded_blocks(text):
    """Of the rows of `export --format csv`: address -> (stream, pool) of each live block."""
    live = {}
    for row in csv.DictReader(text.splitlines()):
        if row["record"] == "allocation" and row["kind"] == "block" and row["end"] == "live":
            live[int(row["address"], 16)] = (int(row["stream"] or "0", 16), int(row["pool"] or 0))
    return live


def recorded_requests(check, trace):
    """Address -> requested size of each live block, of our snapshot of the trace."""
    path = trace.with_suffix(".pickle")
    check.read("export", "--format", "torch-snapshot", "-o", path, trace)
    with open(path, "rb") as file:
        segments = pickle.load(file)["segments"]
    live = {}
    for segment in segments:
        at = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                live[at] = block["requested_size"]
            at += block["size"]
    return live


def other_requests(blocks, recorded):
    """The blocks with another request in the trace than in PyTorch's snapshot. The recorder does not see requests below 512
    bytes, which all get blocks of that size."""
    return [
        f"{block[0]:#x}: {block[4]} of PyTorch, {recorded.get(block[0])} in the trace"
        for block in blocks
        if recorded.get(block[0]) != max(block[4], 512)
    ]


def partitions(blocks, recorded):
    """How PyTorch's blocks differ from the recorded ones: streams have other names, so what counts is which blocks share
    one; a private pool has several captures, and the default pool none. Returns a list of differences."""
    wrong, names, streams = [], {}, {}
    for address, stream, _, pool, _ in blocks:
        if address not in recorded:
            wrong.append(f"{address:#x} is not in the trace")
            continue
        ours, capture = recorded[address]
        if names.setdefault(ours, stream) != stream or streams.setdefault(stream, ours) != ours:
            wrong.append(f"{address:#x}: stream {stream:#x} of PyTorch, {ours:#x} in the trace")
        if (capture != 0) != (tuple(pool) != (0, 0)):
            wrong.append(f"{address:#x}: pool {pool} of PyTorch, capture {capture} in the trace")
    return wrong


def requests(check, mode):
    """The requests of a mode of the program as a file for `vramtrace whatif`; None where they are not known without a card.
    The program's own code makes them, with stand-ins for tensors: their lives are those of its tensors."""
    if mode not in ("churn", "turns"):
        return None
    at = importlib.util.spec_from_file_location("cache_run", check.PROGRAMS / "cache_run.py")
    program = importlib.util.module_from_spec(at)
    at.loader.exec_module(program)
    rows = []

    class Tensor:
        def __init__(self, size, stream):
            self.row = (len(rows) + 1 << 30, size, stream)
            rows.append(("alloc", *self.row))

        def __del__(self):
            rows.extend((action, *self.row) for action in ("free_requested", "free_completed"))

    if mode == "churn":
        kept = program.churn(lambda size: Tensor(size, 0), 900 * MIB)
    else:
        kept = program.take_turns([0, 1], lambda stream, size: Tensor(size, stream), 400 * MIB)
    path = check.TRACES / f"requests-{mode}.csv"
    lines = ["action,addr,size,stream", *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    del kept
    return path


def section(check):
    modes = sorted({mode for mode, _, _ in RUNS})
    with ThreadPoolExecutor(4) as pool:
        traces = {mode: check.TRACES / f"cache-{mode}.vtrace" for mode in modes}
        recording = {
            mode: pool.submit(run, check, mode, check.environment(traces[mode], VRAMTRACE_MAX="unlimited"))
            for mode in modes
        }
        measuring = {
            (mode, setting, limit): pool.submit(
                run, check, mode,
                check.environment(PYTORCH_CUDA_ALLOC_CONF="" if setting == "default" else setting), limit,
            )
            for mode, setting, limit in RUNS
        }
    check.table("Streams, private pools and requests of live blocks, in the trace and in torch.cuda.memory_snapshot()", "run | blocks | streams | in private pools | larger than their request | other requests | verdict")
    facts = {}
    for mode in modes:
        try:
            facts[mode], blocks = recording[mode].result()
            recorded = recorded_blocks(check.read("export", "--format", "csv", "-o", "-", traces[mode]))
            wrong = partitions(blocks, recorded)
            others = other_requests(blocks, recorded_requests(check, traces[mode]))
        except (RuntimeError, KeyError, ValueError, subprocess.TimeoutExpired) as error:
            print(f"| {mode} | | | | | | {check.fail(str(error))} |")
            continue
        private = sum(tuple(block[3]) != (0, 0) for block in blocks)
        enough = len({block[1] for block in blocks}) > 1 or mode in ("churn", "graph")
        enough &= private > 0 or mode != "graph"
        larger = sum(block[2] != block[4] for block in blocks)
        wrong += others
        verdict = "PASS" if not wrong and enough else check.fail(f"{len(wrong)}: {wrong[:2]}")
        streams = len({block[1] for block in blocks})
        print(f"| {mode} | {len(blocks)} | {streams} | {private} | {larger} | {len(others)} | {verdict} |")
    check.table("Reserved at the peak, predicted from the run under the default setting, and measured (GiB)", "run | setting | limit, MiB | predicted | measured | off | retries: predicted / measured | from requests: off, retries | verdict")
    of_mode = {mode: (traces[mode], requests(check, mode)) for mode in modes}
    for (mode, setting, limit), running in measuring.items():
        if mode in facts:
            print(f"| {mode} | {setting} | {limit or ''} {row(check, *of_mode[mode], facts[mode]['total'], setting, limit, mode, running)} |")


def predicted(check, trace, conf, total):
    """The answer for the device, and what it has of the setting."""
    answer = json.loads(check.read("whatif", trace, "--json", "--conf", conf, "--capacity", f"{total >> 10}KiB"))
    device = answer["devices"][0]
    return device, next(one for one in device["settings"] if one["conf"] == conf)


def compare(guess, measured):
    """Per cent by which a guess is off, and whether it is right."""
    off = 100 * (guess["peak_reserved_bytes"] / measured["peak_reserved"] - 1)
    return off, abs(off) <= GOAL and guess["fits"] == (not measured["oom"])


def row(check, trace, known, total, setting, limit, mode, running):
    conf = setting
    if limit:
        fraction = f"per_process_memory_fraction:{limit * MIB / total!r}"
        conf = fraction if setting == "default" else f"{setting},{fraction}"
    try:
        measured, _ = running.result()
        device, of_setting = predicted(check, trace, conf, total)
        exact = predicted(check, known, conf, total)[1]["at_capacity"][0] if known else None
    except (RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
        old = "Unrecognized" in str(error)
        return f"| | | | | | {'SKIP: this torch does not know it' if old else check.fail(str(error))}"
    guess = of_setting["at_capacity"][0]
    off, good = compare(guess, measured)
    exact_off, exactly = compare(exact, measured) if exact else (None, False)
    # Uses by other streams are not in a trace: there the prediction must say so.
    noted = any("record_stream" in caveat for caveat in device["caveats"])
    verdict = "PASS" if good or (mode == "uses" and noted) else check.fail("out of memory" if measured["oom"] else "")
    if mode == "uses" and not good and noted:
        verdict += " (noted)"
    if exact and not exactly:
        verdict = check.fail("from requests")
    elif exact and not good and any("not of requests" in caveat for caveat in device["caveats"]):
        verdict = "PASS from requests (the trace has none)"
    of_requests = f"{exact_off:+.2f} %, {exact['retries']}" if exact else ""
    return (
        f"| {guess['peak_reserved_bytes'] / GIB:.3f} | {measured['peak_reserved'] / GIB:.3f} | {off:+.2f} % "
        f"| {guess['retries']} / {measured['retries']} | {of_requests} | {verdict}"
    )
