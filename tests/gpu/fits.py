"""The part `fits` of the GPU check: peaks predicted by `vramtrace fits` from two recorded batches, and measured at
others; the same by the line through two peaks; caps, at which the batches that it names are run.

    fits.py BIN_DIR RUNS     the tables again, from the files of an earlier check (VRAMTRACE_LOGS/fits)
"""
import collections
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

# Of these cuDNN chooses the algorithm anew at each batch.
CONVOLUTIONAL = {"mobilenet", "densenet", "efficientnet", "convnext-channels-last", "vgg", "unet", "resnet50", "resnext", "regnet", "shufflenet", "resnet18-autocast"}
GOAL = 95.0
# Of runs in rows of 60 a correct interval of 95 % holds at least 55 in 92 of 100 tries.
ROW_GOAL = 100 * 55 / 60


def peaks_of(runs):
    """Of each model and setting: PyTorch's peaks by batch."""
    found = collections.defaultdict(dict)
    for line in (runs / "peaks.jsonl").read_text().splitlines():
        peak = json.loads(line)
        found[peak["model"], peak["setting"]][int(peak["batch"])] = peak
    return found


def predicted(bin_dir, runs, model, recorded, setting, batches):
    traces = [str(runs / f"{model}_b{batch}.vtrace.gz") for batch in recorded]
    words = ["--conf", setting or "default", "--batch", ",".join(map(str, batches)), "--json"]
    answer = subprocess.run([str(bin_dir / "vramtrace"), "fits", *traces, *words], capture_output=True, text=True)
    if not answer.stdout:
        raise RuntimeError(f"{model}: {answer.stderr.strip()[:200]}")
    return {one["value"]: one for one in json.loads(answer.stdout)["predictions"]}


def tables(bin_dir, runs):
    """Prints both tables; returns for each of their rows whether the peaks are inside of their intervals."""
    peaks, inside, widths, errors, outside = peaks_of(runs), collections.defaultdict(list), collections.defaultdict(list), collections.defaultdict(list), []
    for (model, setting), by_batch in sorted(peaks.items()):
        recorded = sorted(int(file.name.split("_b")[-1].split(".")[0]) for file in runs.glob(f"{model}_b*.vtrace.gz"))
        if len(recorded) < 2:
            print(f"{model}: not counted, {len(recorded)} recorded runs")
            continue
        others = [batch for batch in sorted(by_batch) if batch not in recorded]
        said = predicted(bin_dir, runs, model, recorded, setting, others) if others else {}
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
                first, second = (peaks[model, setting].get(one, {}).get(kind) for one in recorded)
                if first and second:
                    line = first + (second - first) / (recorded[1] - recorded[0]) * (batch - recorded[0])
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


def section_fresh(check):
    """The models of FRESH, on which no constant was set: each row of the table must hold, reserved peaks too."""
    import fits_runs

    os.environ.setdefault("FITS_SECONDS", "420")
    runs = check.LOGS / "fits-fresh"
    fits_runs.main(check.BIN, runs, "fresh", 4)
    for row, of in sorted(tables(check.BIN, runs).items()):
        share = 100 * sum(of) / len(of)
        print(f"{' '.join(row)}: {sum(of)} of {len(of)} inside, {share:.1f} % " + ("ok" if share >= ROW_GOAL else check.fail("")))


def section(check):
    """`check`: the module check.py, which holds what all parts share."""
    import fits_caps
    import fits_runs

    runs = check.LOGS / "fits"
    fits_runs.main(check.BIN, runs, "unseen", 6)
    inside = tables(check.BIN, runs)
    allocated = [one for (kind, *_), of in inside.items() if kind == "allocated" for one in of]
    share = 100 * sum(allocated) / max(len(allocated), 1)
    print(f"\nallocated peaks inside of their intervals: {share:.1f} % " + ("ok" if share >= GOAL - 5 else check.fail("")))
    recorded = check.LOGS / "fits-development"
    os.environ["FITS_SETTINGS"] = "default"
    fits_runs.main(check.BIN, recorded, "development", 6)
    if fits_caps.main(check.BIN, recorded, check.LOGS / "fits-caps"):
        check.fail("caps")


if __name__ == "__main__":
    tables(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
