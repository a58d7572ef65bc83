"""The part `fits` of the GPU check: peaks predicted by `vramtrace fits` from two recorded batches, and measured at
others; the same by the line through two peaks; caps, at which the batches that it names are run.

    fits.py runs BIN_DIR RUNS SET [AT_ONCE]      recordings and peaks alone (AT_ONCE: processes at a time, default 5)
    fits.py tables BIN_DIR RUNS                  the tables again, from the files of an earlier check (VRAMTRACE_LOGS/fits)
    fits.py caps BIN_DIR RUNS OUT [AT_ONCE [SET [CAPS]]]

SET is `development` or `unseen`, or names of models of programs/batches.py with commas. Each model is run at each
of its batches, in a process of its own. The first two batches are also recorded, as RUNS/MODEL_bBATCH.vtrace.gz;
`peaks.jsonl` has PyTorch's peaks of the runs that were not recorded, under the settings of FITS_SETTINGS (words; default:
`default expandable_segments:True`; empty: recorded runs alone). Each run may take 1/AT_ONCE of the card. FITS_SECONDS
bounds the whole: no run is started later. The batches of all models are run in turn, so that what has run by then has as
many of each.

`caps`: for each model CAPS caps (default 5, at most 5) are chosen between the predicted peaks at its other batches. The
largest batch that fits must end with status 0 under the cap, the smallest that does not must be out of memory (status 3).
"""
import collections
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PROGRAM = Path(__file__).resolve().parent / "programs" / "batches.py"
SETTINGS = "default expandable_segments:True"
MIB = 1 << 20
# Of these cuDNN chooses the algorithm anew at each batch.
CONVOLUTIONAL = {"mobilenet", "densenet", "efficientnet", "convnext-channels-last", "vgg", "unet", "resnet50"}
GOAL = 95.0


def chosen_models(names):
    sys.path.insert(0, str(PROGRAM.parent))
    import batches

    return batches.SETS.get(names) or {name: batches.MODELS[name] for name in names.split(",")}


def fits(bin_dir, traces, *words):
    """The answer of `vramtrace fits`, which may end with another status than 0."""
    command = [str(bin_dir / "vramtrace"), "fits", *map(str, traces), *words, "--json"]
    answer = subprocess.run(command, capture_output=True, text=True)
    if not answer.stdout:
        raise RuntimeError(f"{traces[0]}: {answer.stderr.strip()[:300]}")
    return json.loads(answer.stdout)


def peaks_of(runs):
    """Of each model and setting: PyTorch's peaks by batch."""
    found = collections.defaultdict(dict)
    for line in (runs / "peaks.jsonl").read_text().splitlines():
        peak = json.loads(line)
        found[peak["model"], peak["setting"]][int(peak["batch"])] = peak
    return found


def tables(bin_dir, runs):
    """Prints both tables; returns for each of their rows whether the peaks are inside of their intervals."""
    peaks, inside, widths, errors, outside = peaks_of(runs), collections.defaultdict(list), collections.defaultdict(list), collections.defaultdict(list), []
    for (model, setting), by_batch in sorted(peaks.items()):
        pair = sorted(int(file.name.split("_b")[-1].split(".")[0]) for file in runs.glob(f"{model}_b*.vtrace.gz"))
        if len(pair) < 2:
            print(f"{model}: not counted, {len(pair)} recorded runs")
            continue
        others = [batch for batch in sorted(by_batch) if batch not in pair]
        traces = [runs / f"{model}_b{batch}.vtrace.gz" for batch in pair]
        words = ("--conf", setting or "default", "--batch", ",".join(map(str, others)))
        said = {one["value"]: one for one in fits(bin_dir, traces, *words)["predictions"]} if others else {}
        for batch in others:
            if by_batch[batch].get("retries"):
                print(f"{model} {setting or 'default'} {batch}: not counted, the run met its limit")
                continue
            for kind in ("allocated", "reserved"):
                true, interval = by_batch[batch][kind], said[batch][f"peak_{kind}"]
                row = (kind, setting or "default", "convolutional" if model in CONVOLUTIONAL else "others")
                low, high = interval["low_bytes"], interval["high_bytes"]
                inside[row].append(low <= true <= high)
                widths[row].append(100 * (high - low) / true)
                errors["vramtrace fits", kind, setting].append(100 * abs(interval["expected_bytes"] / true - 1))
                if not low <= true <= high:
                    outside.append(f"{model} {setting or 'default'} {batch} {kind}: {100 * (interval['expected_bytes'] / true - 1):+.2f} %")
                first, second = (peaks[model, setting].get(one, {}).get(kind) for one in pair)
                if first and second:
                    line = first + (second - first) / (pair[1] - pair[0]) * (batch - pair[0])
                    errors["line through two peaks", kind, setting].append(100 * abs(line / true - 1))
    print("| peak | setting | models | inside | median width |\n|---|---|---|---|---|")
    for row in sorted(inside):
        print(f"| {' | '.join(row)} | {sum(inside[row])} of {len(inside[row])} | {statistics.median(widths[row]):.2f} % |")
    print("\nOutside: " + ("; ".join(outside) or "none"))
    print("\n| estimator | peak, default setting | predictions | median error | largest | within 2 % |\n|---|---|---|---|---|---|")
    for (tool, kind, setting), of in errors.items():
        if not setting:
            print(f"| {tool} | {kind} | {len(of)} | {statistics.median(of):.2f} % | {max(of):.1f} % | {sum(one <= 2 for one in of)} |")
    return inside


