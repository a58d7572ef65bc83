"""graph_growth.py WHAT: executable graphs of PyTorch, and the memory that the driver takes for them.

kept      60 requests, each of which captures 2,000 kernels, launches the graph and keeps it
threads   two threads, each with 30 such graphs of its own line
captures  67 graphs within a second, then 300 requests that launch them
cache     300 requests of 24 shapes: a graph for each, captured when the shape first comes
last      120 requests; the last 8 graphs are kept

Prints `RESULT MIB RESERVED`: what the card has less of since the first graph, and what PyTorch reserved, in MiB.
"""
import collections
import random
import sys
import threading
import time

import torch

what = sys.argv[1]
kept = []
lock = threading.Lock()


def capture(x, kernels, pool):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=torch.cuda.Stream(), capture_error_mode="thread_local"):
        for _ in range(kernels):
            x.add_(1)
    return graph


def run():
    x = torch.zeros(1024, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            x.add_(1)
    capture(x, 2, torch.cuda.graph_pool_handle())
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    pool = torch.cuda.graph_pool_handle()
    if what == "kept":
        for _ in range(60):
            graph = capture(x, 2000, pool)  # LINE
            graph.replay()
            kept.append(graph)
            torch.cuda.synchronize()
            time.sleep(0.05)
    elif what == "threads":
        def one(y, pool):
            for _ in range(30):
                graph = capture(y, 2000, pool)  # ONE
                graph.replay()
                with lock:
                    kept.append(graph)

        def two(y, pool):
            for _ in range(30):
                graph = capture(y, 2000, pool)  # TWO
                graph.replay()
                with lock:
                    kept.append(graph)

        both = [
            threading.Thread(target=work, args=(torch.zeros(1024, device="cuda"), torch.cuda.graph_pool_handle()))
            for work in (one, two)
        ]
        [thread.start() for thread in both]
        [thread.join() for thread in both]
    elif what == "captures":
        graphs = [capture(x, 100, pool) for _ in range(67)]  # LINE
        kept.extend(graphs)
        for _ in range(300):
            random.choice(graphs).replay()
            torch.cuda.synchronize()
            time.sleep(0.02)
    elif what == "cache":
        graphs = {}
        for _ in range(300):
            shape = random.randrange(24)
            if shape not in graphs:
                graphs[shape] = capture(x, 500, pool)  # LINE
            graphs[shape].replay()
            torch.cuda.synchronize()
            time.sleep(0.02)
        kept.extend(graphs.values())
    elif what == "last":
        last = collections.deque(maxlen=8)
        for _ in range(120):
            graph = capture(x, 500, pool)  # LINE
            graph.replay()
            torch.cuda.synchronize()
            last.append(graph)
            time.sleep(0.02)
        kept.extend(last)
    else:
        sys.exit(f"graph_growth.py: {what}: want kept, threads, captures, cache or last")
    torch.cuda.synchronize()
    # A last reading of NVML follows an allocation.
    time.sleep(0.3)
    for _ in range(20):
        torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        torch.cuda.empty_cache()
        time.sleep(0.02)
    taken = free - torch.cuda.mem_get_info()[0]
    print("RESULT", taken >> 20, torch.cuda.memory_reserved() >> 20, flush=True)


random.seed(1)
run()
