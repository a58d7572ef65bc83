"""The measurements of bench.sh."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "systems"))
from recorded_processes import ROOT, RecordedProcesses, ready, tell

BIN = Path(os.environ.get("VRAMTRACE_BIN") or ROOT / "target" / "release")
node = RecordedProcesses(BIN)
work = node.work


def env(preload=True, **more):
    result = dict(node.environment, **more)
    if preload:
        result["LD_PRELOAD"] = str(BIN / "libvramtrace.so")
    return result


def compiled(name, source):
    program = work / name
    subprocess.run(["gcc", "-std=gnu11", "-O2", "-o", str(program), str(ROOT / source), "-ldl", "-lpthread"], check=True)
    return program


def lowest(program, ways, *arguments):
    """(words of a printed line without its last) -> way -> the lowest figure, of three runs."""
    best = {}
    for _ in range(3):  # alternate, so that other load affects all alike
        for way, environment in ways.items():
            run = subprocess.run([str(program), *arguments], env=environment, capture_output=True, text=True, check=True)
            for line in run.stdout.splitlines():
                *what, figure = line.split()
                row = best.setdefault(tuple(what), {})
                row[way] = min(float(figure), row.get(way, 1e18))
        for trace in work.glob("t.*.vtrace*"):
            trace.unlink()
    return best


def pairs():
    ways = {
        "bare": env(preload=False),
        "recorded": env(VRAMTRACE_OUT=str(work / "t.%p.vtrace")),
        "no trace": env(VRAMTRACE_OUT="off"),
        "recorded, cap": env(VRAMTRACE_OUT=str(work / "t.%p.vtrace"), VRAMTRACE_CAP="20GiB"),
    }
    best = lowest(compiled("pairs", "benches/pairs.c"), ways)
    print("| ns | threads | " + " | ".join(ways) + " | recorded - bare | recorded / bare |")
    print("|---|---|" + "---|" * (len(ways) + 2))
    for (what, threads), row in best.items():
        cells = " | ".join(f"{row[way]:.0f}" for way in ways)
        name = {"async": "cuMemAllocAsync + FreeAsync", "sync": "cuMemAlloc + Free"}.get(what, what)
        print(f"| {name} | {threads} | {cells} | {row['recorded'] - row['bare']:+.0f} | {row['recorded'] / row['bare']:.2f} |")


def limits():
    """The cost of counting: without a limit, under a cap, in a group of one and of eight processes."""
    program = compiled("limits", "benches/limits.c")
    group = f"bench-{os.getpid()}"
    # All processes share one simulated device, so that its cost is the same in each variant.
    quiet = {"VRAMTRACE_OUT": "off", "VRAMTRACE_SIM_STATE": str(work / "state")}
    eight = {"VRAMTRACE_CAP_GROUP": f"{group}-8:5600MiB", **quiet}
    ways = {
        "bare": env(preload=False, VRAMTRACE_SIM_STATE=quiet["VRAMTRACE_SIM_STATE"]),
        "no limit": env(**quiet),
        "a cap of 1 GiB": env(VRAMTRACE_CAP="1GiB", **quiet),
        "alone in a group": env(VRAMTRACE_CAP_GROUP=f"{group}-1:1GiB", **quiet),
        "one of 8 in a group": env(**eight),
    }
    for member in (others := [node.recorded("bench", rank, **eight) for rank in range(7)]):
        ready(member)
        tell(member, "a 100")
    best = lowest(program, ways)
    for member in others:
        member.kill()
        member.wait()
    print("\n| ns | " + " | ".join(ways) + " |")
    print("|---|" + "---|" * len(ways))
    for what, name in (("pair", "2 MiB freed and taken again"), ("refused", "a request that is refused")):
        print(f"| {name} | " + " | ".join(f"{best[what,][way]:.0f}" if way in best[what,] else "-" for way in ways) + " |")


def torch_libraries():
    for name, needs in (("libc10", []), ("libc10_cuda", ["-l:libc10.so"])):
        subprocess.run(
            ["gcc", "-std=gnu11", "-O2", "-shared", "-fPIC", "-Wl,-rpath,$ORIGIN", f"-Wl,-soname,{name}.so", "-L", str(work),
             "-o", str(work / f"{name}.so"), str(ROOT / f"tests/programs/{name}.c"), *needs, "-lpthread"], check=True
        )
    return work / "libc10_cuda.so"


def refusals():
    """The time of a refused request, in a row of 1,000 and alternating with a granted one; and the time of the post-mortem at PyTorch's hook, by the number of live blocks."""
    program, library = compiled("out_of_memory", "tests/programs/out_of_memory.c"), torch_libraries()
    out = {"VRAMTRACE_OUT": str(work / "t.%p.vtrace")}
    ways = {"bare": env(preload=False), "by the driver": env(**out), "by the cap": env(VRAMTRACE_CAP="1GiB", **out)}
    best, totals, probed = {}, {}, {}
    for _ in range(5):
        for way, environment in ways.items():
            run = subprocess.run([str(program), "-", "loop", "1000"], env=environment, capture_output=True, text=True, check=True)
            best[way] = min(float(run.stderr), best.get(way, 1e18))
            run = subprocess.run([str(program), "-", "probe", "20000"], env=environment, capture_output=True, text=True, check=True)
            probed[way] = min(float(run.stderr), probed.get(way, 1e18))
        for count in (0, 1_000, 100_000):
            run = subprocess.run([str(program), str(library), "many", str(count)], env=env(**out), capture_output=True, text=True, check=True)
            assert "out of memory" in run.stderr
            totals.setdefault(count, []).append(float(run.stdout.split("ns: ")[1]) / 1e6)
        for trace in work.glob("t.*.vtrace*"):
            trace.unlink()
    print("\n| ns, of 1,000 refused requests each | " + " | ".join(ways) + " |\n|---|" + "---|" * len(ways))
    print("| refused | " + " | ".join(f"{best[way]:.0f}" for way in ways) + " |")
    print("| refused, and then given and freed 512 bytes, with 100,000 allocations live; 20,000 times | " + " | ".join(f"{probed[way]:.0f}" for way in ways) + " |")
    print("\n| ms, a post-mortem | lowest of 5 | highest |\n|---|---|---|")
    for count, figures in totals.items():
        print(f"| {count:,} blocks are live, of {min(count, 4096):,} stacks | {min(figures):.1f} | {max(figures):.1f} |")


