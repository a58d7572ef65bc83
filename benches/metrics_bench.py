"""metrics_bench.py [PROCESSES [RUNS]]: a scrape of `vramtrace metrics` and its own memory, beside simulated processes that are
recorded (default 200, 3 runs). Prints a Markdown table, a row for each run. Needs the release build and 10 MB of memory for each process."""
import http.client
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "systems"))
from recorded_processes import ROOT, RecordedProcesses, ready, tell

BIN = Path(os.environ.get("VRAMTRACE_BIN") or ROOT / "target" / "release")
COUNT, RUNS = map(int, [*sys.argv[1:], *(200, 3)[len(sys.argv) - 1 :]])
SCRAPES = 100
node = RecordedProcesses(BIN)

processes = [node.recorded("4711", rank, VRAMTRACE_CAP="20GiB") for rank in range(COUNT)]
for process in processes:
    ready(process)
    # A hundred blocks that stay, and four thousand events.
    tell(process, *["a 2"] * 100, "c 2000")


def status(pid, name):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


def scrape(port):
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    return (time.perf_counter() - began) * 1000, text


print("| run | processes | series | bytes | scrape, median ms | 99 % | slowest | memory, MiB | of it anonymous | CPU of the passes, s |")
print("|---|---|---|---|---|---|---|---|---|---|")
for run in range(1, RUNS + 1):
    listen = ("--listen", "127.0.0.1:0")
    exporter = node.start(BIN / "vramtrace", "metrics", *listen, stderr=subprocess.PIPE, text=True)
    port = int(exporter.stderr.readline().strip().removesuffix("/metrics").rsplit(":", 1)[1])
    # Until each trace was read once.
    began = time.time()
    while scrape(port)[1].count("\nvramtrace_trace_age_seconds{") < COUNT and time.time() - began < 120:
        time.sleep(1)
    time.sleep(10)
    taken = []
    for _ in range(SCRAPES):
        ms, text = scrape(port)
        taken.append(ms)
        time.sleep(0.02)
    taken.sort()
    series = [line for line in text.splitlines() if not line.startswith("#")]
    living = sum(float(line.rsplit(" ", 1)[1]) for line in series if line.startswith("vramtrace_processes{"))
    passes = next(float(line.rsplit(" ", 1)[1]) for line in series if line.startswith("vramtrace_pass_cpu_seconds_total"))
    median, most = taken[len(taken) // 2], status(exporter.pid, "VmHWM") / 1024
    anonymous = status(exporter.pid, "RssAnon") / 1024
    print(
        f"| {run} | {living:.0f} | {len(series)} | {len(text)} | {median:.1f} | {taken[int(len(taken) * 0.99) - 1]:.1f} "
        f"| {taken[-1]:.1f} | {most:.1f} | {anonymous:.1f} | {passes:.2f} |",
        flush=True,
    )
    exporter.kill()
    exporter.wait()
