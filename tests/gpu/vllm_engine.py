"""The part `vllm` of the GPU check: two engines of vLLM share a card, one of them recorded. Same tokens; 30 alternating batches,
and the ratio of their times with its interval of 95 %; sleep and wake twice; what the trace says of the engine; an engine that
finds too little memory, and one that asks for too much. 5 to 6 minutes; vLLM 0.21.
"""
import json
import math
import re
import statistics
import sys

from talk import Talk

PAIRS, SHARE, GIB = 30, 0.4, 1 << 30
# Two-sided 95 % of Student's t with PAIRS - 1 degrees of freedom.
T = 2.045


def start(check, name, recorded=True, **options):
    """An engine; its traces are in LOGS/NAME.traces."""
    env = check.environment(check.LOGS / f"{name}.traces" if recorded else None, VLLM_USE_FLASHINFER_SAMPLER="0", HF_HUB_OFFLINE="1")
    options = json.dumps({"gpu_memory_utilization": SHARE, **options})
    command = [sys.executable, str(check.PROGRAMS / "vllm_run.py"), str(check.TRACES / "llama"), options]
    return Talk(open(check.LOGS / f"{name}.log", "w"), command, env)


def ask(engine, *words):
    """Seconds, and the digest of the tokens."""
    engine.say(*words)
    _, seconds, *digest = engine.until(lambda line: line.startswith("DONE"), 120).split()
    return float(seconds), digest


def section(check):
    check.table("Two engines of vLLM on one card, one recorded", "what | verdict")
    verdict = lambda good, what: print(f"| {what} | {'ok' if good else check.fail('')} |", flush=True)
    both = []
    for name in "vllm-bare", "vllm-recorded":
        # One after the other: each measures the card at its start.
        both.append(start(check, name, recorded=name == "vllm-recorded"))
        both[-1].until(lambda line: line == "READY", 240)
        ask(both[-1], "batch", 0)
    bare, recorded = both
    ratios, same = [], True
    for pair in range(PAIRS):
        found = {engine: ask(engine, "batch", pair) for engine in (both if pair % 2 else both[::-1])}
        ratios.append(math.log(found[recorded][0] / found[bare][0]))
        same &= found[recorded][1] == found[bare][1]
    verdict(same, f"the same tokens in {PAIRS} batches")
    middle, half = statistics.mean(ratios), T * statistics.stdev(ratios) / math.sqrt(PAIRS)
    low, high = math.exp(middle - half), math.exp(middle + half)
    shown = "shown" if 0.98 <= low and high <= 1.02 else "not shown"
    verdict(low <= 1.02, f"time recorded / bare {math.exp(middle):.3f} ({low:.3f} to {high:.3f}); within 2 %: {shown}")
    tokens = ask(recorded, "batch", 1)[1]
    for _ in range(2):
        ask(recorded, "sleep"), ask(recorded, "wake")
        same &= ask(recorded, "batch", 1)[1] == tokens
    verdict(same, "the same tokens after each of two sleeps")
    # Both hold their part: a third one finds too little, by its own measure.
    small = start(check, "vllm-small").process.wait(120)
    for engine in both:
        engine.end(60)
    device = check.report(check.LOGS / "vllm-recorded.traces")[0]["devices"][0]
    verdict(device["sleeps"]["count"] == 2, f"sleeps in the report: {device['sleeps']['count']}")
    of = {part["part"]: part["bytes"] for part in device["engine"]["parts"]}
    own = float(re.search(r"Available KV cache memory: ([\d.]+)", (check.LOGS / "vllm-recorded.log").read_text())[1])
    verdict(abs(of["KV cache"] / GIB - own) < 0.1, f"KV cache {of['KV cache'] / GIB:.2f} GiB, {own} by vLLM's log")
    named = 100 * (1 - device["in_use_at_peak"]["unattributed_bytes"] / device["peak_bytes"])
    verdict(named >= 99.9, f"{named:.2f} % of {device['peak_bytes'] / GIB:.2f} GiB named; {device['engine_setting_text']}")
    large = start(check, "vllm-large", kv_cache_memory_bytes=200 * GIB).process.wait(240)
    for name, status, wanted in ("vllm-small", small, "--gpu-memory-utilization of at most"), ("vllm-large", large, "out of memory"):
        said = check.read(check.LOGS / f"{name}.traces")
        verdict(status and wanted in said, f"{name}: status {status}; {said.splitlines()[1].strip()[:150]}")
