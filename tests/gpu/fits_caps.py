"""fits_caps.py BIN_DIR TRACES OUT_DIR [AT_ONCE [SET [CAPS]]]: `vramtrace fits` under caps, and the two batches that it names
really run.

TRACES has MODEL_bBATCH.vtrace[.gz] of the models of SET (as for fits_runs.py; default `development`), recorded at their
first two batches. For each model CAPS caps (default 5, at most 5) are chosen between the peaks at its other batches. The
largest batch that fits must end with status 0 under the cap, the smallest that does not must be out of memory (status 3).
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
MIB = 1 << 20


def fits(bin_dir, traces, *words):
    answer = subprocess.run([str(bin_dir / "vramtrace"), "fits", *traces, "--conf", "default", "--json", *words], capture_output=True, text=True)
    if not answer.stdout:
        raise RuntimeError(answer.stderr.strip()[:300])
    return json.loads(answer.stdout)


def real(bin_dir, out, model, cap, batch):
    """The exit status of one run under the cap."""
    env = dict(os.environ, LD_PRELOAD=str(bin_dir / "libvramtrace.so"), VRAMTRACE_OUT="off", VRAMTRACE_CAP=f"{cap // MIB}MiB")
    ended = subprocess.run([sys.executable, str(HERE / "batches.py"), model, str(batch)], env=env, capture_output=True, text=True)
    (out / f"cap-{model}-{cap // MIB}-{batch}.log").write_text(ended.stdout + ended.stderr)
    return ended.returncode


def chosen(totals, caps):
    """Pairs of neighbours among the predicted totals, the last one without a second: `caps` of the first five, evenly."""
    pairs = list(zip(totals, totals[1:] + [(None, None)]))[:5]
    caps = min(caps, len(pairs))
    return [pairs[(2 * at + 1) * len(pairs) // (2 * caps)] for at in range(caps)]


def main(bin_dir, traces, out, at_once=6, names="development", caps=5):
    import batches

    out.mkdir(parents=True, exist_ok=True)
    began, rows = time.time(), []
    models = batches.SETS.get(names) or {name: batches.MODELS[name] for name in names.split(",")}
    for model, (_, sizes) in models.items():
        files = [next(str(file) for file in traces.glob(f"{model}_b{size}.vtrace*")) for size in sizes[:2]]
        others = sizes[2:] + (sizes[-1] + sizes[-1] - sizes[-2],)
        said = fits(bin_dir, files, "--batch", ",".join(map(str, others)))
        totals = sorted({one["value"]: one["peak_total"]["expected_bytes"] for one in said["predictions"]}.items())
        for (low, before), (high, after) in chosen(totals, caps):
            cap = int(before * 1.03 if after is None else before + 0.6 * (after - before)) // MIB * MIB
            setting = fits(bin_dir, files, "--card", f"{cap // MIB}MiB")["settings"][0]
            rows.append((model, cap, setting["fits"], setting["does_not_fit"]))
    with ThreadPoolExecutor(at_once) as pool:
        def run(row):
            model, cap, fit, not_fit = row
            return [None if batch is None else real(bin_dir, out, model, cap, int(batch)) for batch in (fit, not_fit)]
        results = list(pool.map(run, rows))
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


if __name__ == "__main__":
    binary, traces, out = (Path(word).resolve() for word in sys.argv[1:4])
    at_once, names, caps = (sys.argv[4:] + ["6", "development", "5"][len(sys.argv) - 4 :])[:3]
    main(binary, traces, out, int(at_once), names, int(caps))
