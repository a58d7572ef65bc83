"""fits_runs.py BIN_DIR OUT_DIR SET [AT_ONCE]: runs programs/batches.py, each model at each of its batches in a
process of its own, AT_ONCE processes at a time (default 5).

SET is `development` or `unseen`, or names of models with commas. The first two batches are also recorded, as
OUT_DIR/MODEL_bBATCH.vtrace.gz; `peaks.jsonl` has PyTorch's peaks of the runs that were not recorded, under both
settings.
"""
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
SETTINGS = ("", "expandable_segments:True")


def recorded(bin_dir, out, model, batch):
    trace = out / f"{model}_b{str(batch).replace(',', '-')}.vtrace"
    command = [str(bin_dir / "vramtrace"), "run", "--out", str(trace), "--", sys.executable, str(PROGRAM), model, str(batch), str(out / "recorded.jsonl")]
    log = trace.with_suffix(".log")
    with open(log, "w") as text:
        status = subprocess.run(command, stdout=text, stderr=subprocess.STDOUT).returncode
    if trace.exists():
        subprocess.run([str(bin_dir / "vramtrace"), "pack", str(trace), "-o", f"{trace}.gz"], stdout=subprocess.DEVNULL, stderr=open(str(log) + ".pack", "w"))
        if Path(str(trace) + ".gz").exists():
            trace.unlink()
    return f"recorded {model} {batch}: status {status}"


def bare(out, model, batch, setting):
    env = dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=setting)
    ended = subprocess.run([sys.executable, str(PROGRAM), model, str(batch), str(out / "peaks.jsonl")], env=env, capture_output=True, text=True)
    if ended.returncode:
        (out / f"{model}_b{batch}.err").write_text(ended.stdout + ended.stderr)
    return f"{model} {batch} {setting}: status {ended.returncode}"


def main(bin_dir, out, names, at_once=5):
    import batches

    out.mkdir(parents=True, exist_ok=True)
    sets = {"development": batches.DEVELOPMENT, "unseen": batches.UNSEEN}
    models = sets.get(names) or {name: batches.MODELS[name] for name in names.split(",")}
    began = time.time()
    with ThreadPoolExecutor(at_once) as pool:
        tasks = []
        for model, (_, sizes) in models.items():
            tasks += [pool.submit(recorded, bin_dir, out, model, batch) for batch in sizes[:2]]
        for model, (_, sizes) in models.items():
            if model == "gpt2":
                tasks.append(pool.submit(recorded, bin_dir, out, model, "6,6,6,4"))
            for batch in sizes:
                tasks += [pool.submit(bare, out, model, batch, setting) for setting in SETTINGS]
        for task in tasks:
            if "status 0" not in task.result():
                print("**FAIL**", task.result(), flush=True)
    peaks = (out / "peaks.jsonl").read_text().splitlines()
    print(f"{len(peaks)} of {sum(len(SETTINGS) * len(sizes) for _, sizes in models.values())} runs, {time.time() - began:.0f} s")
    for line in peaks:
        peak = json.loads(line)
        print(peak["model"], peak["batch"], peak["setting"], peak["allocated"], peak["reserved"])


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else 5)
