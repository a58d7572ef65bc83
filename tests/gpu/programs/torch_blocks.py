"""torch_blocks.py native|expandable|profile: uses PyTorch's caching allocator in many ways.

native, expandable: prints MARK lines (ns of CLOCK_MONOTONIC, PyTorch's allocated and reserved bytes, while the
GPU is idle) and STATS (blocks allocated and freed, out-of-memory errors). profile: prints torch.profiler's memory
figures.
"""
import os
import sys
import time

mode = sys.argv[1]
if mode == "expandable":
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
import torch
from hold import result

torch.manual_seed(0)


class Net(torch.nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 32, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(32)
        self.up = torch.nn.Linear(32, width)
        self.down = torch.nn.Linear(width, 10)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        return self.down(torch.nn.functional.gelu(self.up(x)))


def step(net, optimiser, batch, side):
    x = torch.randn(batch, 3, side, side, device="cuda")
    loss = net(x).logsumexp(1).mean()
    loss.backward()
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)


def mark():
    torch.cuda.synchronize()
    # PyTorch reports a free that waits for another stream when memory_allocated() or a request asks for it.
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    # The trace has a resolution of 64 ns: no event must be near the mark.
    time.sleep(0.002)
    print(f"MARK {time.monotonic_ns()} {allocated} {reserved}", flush=True)
    time.sleep(0.002)


net = Net().cuda()
optimiser = torch.optim.AdamW(net.parameters(), 1e-3, foreach=False)
if mode == "profile":
    from torch.profiler import ProfilerActivity, profile

    step(net, optimiser, 8, 64)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for batch in (4, 8, 2):
            step(net, optimiser, batch, 64)
    # The profiler assigns bytes to operators; frees outside operators have separate events.
    amount = lambda of: getattr(of, "self_device_memory_usage", None) or getattr(of, "self_cuda_memory_usage", 0)
    on_device = [amount(operator) for operator in profiler.key_averages() if amount(operator)]
    taken, freed = (sum(size for size in on_device if size * sign > 0) for sign in (1, -1))
    result(events=len(on_device), taken=taken, freed=-freed)
    sys.exit()

mark()
sizes = [(4, 96), (16, 32), (2, 224), (8, 128), (32, 64), (1, 300)]
for batch, side in sizes * 5:
    step(net, optimiser, batch, side)
    mark()
# Tensors used on another stream: freed here, reusable only later.
stream = torch.cuda.Stream()
kept = []
for n in range(200):
    x = torch.empty((n * 7919) % 5000000 + 1, device="cuda")
    with torch.cuda.stream(stream):
        x.mul_(1)
    x.record_stream(stream)
    if n % 10 == 0:
        kept.append(x)
    del x
mark()
# A private pool.
graph = torch.cuda.CUDAGraph()
with torch.no_grad():
    x = torch.randn(8, 3, 64, 64, device="cuda")
    side_stream = torch.cuda.Stream()
    with torch.cuda.stream(side_stream):
        net(x)
    torch.cuda.current_stream().wait_stream(side_stream)
    with torch.cuda.graph(graph):
        y = net(x)
    graph.replay()
mark()
del kept
torch.cuda.empty_cache()
mark()
try:
    torch.empty(1 << 44, dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError:
    pass
mark()
stats = torch.cuda.memory_stats()
print(f"STATS {stats['allocation.all.allocated']} {stats['allocation.all.freed']} {stats['num_ooms']}", flush=True)
result(mode=mode, marks=len(sizes) * 5 + 5)
