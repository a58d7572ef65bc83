"""Programs whose iterations are known: each returns their number, 0 where it has none.

    programs.py NAME
"""
import sys

import blocks  # noqa: F401
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def network(inputs=64, hidden=128, outputs=10):
    layers = [nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)]
    return nn.Sequential(*layers)


def batch(size=32):
    return torch.randn(size, 64), torch.randint(0, 10, (size,))


def adamw(model):
    return torch.optim.AdamW(model.parameters())


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def evaluation(epochs=3, steps=4):
    """SGD allocates nothing: freed gradients end the iterations. The last batch of an epoch is short."""
    model = network()
    optimizer = sgd(model)
    for _ in range(epochs):
        for step in range(steps):
            x, y = batch(32 if step + 1 < steps else 7)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            for _ in range(3):
                model(batch(64)[0])
    return epochs * steps


def accumulation(batches=10, micro=4):
    """The last iteration of an epoch has fewer micro-batches."""
    model = network()
    optimizer = sgd(model)
    steps = 0
    for _ in range(2):
        for index in range(batches):
            x, y = batch()
            F.cross_entropy(model(x), y).backward()
            if (index + 1) % micro == 0 or index + 1 == batches:
                optimizer.step()
                optimizer.zero_grad()
                steps += 1
    return steps


def adversaries(make, steps, critic=1):
    generator, judge = network(16, 128, 64), network(64, 96, 1)
    of_generator, of_judge = make(generator), make(judge)
    loss = nn.BCEWithLogitsLoss()
    for _ in range(steps):
        for _ in range(critic):
            of_judge.zero_grad()
            loss(judge(torch.randn(32, 64)), torch.ones(32, 1)).backward()
            made = generator(torch.randn(32, 16))
            loss(judge(made.detach()), torch.zeros(32, 1)).backward()
            of_judge.step()
        of_generator.zero_grad()
        loss(judge(generator(torch.randn(32, 16))), torch.ones(32, 1)).backward()
        of_generator.step()
    return steps


def gan():
    return adversaries(adamw, 6)


def gan_sgd():
    return adversaries(sgd, 6)


def gan_critic():
    return adversaries(adamw, 4, critic=3)


def scaler(steps=10, overflows=(0, 1, 5)):
    model = network()
    optimizer = adamw(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(steps):
        x, y = batch()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        scaler.scale(loss * float("inf") if step in overflows else loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return steps


def rollouts(rounds=3):
    """Rollouts and training in turns."""
    model = network(8, 64, 4)
    optimizer = adamw(model)
    steps = 0
    for _ in range(rounds):
        with torch.no_grad():
            seen = torch.cat([torch.randn(4, 8) for _ in range(8) if model(torch.randn(4, 8)).argmax(1) is not None])
        for part in torch.randperm(32).split(16):
            loss = F.cross_entropy(model(seen[part]), torch.randint(0, 4, (16,)))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            steps += 1
    return steps


def closure(steps=6, micro=2):
    """The optimizer calls the last pass of an iteration, as Lightning's loop makes it."""
    model = network()
    optimizer = adamw(model)

    def closure():
        x, y = batch()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(micro - 1):
            closure()
        optimizer.step(closure)
    return steps


def checkpointing(steps=5, micro=3):
    """Activations are computed again in backward."""
    parts, head = nn.ModuleList(network(64, 128, 64) for _ in range(2)), nn.Linear(64, 10)
    optimizer = torch.optim.SGD([*parts.parameters(), *head.parameters()], lr=0.1)
    for _ in range(steps):
        for _ in range(micro):
            x, y = batch()
            x.requires_grad_()
            for part in parts:
                x = checkpoint(part, x, use_reentrant=True)
            F.cross_entropy(head(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return steps


def kept_gradients(steps=6):
    """Nothing allocates and nothing is freed between iterations."""
    model = network()
    optimizer = sgd(model)
    for _ in range(steps):
        x, y = batch()
        optimizer.zero_grad(set_to_none=False)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return steps


def step_in_backward(steps=5):
    model = network()
    optimizers = {weight: torch.optim.AdamW([weight]) for weight in model.parameters()}

    def update(weight):
        optimizers[weight].step()
        optimizers[weight].zero_grad()

    for weight in optimizers:
        weight.register_post_accumulate_grad_hook(update)
    for _ in range(steps):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
    return steps


def inference():
    model = network()
    for _ in range(10):
        model(batch()[0])
    return 0


def server():
    model, answers = network(), {}
    with torch.inference_mode():
        for request in range(20):
            answers[request % 5] = model(torch.randn(1 + request % 7, 64))
    return 0


def arithmetic():
    for _ in range(10):
        a = torch.randn(64, 64)
        (a @ a).sum()
    return 0


def saliency():
    """Backward passes that no training runs."""
    model = network().requires_grad_(False)
    for index in range(8):
        x = torch.randn(1 + index % 3, 64, requires_grad=True)
        model(x)[:, 0].sum().backward()
        x.grad.abs()
    return 0


torch.manual_seed(0)
print(globals()[sys.argv[1]]())