def recorded(bin_dir, out, model, batch):
    if time.time() > float(os.environ.get("BATCHES_DEADLINE", "inf")):
        print(f"recorded {model} {batch}: not run, FITS_SECONDS have passed", flush=True)
        return
    trace = out / f"{model}_b{batch}.vtrace"
    command = [str(bin_dir / "vramtrace"), "run", "--out", str(trace), "--", sys.executable, str(PROGRAM), model, str(batch), str(out / "recorded.jsonl")]
    log = trace.with_suffix(".log")
    with open(log, "w") as text:
        status = subprocess.run(command, stdout=text, stderr=subprocess.STDOUT).returncode
        if trace.exists():
            subprocess.run([str(bin_dir / "vramtrace"), "pack", str(trace), "-o", f"{trace}.gz"], stdout=text, stderr=subprocess.STDOUT)
            trace.unlink()
    if status:
        print(f"**FAIL** recorded {model} {batch}: status {status}, see {log.name}", flush=True)


def bare(out, models, setting, at_once):
    turns = itertools.zip_longest(*([(model, batch) for batch in sizes] for model, (_, sizes) in models.items()))
    lines = "".join(f"{model} {batch}\n" for turn in turns for model, batch in filter(None, turn))
    env = dict(os.environ, PYTORCH_CUDA_ALLOC_CONF="" if setting == "default" else setting)
    command = [sys.executable, str(PROGRAM), "--each", str(at_once), str(out / "peaks.jsonl")]
    ended = subprocess.run(command, env=env, input=lines, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    (out / f"bare-{setting}.log").write_text(ended.stdout)
    print("\n".join(line for line in ended.stdout.splitlines() if "status" in line or "FAILED" in line))


def run(bin_dir, out, names, at_once=5, settings=None):
    settings = os.environ.get("FITS_SETTINGS", SETTINGS).split() if settings is None else settings
    out.mkdir(parents=True, exist_ok=True)
    models, began = chosen_models(names), time.time()
    os.environ["BATCHES_FRACTION"] = f"{0.96 / at_once:.3f}"
    if "FITS_SECONDS" in os.environ:
        os.environ["BATCHES_DEADLINE"] = str(began + float(os.environ["FITS_SECONDS"]))
    with ThreadPoolExecutor(at_once) as pool:
        both = [(model, batch) for model, (_, sizes) in models.items() for batch in sizes[:2]]
        list(pool.map(lambda run: recorded(bin_dir, out, *run), both))
    print(f"{len(both)} recorded runs, {time.time() - began:.0f} s", flush=True)
    if not settings:
        return
    for setting in settings:
        bare(out, models, setting, at_once)
    peaks = [json.loads(line) for line in (out / "peaks.jsonl").read_text().splitlines()]
    wanted = sum(len(settings) * len(sizes) for _, sizes in models.values())
    print(f"{len(peaks)} of {wanted} runs, {time.time() - began:.0f} s")


def real(bin_dir, out, model, cap, batch):
    """The exit status of one run under the cap."""
    env = dict(os.environ, LD_PRELOAD=str(bin_dir / "libvramtrace.so"), VRAMTRACE_OUT="off", VRAMTRACE_CAP=f"{cap // MIB}MiB")
    ended = subprocess.run([sys.executable, str(PROGRAM), model, str(batch)], env=env, capture_output=True, text=True)
    (out / f"cap-{model}-{cap // MIB}-{batch}.log").write_text(ended.stdout + ended.stderr)
    return ended.returncode


def chosen(totals, caps):
    """Pairs of neighbours among the predicted totals, the last one without a second: `caps` of the first five, evenly."""
    pairs = list(zip(totals, totals[1:] + [(None, None)]))[:5]
    caps = min(caps, len(pairs))
    return [pairs[(2 * at + 1) * len(pairs) // (2 * caps)] for at in range(caps)]


def under_caps(bin_dir, traces, out, at_once=6, names="development", caps=5):
    out.mkdir(parents=True, exist_ok=True)
    began, rows = time.time(), []
    for model, (_, sizes) in chosen_models(names).items():
        files = [next(str(file) for file in traces.glob(f"{model}_b{size}.vtrace*")) for size in sizes[:2]]
        others = sizes[2:] + (sizes[-1] + sizes[-1] - sizes[-2],)
        said = fits(bin_dir, files, "--conf", "default", "--batch", ",".join(map(str, others)))
        totals = sorted({one["value"]: one["peak_total"]["expected_bytes"] for one in said["predictions"]}.items())
        for (low, before), (high, after) in chosen(totals, caps):
            cap = int(before * 1.03 if after is None else before + 0.6 * (after - before)) // MIB * MIB
            setting = fits(bin_dir, files, "--conf", "default", "--card", f"{cap // MIB}MiB")["settings"][0]
            rows.append((model, cap, setting["fits"], setting["does_not_fit"]))
    with ThreadPoolExecutor(at_once) as pool:
        def both(row):
            model, cap, fit, not_fit = row
            return [None if batch is None else real(bin_dir, out, model, cap, int(batch)) for batch in (fit, not_fit)]
        results = list(pool.map(both, rows))
    print("| model | cap | fits | status | too close to say | does not fit | status | verdict |\n|---|---|---|---|---|---|---|---|")
    wrong = 0
    for (model, cap, fit, not_fit), (first, second) in zip(rows, results):
        # cuDNN turns an out-of-memory into an error of its own: status 1.
        good = first in (0, None) and second in (1, 3, None)
        wrong += not good
        between = "" if fit is None or not_fit is None else int(not_fit) - int(fit) - 1
        print(f"| {model} | {cap // MIB} MiB | {fit} | {first} | {between} | {not_fit} | {second} | {'ok' if good else '**FAIL**'} |")
    print(f"{len(rows)} caps, {wrong} wrong, {time.time() - began:.0f} s")
    return wrong


def section(check):
    """`check`: the module check.py, which holds what all parts share."""
    runs = check.LOGS / "fits"
    run(check.BIN, runs, "unseen", 6)
    inside = tables(check.BIN, runs)
    allocated = [one for (kind, *_), of in inside.items() if kind == "allocated" for one in of]
    share = 100 * sum(allocated) / max(len(allocated), 1)
    print(f"\nallocated peaks inside of their intervals: {share:.1f} % " + ("ok" if share >= GOAL - 5 else check.fail("")))
    development = check.LOGS / "fits-development"
    run(check.BIN, development, "development", 6, ["default"])
    if under_caps(check.BIN, development, check.LOGS / "fits-caps"):
        check.fail("caps")


if __name__ == "__main__":
    what, places, more = sys.argv[1], [Path(word).resolve() for word in sys.argv[2:4]], sys.argv[4:]
    if what == "runs":
        run(*places, more[0], *map(int, more[1:]))
    elif what == "tables":
        tables(*places)
    elif what == "caps":
        under_caps(*places, Path(more[0]).resolve(), *map(int, more[1:2]), *more[2:3], *map(int, more[3:]))
    else:
        sys.exit(f"fits.py: {what}: must be runs, tables or caps")
