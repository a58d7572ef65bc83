"""fits_runs.py BIN_DIR OUT_DIR SET [AT_ONCE]: runs programs/batches.py, each model at each of its batches in a
process of its own, AT_ONCE processes at a time (default 5).

SET is `development`, `unseen` or `fresh`, or names of models with commas. The first two batches are also recorded, as
OUT_DIR/MODEL_bBATCH.vtrace.gz; `peaks.jsonl` has PyTorch's peaks of the runs that were not recorded, under the
settings of FITS_SETTINGS (words; default: `default expandable_segments:True`; empty: recorded runs alone).

Each run may take 1/AT_ONCE of the card. FITS_SECONDS bounds the whole: no run is started later. The batches of all
models are run in turn, so that what has run by then has as many of each.
"""
import itertools
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent / "programs"
sys.path.insert(0, str(HERE))
PROGRAM = HERE / "batches.py"
SETTINGS = os.environ.get("FITS_SETTINGS", "default expandable_segments:True").split()


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


def main(bin_dir, out, names, at_once=5):
    import batches

    out.mkdir(parents=True, exist_ok=True)
    models = batches.SETS.get(names) or {name: batches.MODELS[name] for name in names.split(",")}
    began = time.time()
    os.environ["BATCHES_FRACTION"] = f"{0.96 / at_once:.3f}"
    if "FITS_SECONDS" in os.environ:
        os.environ["BATCHES_DEADLINE"] = str(began + float(os.environ["FITS_SECONDS"]))
    with ThreadPoolExecutor(at_once) as pool:
        both = [(model, batch) for model, (_, sizes) in models.items() for batch in sizes[:2]]
        list(pool.map(lambda run: recorded(bin_dir, out, *run), both))
    print(f"{len(both)} recorded runs, {time.time() - began:.0f} s", flush=True)
    if not SETTINGS:
        return
    for setting in SETTINGS:
        bare(out, models, setting, at_once)
    peaks = [json.loads(line) for line in (out / "peaks.jsonl").read_text().splitlines()]
    wanted = sum(len(SETTINGS) * len(sizes) for _, sizes in models.values())
    print(f"{len(peaks)} of {wanted} runs, {time.time() - began:.0f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else 5)
