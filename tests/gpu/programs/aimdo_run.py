"""aimdo_run.py MODE: a small training and two images, under the allocator of PYTORCH_CUDA_ALLOC_CONF.

    plain    three steps of training
    hooks    the same with comfy-aimdo's hooks on the driver's functions
    pages    a model whose weights are in comfy-aimdo's pages, of which some are evicted and brought back

Prints RESULT lines: losses, sums, and comfy-aimdo's own counters; then HOLD with what PyTorch reserved at
most, and waits for a line."""
import sys

MIB = 1 << 20


def hook(torch):
    """comfy-aimdo on device 0. Its functions are replaced when a device is initialised."""
    from comfy_aimdo import control

    torch.cuda.init()
    if not control.init("cuda") or not control.init_device(0):
        raise SystemExit("comfy-aimdo cannot be initialised")
    return control


def train(torch):
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (torch.nn.Linear(1024, 1024), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(4):
        batch = torch.randn(512, 1024, device="cuda")
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return model, optimizer, losses


def pages(torch):
    """RESULT values: bytes that aimdo says were brought and evicted, and the sum of the weights."""
    control = hook(torch)
    from comfy_aimdo.model_vbar import ModelVBAR
    from comfy_aimdo.torch import aimdo_to_tensor

    vbar = ModelVBAR(320 * MIB, 0)
    weights = [vbar.alloc(64 * MIB) for _ in range(5)]
    evicted, total = 0, 0.0
    for image in range(2):
        vbar.prioritize()
        for n, weight in enumerate(weights):
            if vbar.fault(weight[1], weight[2]) is None:
                raise SystemExit("a page was refused")
            tensor = aimdo_to_tensor(weight, torch.device("cuda:0"))
            tensor.fill_(n + image)
            total += tensor[:1024].float().sum().item()
            vbar.unpin(weight[1], weight[2])
        loaded = vbar.loaded_size()
        torch.cuda.synchronize()
        evicted += vbar.free_memory(128 * MIB)
    print(f"RESULT loaded={loaded} evicted={evicted} left={vbar.loaded_size()} sum={total}", flush=True)
    return control, vbar


def main(mode):
    import torch

    torch.empty(1, device="cuda")
    kept = None
    if mode == "hooks":
        kept = hook(torch)
    if mode in ("plain", "hooks"):
        model, optimizer, losses = train(torch)
        print("RESULT", losses, flush=True)
    elif mode == "pages":
        kept = pages(torch)
    torch.cuda.synchronize()
    print(f"HOLD reserved={torch.cuda.max_memory_reserved()}", flush=True)
    sys.stdin.readline()


main(sys.argv[1])
