"""torch_run.py native|expandable|async|graphs|compile|gpt2|resnet: a short deterministic run."""
import os
import sys

mode = sys.argv[1]
if mode == "expandable":
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
if mode == "async":
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "backend:cudaMallocAsync"
import torch
from hold import hold, result

torch.manual_seed(0)
torch.use_deterministic_algorithms(False)


def mlp():
    model = torch.nn.Sequential(
        torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)
    ).cuda()
    return model, torch.optim.AdamW(model.parameters(), 1e-3), torch.randn(256, 1024, device="cuda")


def train(loss_of, optimiser, steps=5):
    for _ in range(steps):
        loss = loss_of()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    return loss.item()


if mode in ("native", "expandable", "async"):
    model, optimiser, x = mlp()
    loss = train(lambda: model(x).square().mean(), optimiser)
elif mode == "graphs":
    model, _, x = mlp()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            model(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        y = model(x)
    for _ in range(5):
        graph.replay()
    torch.cuda.synchronize()
    loss = y.square().mean().item()
elif mode == "compile":
    model, _, x = mlp()
    fast = torch.compile(model, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(5):
            y = fast(x)
    torch.cuda.synchronize()
    loss = y.square().mean().item()
elif mode == "gpt2":
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(use_cache=False)).cuda()
    optimiser = torch.optim.AdamW(model.parameters(), 1e-4, foreach=False)
    x = torch.randint(0, 50257, (4, 512), device="cuda")
    loss = train(lambda: model(input_ids=x, labels=x).loss, optimiser)
elif mode == "resnet":
    import torchvision

    model = torchvision.models.resnet50().cuda()
    optimiser = torch.optim.SGD(model.parameters(), 0.1, foreach=False)
    x, y = torch.randn(32, 3, 224, 224, device="cuda"), torch.randint(0, 1000, (32,), device="cuda")
    loss = train(lambda: torch.nn.functional.cross_entropy(model(x), y), optimiser, 3)
else:
    sys.exit(f"torch_run.py: unknown mode {mode}")

# Two digits: kernels may sum in another order from run to run.
result(mode=mode, loss=f"{loss:.2f}")
hold(reserved=torch.cuda.memory_reserved())