def churn_trace(count):
    """A trace of this many allocations of the simulated driver, each freed."""
    program = compiled("endings", "tests/programs/endings.c")
    trace = work / "million.vtrace"
    trace.unlink(missing_ok=True)
    subprocess.run(
        [str(program), "churn", str(count)], env=env(VRAMTRACE_OUT=str(trace), VRAMTRACE_MAX="unlimited"), check=True, capture_output=True
    )
    return trace


def parquet():
    """Blocks a second of CPU time on one core, and bytes a block: of a million events of the simulated driver, and of a recorded run of PyTorch."""
    recorded = work / "recorded.vtrace"
    subprocess.run([str(BIN / "vramtrace"), "import", str(ROOT / "tests/data/varlen_s1.csv.gz"), "-o", str(recorded), "--force"], check=True, capture_output=True)
    traces = {"simulated driver": churn_trace(500_000), "PyTorch, recorded": recorded}
    print("| trace | blocks | M blocks/s of CPU time, best of 5 | bytes a block |\n|---|---|---|---|")
    for name, trace in traces.items():
        out = work / "tables"
        best, blocks, size = 1e9, 0, 0
        for _ in range(5):
            shutil.rmtree(out, ignore_errors=True)
            before = os.times()
            ended = subprocess.run(
                ["taskset", "-c", "0", str(BIN / "vramtrace"), "export", "--format", "parquet", "-o", str(out), str(trace)],
                check=True,
                capture_output=True,
                text=True,
            )
            after = os.times()
            best = min(best, after.children_user - before.children_user + after.children_system - before.children_system)
            blocks = int(ended.stderr.strip().split("rows: ")[1].split(" ")[0])
            size = sum(file.stat().st_size for file in (out / "blocks").rglob("*.parquet"))
        print(f"| {name} | {blocks:,} | {blocks / best / 1e6:.2f} | {size / blocks:.1f} |")


parts = {"pairs": pairs, "limits": limits, "refusals": refusals, "parquet": parquet}
for part in sys.argv[1:]:
    if part not in parts:
        print(f"bench: unknown part '{part}': must be one of {', '.join(parts)}", file=sys.stderr)
        sys.exit(2)
for part in sys.argv[1:] or parts:
    parts[part]()
