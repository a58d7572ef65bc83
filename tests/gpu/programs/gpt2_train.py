"""gpt2_train.py: a training script of the usual kind, whose lines a trace is to name."""
import torch
from hold import hold, result
from transformers import GPT2Config, GPT2LMHeadModel

DEVICE = "cuda"


def build():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(use_cache=False)).to(DEVICE)
    return model, torch.optim.AdamW(model.parameters(), 1e-4)


def batch():
    return torch.randint(0, 50257, (8, 512), device=DEVICE)


def train(model, optimiser, steps=5):
    for _ in range(steps):
        tokens = batch()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
    return loss.item()


def main():
    loss = train(*build())
    result(loss=f"{loss:.2f}")
    hold(reserved=torch.cuda.memory_reserved())


main()
