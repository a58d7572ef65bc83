"""The part `llama` of the GPU check: llama.cpp, which is not PyTorch.

same     the logits of a text, to the byte, without and with the preload
speed    tokens a second of interleaved pairs, without and with it
named    the share of NVML's figure for the process that has a name, and what it is for
fit      what llama-fit-params estimates beside what was measured, for five context lengths

Without VRAMTRACE_LLAMA it is left out: the variable names a directory with built tools (llama-bench), the source of
llama.cpp (a directory, or a .crate or .tar.gz with one), which is built then: 100 s on 16 cores. The rest takes 150 s at
most. The model is of random weights (make_gguf.py), or the file VRAMTRACE_LLAMA_MODEL.
"""
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import time
from pathlib import Path

MIB = 1 << 20
TOOLS = ("llama-bench", "llama-fit-params", "llama-batched-bench")
# Earlier versions of llama.cpp do not have it.
MORE_TOOLS = ("llama-results",)
OPTIONS = """-DCMAKE_BUILD_TYPE=Release -DGGML_CUDA=ON -DGGML_CUDA_FA=OFF -DGGML_CUDA_NCCL=OFF -DGGML_NATIVE=OFF
-DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF
-DLLAMA_OPENSSL=OFF""".split()
PAIRS, PAIRS_S = 7, 75
CONTEXTS = (512, 2048, 4096, 8192, 16384)
PATIENCE_S = 60
# Weights and caches are sizes that llama.cpp knows exactly; its figures are cut to MiB.
NEAR_MIB = 4


def source(check, given):
    """The directory with CMakeLists.txt, of a directory or an archive."""
    if given.is_file():
        into = check.TRACES / "llama-source"
        with tarfile.open(given) as archive:
            archive.extractall(into, filter="data")
        given = into
    found = [path.parent for path in sorted(given.rglob("CMakeLists.txt")) if (path.parent / "ggml").is_dir()]
    return min(found, key=lambda path: len(path.parts)) if found else None


def tools(check, given):
    """The directory of the tools, or None and why there is none."""
    for place in (given, given / "bin"):
        if (place / "llama-bench").is_file():
            return place, ""
    directory = source(check, given)
    if directory is None:
        return None, f"{given} has neither llama-bench nor the source of llama.cpp"
    missing = [name for name in ("cmake", "nvcc") if shutil.which(name) is None]
    if missing:
        return None, f"no {', '.join(missing)} to build llama.cpp with"
    build = check.TRACES / "llama-build"
    capability = subprocess.run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"], capture_output=True, text=True)
    architecture = capability.stdout.split()[0].replace(".", "")
    ninja = ["-G", "Ninja"] if shutil.which("ninja") else []
    make = ["cmake", "--build", str(build), "-j", str(os.cpu_count()), "--target"]
    configure = ["cmake", *ninja, "-S", str(directory), "-B", str(build), f"-DCMAKE_CUDA_ARCHITECTURES={architecture}", *OPTIONS]
    started = time.time()
    with open(check.LOGS / "llama-build.log", "w") as log:
        run_logged = lambda command: subprocess.run(command, stdout=log, stderr=subprocess.STDOUT).returncode == 0
        if not run_logged(configure) or not run_logged([*make, *TOOLS]):
            return None, "llama.cpp does not build, see llama-build.log"
        run_logged([*make, *MORE_TOOLS])
    print(f"built in {time.time() - started:.0f} s\n")
    return build / "bin", ""


def model(check):
    given = os.environ.get("VRAMTRACE_LLAMA_MODEL")
    if given:
        return Path(given) if Path(given).is_file() else None, f"VRAMTRACE_LLAMA_MODEL={given} is no file"
    path = check.TRACES / "random.gguf"
    made = subprocess.run([sys.executable, str(check.PROGRAMS / "make_gguf.py"), str(path)], capture_output=True, text=True)
    return path if made.returncode == 0 else None, f"no model: {made.stderr.strip()[-200:]}"


