"""The measurement of metrics-bench.sh."""
import atexit
import http.client
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(os.environ.get("VRAMTRACE_BIN") or ROOT / "target" / "release")
COUNT, RUNS = int(sys.argv[1]), int(sys.argv[2])
SCRAPES = 100
MOST_MS, MOST_MIB = 50, 64
work = Path(tempfile.mkdtemp(prefix="vramtrace-bench-"))
atexit.register(shutil.rmtree, work, ignore_errors=True)
pages = Path(tempfile.mkdtemp(prefix="vramtrace-pages-", dir="/dev/shm"))
atexit.register(shutil.rmtree, pages, ignore_errors=True)
started = []
atexit.register(lambda: [process.kill() for process in started])
sim = work / "sim"
sim.mkdir()
for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
    (sim / name).symlink_to(BIN / "libvramtrace_sim.so")
program = work / "interactive"
subprocess.run(
    ["gcc", "-std=gnu11", "-O1", "-o", program, ROOT / "tests/programs/interactive.c", "-ldl", "-lpthread"], check=True
)
clean = {name: value for name, value in os.environ.items() if not name.startswith("VRAMTRACE_")}
clean.update(LD_LIBRARY_PATH=str(sim), VRAMTRACE_SIM="1x24GiB", XDG_RUNTIME_DIR=str(pages))


def recorded(rank):
    environment = dict(
        clean, LD_PRELOAD=str(BIN / "libvramtrace.so"), RANK=str(rank), SLURM_JOB_ID="4711", VRAMTRACE_CAP="20GiB"
    )
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    process = subprocess.Popen([program], env=environment, cwd=work, **pipes)
    started.append(process)
    return process


def tell(process, order):
    process.stdin.write(order + "\n")
    process.stdin.flush()
    return process.stdout.readline()


processes = [recorded(rank) for rank in range(COUNT)]
for process in processes:
    assert process.stdout.readline() == "ready\n"
    # A hundred blocks that stay, and four thousand events.
    for _ in range(100):
        tell(process, "a 2")
    tell(process, "c 2000")


def status(pid, name):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


def cpu_s(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def scrape(port):
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    text = connection.getresponse().read().decode()
    return (time.perf_counter() - began) * 1000, text


within = True
print(f"| run | processes | series | bytes | scrape, median ms | 99 % | slowest | memory, MiB | of it anonymous | CPU of the passes, s |")
print("|---|---|---|---|---|---|---|---|---|---|")
for run in range(1, RUNS + 1):
    exporter = subprocess.Popen(
        [BIN / "vramtrace", "metrics", "--listen", "127.0.0.1:0"], env=clean, stderr=subprocess.PIPE, text=True
    )
    started.append(exporter)
    port = int(exporter.stderr.readline().strip().removesuffix("/metrics").rsplit(":", 1)[1])
    # Until each trace was read once.
    began = time.time()
    while scrape(port)[1].count("\nvramtrace_trace_age_seconds{") < min(COUNT, 40) and time.time() - began < 120:
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
    within = within and living == COUNT and len(series) <= 2000 and median < MOST_MS and most < MOST_MIB
    exporter.kill()
    exporter.wait()
print("within the bounds" if within else f"above the bounds: {MOST_MS} ms, {MOST_MIB} MiB")
sys.exit(0 if within else 1)
