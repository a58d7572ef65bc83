"""cache_run.py MODE [LIMIT]: requests of PyTorch's cache from streams, from graphs, or under a limit.

    turns    two streams take turns, each with requests of its own
    graph    two captures that share a pool, after warm-up on another stream, and requests without a capture
    uses     a stream uses blocks of another one (Tensor.record_stream) for longer than they live
    churn    random requests of one stream

LIMIT: MiB that PyTorch may reserve (torch.cuda.set_per_process_memory_fraction). Prints STATS (PyTorch's peaks and
counts, the card's bytes), and BLOCKS: address, stream, size, private pool and requested size of each live block, as JSON. Then it ends at once: the
blocks stay live. Prints OOM before that if memory runs out."""
import json
import os
import random
import sys

MIB = 1 << 20


def sizes(seed, count):
    """Sizes of requests in bytes, of all the classes that the cache tells apart."""
    draw = random.Random(seed)
    ranges = ((512, MIB), (MIB, 10 * MIB), (10 * MIB, 60 * MIB))
    for _ in range(count):
        low, high = draw.choices(ranges, (5, 4, 2))[0]
        yield draw.randrange(low, high), draw


def churn(make, room, seed=1, count=3000):
    """Random requests; the oldest are freed where more than `room` bytes would be live. Returns what is live."""
    live, total = [], 0
    for size, draw in sizes(seed, count):
        while live and (total + size > room or draw.random() < 0.2):
            gone = live.pop(draw.randrange(len(live)))
            total -= gone[0]
        live.append((size, make(size)))
        total += size
    return live


def take_turns(streams, make, room):
    """The same by two streams in turn, which free and request other sizes."""
    live = []
    for turn in range(6):
        stream = streams[turn % 2]
        live = live[-1:] + [churn(lambda size: make(stream, size), room, seed=turn, count=300)]
    return live


def main(mode, limit):
    import torch

    total = torch.cuda.mem_get_info()[1]
    if limit:
        torch.cuda.set_per_process_memory_fraction(limit * MIB / total)

    def make(size):
        return torch.empty(size, dtype=torch.uint8, device="cuda")

    def on(stream, size):
        with torch.cuda.stream(stream):
            return make(size)

    kept = []
    try:
        if mode == "turns":
            kept.append(take_turns([torch.cuda.default_stream(), torch.cuda.Stream()], on, 400 * MIB))
        elif mode == "graph":
            kept.append(churn(make, 300 * MIB, count=300))
            kept.clear()
            side, pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
            with torch.cuda.stream(side):
                x = torch.ones(8 * MIB, device="cuda")
                y = x * 2
            torch.cuda.synchronize()
            for turn in range(2):
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool):
                    out = [(x * (turn + 2)) + step for step in range(3)]
                    out = [sum(out[1:], out[0])]
                kept += [graph, out, y]
            graph.replay()
            torch.cuda.synchronize()
            kept.append(churn(make, 300 * MIB, seed=2, count=300))
        elif mode == "uses":
            other = torch.cuda.Stream()
            for size, _ in sizes(3, 60):
                block = make(size)
                with torch.cuda.stream(other):
                    torch.cuda._sleep(20_000_000)
                block.record_stream(other)
            torch.cuda.synchronize()
            kept.append(make(4 * MIB))
            with torch.cuda.stream(other):
                kept.append(make(4 * MIB))
        else:
            kept.append(churn(make, 900 * MIB))
    except torch.cuda.OutOfMemoryError:
        print("OOM")
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    facts = dict(
        peak_reserved=stats["reserved_bytes.all.peak"],
        peak_allocated=stats["allocated_bytes.all.peak"],
        retries=stats["num_alloc_retries"],
        total=total,
    )
    print("STATS", json.dumps(facts))
    # The driver's pool has no snapshot.
    native = torch.cuda.get_allocator_backend() == "native"
    blocks = [
        (
            block["address"], segment["stream"], block["size"], list(segment.get("segment_pool_id", (0, 0))),
            block["requested_size"],
        )
        for segment in (torch.cuda.memory_snapshot() if native else [])
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]
    print("BLOCKS", json.dumps(blocks), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0)
