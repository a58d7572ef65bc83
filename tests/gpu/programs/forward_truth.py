"""Trains for two steps; with OUT.json it counts the bytes that each node of the backward pass allocates.

    forward_truth.py PROGRAM [OUT.json]

With OUT.json anomaly mode keeps the traceback of each node's forward operation, and two hooks on each node read
PyTorch's count of allocated bytes before and after it. A node that backward made has no traceback: it gets that of
its parent. OUT.json: a list of [class of the node, bytes, frames of the traceback as FILE:LINE, innermost first; a
frame of PyTorch's own code begins with `torch `].
"""
import json
import os
import sys

import torch

STEPS = 2
DEVICE = "cuda"
TORCH = os.path.dirname(torch.__file__) + os.sep
counted = []
# Nodes with hooks: a node may run in two passes.
hooked = set()


def allocated():
    return torch.cuda.memory_stats()["allocated_bytes.all.allocated"]


def frames_of(node):
    """The frames of a node's forward operation, innermost first."""
    while node is not None:
        frames = []
        for entry in reversed(node.metadata.get("traceback_") or []):
            head = entry.split("\n", 1)[0].strip()
            if not head.startswith('File "'):
                continue
            path, rest = head[len('File "'):].split('", line ', 1)
            line = int(rest.split(",", 1)[0])
            # A hook of this script runs a node; it is no forward operation.
            own = "torch " if path.startswith(TORCH) else ""
            frames.append(f"{own}{os.path.basename(path)}:{line}")
        if frames:
            return frames
        node = node.metadata.get("parent_")
    return []


def count(root):
    """Adds hooks to all nodes that backward from here runs."""
    seen, todo = set(), [root]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        todo.extend(following for following, _ in node.next_functions)
    for node in seen - hooked:
        hooked.add(node)
        if type(node).__name__ == "AccumulateGrad":
            continue
        name, frames, began = node.name(), frames_of(node), []
        node.register_prehook(lambda *_, began=began: began.append(allocated()))
        node.register_hook(
            lambda *_, began=began, name=name, frames=frames: counted.append([name, allocated() - began.pop(), frames])
        )


def train(model, loss_of, counts):
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 1e-3)
    for _ in range(STEPS):
        loss = loss_of(counts)
        if counts:
            count(loss.grad_fn)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()


def gpt2(partial=False):
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=6, attn_implementation="eager")).to(DEVICE)
    if partial:
        for parameter in model.transformer.h[:4].parameters():
            parameter.requires_grad_(False)
        model.transformer.wte.weight.requires_grad_(False)
        model.transformer.wpe.weight.requires_grad_(False)
    tokens = torch.randint(0, 50257, (4, 256), device=DEVICE)
    return model, lambda counts: model(input_ids=tokens, labels=tokens).loss


def resnet50():
    import torchvision

    model = torchvision.models.resnet50().to(DEVICE)
    images = torch.rand(16, 3, 224, 224, device=DEVICE)
    labels = torch.randint(0, 1000, (16,), device=DEVICE)
    return model, lambda counts: torch.nn.functional.cross_entropy(model(images), labels)


class Plain(torch.nn.Module):
    """Operations in place, views, a tensor that is used twice."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(512, 1024)
        self.second = torch.nn.Linear(1024, 512)
        self.norm = torch.nn.LayerNorm(512)

    def forward(self, x):
        y = self.first(x)
        y = torch.nn.functional.gelu(y)
        y = y + 1
        y.mul_(2)
        y = self.second(y)
        y = self.norm(y + x)
        halves = y.view(2, -1, 512)
        z = torch.softmax(halves[0], -1) * torch.sigmoid(halves[1])
        return z.exp().sum()


def plain():
    model = Plain().to(DEVICE)
    x = torch.rand(2048, 512, device=DEVICE, requires_grad=True)
    return model, lambda counts: model(x)


def double_backward():
    """A penalty on the gradient: the second pass runs nodes that the first one made."""
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.Tanh(), torch.nn.Linear(1024, 1)).to(DEVICE)
    x = torch.rand(2048, 512, device=DEVICE, requires_grad=True)

    def loss(counts):
        y = model(x).square().sum()
        if counts:
            count(y.grad_fn)
        (gradient,) = torch.autograd.grad(y, x, create_graph=True)
        return gradient.square().sum()

    return model, loss


PROGRAMS = {
    "gpt2": gpt2,
    "resnet50": resnet50,
    "partial": lambda: gpt2(partial=True),
    "plain": plain,
    "double_backward": double_backward,
}


def main():
    name, out = sys.argv[1], (sys.argv[2] if len(sys.argv) > 2 else None)
    torch.manual_seed(0)
    # The same algorithms, and so the same temporary memory, in both runs.
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    model, loss_of = PROGRAMS[name]()
    with torch.autograd.set_detect_anomaly(out is not None, check_nan=False):
        train(model, loss_of, out is not None)
    if out:
        with open(out, "w") as file:
            json.dump(counted, file)


main()
