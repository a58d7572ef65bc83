"""graph_growth.py WHAT: executable graphs of PyTorch, and the memory that the driver takes for them.

kept      50 requests, each of which captures 2,000 kernels, launches the graph and keeps it
threads   two threads, each with 30 such graphs of its own line
captures  67 graphs within a second, then 150 requests that launch them
cache     150 requests of 24 shapes: a graph for each, captured when the shape first comes
last      80 requests; the last 8 graphs are kept

`threads` also prints `CAPTURES TOGETHER ALONE`: how many captures ended while the other thread captured too, and how many not.
`kept` prints `SPAN SECONDS`: from the first instantiation to the last.
Prints `RESULT MIB RESERVED`: what the card has less of since the first graph, and what PyTorch reserved, in MiB.
"""
import collections
import concurrent.futures
import random
import sys
import threading
import time

import torch

what = sys.argv[1]
kept = []
lock = threading.Lock()
# Graphs under capture now; for each capture, how many there were at its end.
capturing, under_way = set(), []


def capture(x, kernels, pool):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=torch.cuda.Stream(), capture_error_mode="thread_local"):
        for _ in range(kernels):
            x.add_(1)
    return graph


def capture_beside(x, kernels, pool):
    """As `capture`, while another thread captures: torch.cuda.graph() synchronizes the device, which is refused then."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        with lock:
            capturing.add(id(graph))
            # PyTorch keeps the graphs of its random generator in a set without a lock.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        for _ in range(kernels):
            x.add_(1)
        with lock:
            under_way.append(len(capturing))
            capturing.remove(id(graph))
        graph.capture_end()
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
        times = []
        for _ in range(50):
            graph = capture(x, 2000, pool)  # LINE
            times.append(time.monotonic())
            graph.replay()
            kept.append(graph)
            torch.cuda.synchronize()
            time.sleep(0.05)
        print("SPAN", times[-1] - times[0])
    elif what == "threads":
        def one(y, pool):
            for _ in range(30):
                graph = capture_beside(y, 2000, pool)  # ONE
                graph.replay()
                with lock:
                    kept.append(graph)

        def two(y, pool):
            for _ in range(30):
                graph = capture_beside(y, 2000, pool)  # TWO
                graph.replay()
                with lock:
                    kept.append(graph)

        works = [(work, torch.zeros(1024, device="cuda"), torch.cuda.graph_pool_handle()) for work in (one, two)]
        torch.cuda.synchronize()
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            each = [threads.submit(*work) for work in works]
            # An exception in a thread ends the program.
            [thread.result() for thread in each]
        together, alone = (sum(n > 1 for n in under_way), sum(n == 1 for n in under_way))
        print("CAPTURES", together, alone)
    elif what == "captures":
        graphs = [capture(x, 100, pool) for _ in range(67)]  # LINE
        kept.extend(graphs)
        for _ in range(150):
            random.choice(graphs).replay()
            torch.cuda.synchronize()
            time.sleep(0.02)
    elif what == "cache":
        graphs = {}
        for _ in range(150):
            shape = random.randrange(24)
            if shape not in graphs:
                graphs[shape] = capture(x, 500, pool)  # LINE
            graphs[shape].replay()
            torch.cuda.synchronize()
            time.sleep(0.02)
        kept.extend(graphs.values())
    elif what == "last":
        last = collections.deque(maxlen=8)
        for _ in range(80):
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
