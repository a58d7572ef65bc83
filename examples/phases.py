"""Phases on the timeline, marked by NVTX ranges with PyTorch's functions. vramtrace is not imported.

    vramtrace run --out phases.vtrace -- python phases.py
    vramtrace report --by phase phases.vtrace
"""
import torch

model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(20):
    with torch.cuda.nvtx.range("forward"):
        loss = model(torch.randn(512, 1024, device="cuda")).square().mean()
    with torch.cuda.nvtx.range("backward"):
        loss.backward()
    with torch.cuda.nvtx.range("optimizer"):
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