def run(check, name, command, trace=None):
    return check.run(f"llama-{name}", command, check.environment(trace), timeout=PATIENCE_S)


def same(check, tool, file):
    """The logits of a text, without and with the preload, to the byte."""
    if not tool.is_file():
        print("SKIP same: no llama-results")
        return
    results = []
    for attempt, trace in (("bare", None), ("bare-again", None), ("ours", check.TRACES / "llama-same.vtrace")):
        out = check.TRACES / f"llama-{attempt}.logits"
        command = [str(tool), "-m", str(file), "-ngl", "99", "-c", "512", "-p", "The sum of all parts is the whole.", "-o", str(out)]
        ended = run(check, "same", command, trace)
        results.append(out.read_bytes() if ended.returncode == 0 and out.is_file() else None)
    bare, again, ours = results
    if bare is None or bare != again:
        print("SKIP same: llama-results does not run" if bare is None else "SKIP same: two bare runs differ")
        return
    print(f"logits of a text, {len(bare):,} bytes: " + ("the same" if ours == bare else check.fail("differ under the preload")))


def bench(check, tool, file, trace):
    """Tokens a second of generation."""
    command = [str(tool), "-m", str(file), "-ngl", "99", "-p", "0", "-n", "256", "-r", "3", "-o", "json"]
    ended = run(check, "bench", command, trace)
    if ended.returncode:
        raise RuntimeError(f"llama-bench ends with {ended.returncode}, see llama-bench.log: {ended.stderr[-200:]}")
    rows = json.loads(ended.stdout)
    return next(float(row["avg_ts"]) for row in rows if row["n_gen"]), rows[0]


def speed(check, tool, file):
    bench(check, tool, file, None)  # the file comes into the page cache
    pairs, began = [], time.time()
    while len(pairs) < PAIRS and (len(pairs) < 3 or time.time() - began < PAIRS_S):
        trace = check.TRACES / f"llama-{len(pairs)}.vtrace"
        order = (None, trace) if len(pairs) % 2 == 0 else (trace, None)
        found = {one is None: bench(check, tool, file, one)[0] for one in order}
        pairs.append((found[True], found[False]))
    bare, ours = ([pair[at] for pair in pairs] for at in (0, 1))
    slower = statistics.median(1 - with_us / without for without, with_us in pairs)
    middle = statistics.median(bare)
    spread = (max(bare) - min(bare)) / middle
    print("\n| pairs | tokens/s, median: bare | preloaded | slower, median of the pairs | spread of bare | |")
    print("|---|---|---|---|---|---|")
    far = slower > max(0.01, spread)
    verdict = check.fail("more than 1 % and more than the spread") if far else "ok"
    print(f"| {len(pairs)} | {middle:.1f} | {statistics.median(ours):.1f} | {slower:.2%} | {spread:.2%} | {verdict} |")
    return check.TRACES / f"llama-{len(pairs) - 1}.vtrace"


def by_role(check, trace):
    return {row["role"]: row["bytes"] / MIB for row in check.holders(trace, "--by", "role")}


def device_of(check, trace):
    return check.report(trace)[0]["devices"][0]


def named(check, trace):
    """What NVML counts, and how much of it has a name; roles; the functions that lead the holders."""
    device = device_of(check, trace)
    peak = device["in_use_at_peak"]
    whole, unknown = peak["in_nvidia_smi_bytes"] or 0, peak["unattributed_bytes"] or 0
    share = 1 - unknown / whole if whole else 0
    verdict = "ok" if share >= 0.999 else check.fail("less than 99.9 %")
    print(f"\nnvidia-smi at the peak {whole / MIB:.0f} MiB, named {share:.2%}: {verdict}")
    roles = by_role(check, trace)
    total = sum(roles.values())
    print("\n| role | MiB | share |\n|---|---|---|")
    for role, mib in roles.items():
        print(f"| {role} | {mib:.1f} | {mib / total:.1%} |")
    wrong = [role for role in ("weights", "KV cache", "activations") if not roles.get(role)]
    wrong = [f"no {role}" for role in wrong] + (["unknown"] if roles.get("unknown", 0) > 0.01 * total else [])
    print("\nroles: " + (check.fail(", ".join(wrong)) if wrong else "ok"))
    leads = []
    for holder in check.holders(trace):
        frame = holder["frames"][holder["lead"]] if holder.get("lead") is not None else None
        leads.append((holder["bytes"] / MIB, frame["function"] if frame else "?"))
    print("\n| MiB | function |\n|---|---|")
    for mib, function in leads[:8]:
        print(f"| {mib:.1f} | `{function}` |")
    wrappers = [function for mib, function in leads if mib > 0.01 * total and ("alloc" in function.lower() or "+0x" in function)]
    print("\nfunctions: " + (check.fail(f"only allocate, or have no name: {wrappers}") if wrappers else "ok"))


