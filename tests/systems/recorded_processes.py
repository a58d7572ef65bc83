"""Recorded processes on the simulated driver that obey their stdin, in directories of their own, for scripts that
measure or check what reads live processes. All end with the script."""
import atexit
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class RecordedProcesses:
    def __init__(self, bin_dir, **variables):
        """`variables`: more for the environment of all processes."""
        self.bin = bin_dir = Path(bin_dir).resolve()
        self.started = []
        self.work = Path(tempfile.mkdtemp(prefix="vramtrace-processes-"))
        self.pages = Path(tempfile.mkdtemp(prefix="vramtrace-pages-", dir="/dev/shm"))
        for directory in (self.work, self.pages):
            atexit.register(shutil.rmtree, directory, ignore_errors=True)
        # Functions run in the reverse order: first the processes end.
        atexit.register(lambda: [process.kill() for process in self.started])
        sim = self.work / "sim"
        sim.mkdir()
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            (sim / name).symlink_to(bin_dir / "libvramtrace_sim.so")
        self.program = self.work / "interactive"
        source = ROOT / "tests/programs/interactive.c"
        subprocess.run(["gcc", "-std=gnu11", "-O1", "-o", self.program, source, "-ldl", "-lpthread"], check=True)
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("VRAMTRACE_")}
        self.environment.update(
            LD_LIBRARY_PATH=str(sim), VRAMTRACE_SIM="1x24GiB", XDG_RUNTIME_DIR=str(self.pages), **variables
        )

    def start(self, *words, **options):
        """A command that is not recorded."""
        options.setdefault("env", self.environment)
        process = subprocess.Popen([str(word) for word in words], **options)
        self.started.append(process)
        return process

    def recorded(self, job, rank, **variables):
        """A recorded process; it says `ready` first (see `ready`)."""
        preload = str(self.bin / "libvramtrace.so")
        environment = dict(self.environment, LD_PRELOAD=preload, SLURM_JOB_ID=job, RANK=str(rank), **variables)
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return self.start(self.program, env=environment, cwd=self.work, **pipes)


def ready(process):
    assert process.stdout.readline() == "ready\n"


def tell(process, *orders):
    for order in orders:
        process.stdin.write(order + "\n")
        process.stdin.flush()
        process.stdout.readline()
