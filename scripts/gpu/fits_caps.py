"""fits_caps.py BIN_DIR TRACES OUT_DIR [AT_ONCE]: `vramtrace fits` under caps, and the two batches that it names really run.

TRACES has MODEL_bBATCH.vtrace[.gz] of the models of DEVELOPMENT, recorded at their first two batches. For each model
five caps are chosen between the peaks at its other batches. The largest batch that fits must end with status 0 under
the cap, the smallest that does not must be out of memory (status 3).
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


def main(bin_dir, traces, out, at_once=6):
    import batches

    out.mkdir(parents=True, exist_ok=True)
    began, rows = time.time(), []
    for model, (_, sizes) in batches.DEVELOPMENT.items():
        files = [next(str(file) for file in traces.glob(f"{model}_b{size}.vtrace*")) for size in sizes[:2]]
        others = sizes[2:] + (sizes[-1] + sizes[-1] - sizes[-2],)
        said = fits(bin_dir, files, "--batch", ",".join(map(str, others)))
        totals = sorted({one["value"]: one["peak_total"]["expected_bytes"] for one in said["predictions"]}.items())
        for (low, before), (high, after) in list(zip(totals, totals[1:] + [(None, None)]))[:5]:
            cap = int(before * 1.03 if after is None else before + 0.6 * (after - before)) // MIB * MIB
            setting = fits(bin_dir, files, "--card", f"{cap // MIB}MiB")["settings"][0]
            rows.append((model, cap, setting["fits"], setting["does_not_fit"]))
    with ThreadPoolExecutor(at_once) as pool:
        def run(row):
            model, cap, fit, not_fit = row
            return [None if batch is None else real(bin_dir, out, model, cap, int(batch)) for batch in (fit, not_fit)]
        results = list(pool.map(run, rows))
    print("| model | cap | fits | status | does not fit | status | verdict |\n|---|---|---|---|---|---|---|")
    wrong = 0
    for (model, cap, fit, not_fit), (first, second) in zip(rows, results):
        # cuDNN turns an out-of-memory into an error of its own: status 1.
        good = first in (0, None) and second in (1, 3, None)
        wrong += not good
        print(f"| {model} | {cap // MIB} MiB | {fit} | {first} | {not_fit} | {second} | {'ok' if good else '**FAIL**'} |")
    print(f"{len(rows)} caps, {wrong} wrong, {time.time() - began:.0f} s")
    return wrong


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), Path(sys.argv[3]).resolve(), int(sys.argv[4]) if len(sys.argv) > 4 else 6)