def estimate(check, tool, file, context):
    """MiB of model, context and compute on the first card, as llama-fit-params prints them."""
    command = [str(tool), "-m", str(file), "-ngl", "99", "-c", str(context), "--fit-print", "on"]
    ended = run(check, f"estimate-{context}", command)
    for line in ended.stdout.splitlines():
        words = line.split()
        if words and words[0].startswith("CUDA") and len(words) >= 4 and all(word.isdigit() for word in words[1:4]):
            return [int(word) for word in words[1:4]]
    return None


def fit(check, place, file):
    fit_tool, batched = place / "llama-fit-params", place / "llama-batched-bench"
    if not fit_tool.is_file() or not batched.is_file():
        print("SKIP fit: no llama-fit-params or llama-batched-bench")
        return
    print("\n| context | estimated MiB: model | context | compute | measured: weights | KV cache | activations | workspace | context, modules, graphs | nvidia-smi | beyond the estimate | |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for context in CONTEXTS:
        estimated = estimate(check, fit_tool, file, context)
        trace = check.TRACES / f"llama-fit-{context}.vtrace"
        command = [str(batched), "-m", str(file), "-ngl", "99", "-c", str(context), "-npp", "64", "-ntg", "8", "-npl", "1"]
        ended = run(check, f"fit-{context}", command, trace)
        if ended.returncode or estimated is None:
            print(f"| {context} | " + check.fail(f"llama-batched-bench {ended.returncode}, estimate {estimated}, see llama-fit-{context}.log") + " |")
            continue
        roles, peak = by_role(check, trace), device_of(check, trace)["in_use_at_peak"]
        ours = [roles.get(role, 0) for role in ("weights", "KV cache", "activations", "workspace")]
        whole = (peak["in_nvidia_smi_bytes"] or 0) / MIB
        driver = whole - peak["allocated_bytes"] / MIB
        wrong = [
            f"{what} {measured:.1f} for {wanted}"
            for what, measured, wanted in zip(("weights", "KV cache"), ours, estimated)
            if abs(measured - wanted) > NEAR_MIB
        ]
        figures = " | ".join(f"{mib:.1f}" for mib in (*ours, driver, whole, whole - sum(estimated)))
        print(f"| {context} | {' | '.join(map(str, estimated))} | {figures} | {check.fail('; '.join(wrong)) if wrong else 'ok'} |", flush=True)


def section(check):
    """`check`: the module check.py, which holds what all parts share."""
    print("\n## llama.cpp\n")
    given = os.environ.get("VRAMTRACE_LLAMA")
    if not given or not Path(given).exists():
        print(f"SKIP llama: VRAMTRACE_LLAMA={given or ''} names no build or source of llama.cpp")
        return
    place, why = tools(check, Path(given).resolve())
    file, no_model = model(check) if place else (None, "")
    if place is None or file is None:
        print(f"SKIP llama: {why if place is None else no_model}")
        return
    began = time.time()
    same(check, place / "llama-results", file)
    trace = speed(check, place / "llama-bench", file)
    named(check, trace)
    fit(check, place, file)
    print(f"\nwithout the build: {time.time() - began:.0f} s")
