"""Trains or generates, and counts its own memory by role.

    roles_truth.py PROGRAM OUT.json

After each phase of each step, OUT.json has the time (ns, CLOCK_MONOTONIC) and the bytes of the blocks that
hold weights, gradients, optimizer state, input, the KV cache, and the buckets of distributed training, by the
addresses of their storages; and `rest`, the bytes of all other blocks.

The program `ddp` is one rank: it takes RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT from the environment.
"""
import json
import os
import sys
import time

import torch

STEPS = 4
DEVICE = "cuda"


class Ledger:
    def __init__(self):
        self.moments, self.inputs, self.cache, self.buckets = [], [], [], []
        self.model = self.optimizer = None
        # The shards of parameters, where a forward pass replaces them by gathered ones.
        self.shards = []

    def held(self, tensors):
        parts = [getattr(t, "_local_tensor", t) for t in tensors]
        storages = {t.untyped_storage().data_ptr() for t in parts if t is not None and t.is_cuda}
        return sum(self.blocks.pop(address, 0) for address in storages)

    def tell(self):
        torch.cuda.synchronize()
        at_ns = time.monotonic_ns()
        self.blocks = {}
        for segment in torch.cuda.memory_snapshot():
            address = segment["address"]
            for block in segment["blocks"]:
                if block["state"] == "active_allocated":
                    self.blocks[address] = block["size"]
                address += block["size"]
        total = sum(self.blocks.values())
        parameters = self.shards or list(self.model.parameters())
        state = self.optimizer.state.values() if self.optimizer else []
        moment = {
            "at_ns": at_ns,
            "total": total,
            "weights": self.held(parameters + list(self.model.buffers())),
            "gradients": self.held(p.grad for p in parameters),
            "optimizer state": self.held(v for of in state for v in of.values() if torch.is_tensor(v)),
            "input": self.held(self.inputs),
            "KV cache": self.held(self.cache),
            "communication": self.held(self.buckets),
        }
        moment["rest"] = sum(self.blocks.values())
        self.moments.append(moment)


def gpt2(**options):
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(**options)).to(DEVICE)


def tokens(*shape):
    return torch.randint(0, 50257, shape, device=DEVICE)


def language(ledger, run=None, rounds=1, first=0):
    """Training of GPT-2; `rounds` of backward for each step of the optimizer; counted from step `first` on."""
    model = ledger.model if run is None else run
    for step in range(STEPS):
        count = ledger.tell if step >= first else lambda: None
        for _ in range(rounds):
            x = tokens(4, 320)
            ledger.inputs = [x]
            loss = model(input_ids=x, labels=x).loss
            count()
            loss.backward()
            del loss
            count()
        ledger.optimizer.step()
        count()
        ledger.optimizer.zero_grad()


def adamw(model):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)


def run_gpt2(ledger, rounds=1):
    ledger.model = gpt2(use_cache=False)
    ledger.optimizer = adamw(ledger.model)
    language(ledger, rounds=rounds)


def run_accumulation(ledger):
    run_gpt2(ledger, rounds=3)


def run_partial(ledger):
    """Low-rank adapters beside frozen weights."""
    model = gpt2(use_cache=False)
    model.requires_grad_(False)

    class Adapted(torch.nn.Module):
        def __init__(self, inner, rank=16):
            super().__init__()
            rows, columns = inner.weight.shape
            self.inner = inner
            self.down = torch.nn.Parameter(torch.randn(rows, rank, device=DEVICE) / rows)
            self.up = torch.nn.Parameter(torch.zeros(rank, columns, device=DEVICE))

        def forward(self, x):
            return self.inner(x) + x @ self.down @ self.up

    for block in model.transformer.h:
        block.mlp.c_fc = Adapted(block.mlp.c_fc)
    ledger.model, ledger.optimizer = model, adamw(model)
    language(ledger)


def run_compile(ledger):
    ledger.model = gpt2(use_cache=False, n_layer=4)
    ledger.optimizer = adamw(ledger.model)
    language(ledger, torch.compile(ledger.model))


def run_ddp(ledger):
    """Training of GPT-2 on each rank's card, with its gradients averaged over the ranks."""
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.nn.parallel import DistributedDataParallel

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    ledger.model = gpt2(use_cache=False)
    ledger.optimizer = adamw(ledger.model)
    run = DistributedDataParallel(ledger.model, device_ids=[rank])
    buckets = {}

    def average(group, bucket):
        # DDP rebuilds its buckets once, in the second step: from the third step on they do not change.
        if bucket.index() == 0:
            buckets.clear()
        buckets[bucket.index()] = bucket.buffer()
        ledger.buckets = list(buckets.values())
        return allreduce_hook(group, bucket)

    run.register_comm_hook(None, average)
    language(ledger, run, first=2)
    dist.destroy_process_group()


def join_fake_group(rank):
    """Joins a group of two ranks without the other one: collectives take their memory and return at once."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)


def run_fsdp(ledger, rounds=1, checkpointed=False, **policy):
    from torch.distributed.fsdp import fully_shard

    join_fake_group(0)
    ledger.model = gpt2(use_cache=False, n_layer=6)
    if checkpointed:
        ledger.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for part in [*ledger.model.transformer.h, ledger.model]:
        fully_shard(part, **policy)
    ledger.shards = list(ledger.model.parameters())
    ledger.optimizer = adamw(ledger.model)
    language(ledger, rounds=rounds)


def run_fsdp_mixed(ledger):
    from torch.distributed.fsdp import MixedPrecisionPolicy

    run_fsdp(ledger, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))


def run_fsdp_offload(ledger):
    from torch.distributed.fsdp import CPUOffloadPolicy

    run_fsdp(ledger, offload_policy=CPUOffloadPolicy())


def run_fsdp_accumulation(ledger):
    run_fsdp(ledger, rounds=3)


def run_fsdp_checkpointed(ledger):
    run_fsdp(ledger, checkpointed=True)


def run_pipeline(ledger):
    """The last of two stages."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    join_fake_group(1)
    layers = [torch.nn.TransformerEncoderLayer(768, 12, batch_first=True) for _ in range(6)]
    ledger.model = torch.nn.Sequential(*layers).to(DEVICE)
    ledger.optimizer = adamw(ledger.model)
    part = torch.randn(4, 320, 768, device=DEVICE)
    stage = PipelineStage(ledger.model, 1, 2, torch.device(DEVICE), input_args=(part,), output_args=(part,))
    del part

    def loss(output, target):
        ledger.tell()
        return (output - target).square().mean()

    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=loss)
    for _ in range(STEPS):
        target = torch.randn(16, 320, 768, device=DEVICE)
        ledger.inputs = [target]
        schedule.step(target=target, losses=[])
        ledger.tell()
        ledger.optimizer.step()
        ledger.tell()
        ledger.optimizer.zero_grad()


def run_resnet50(ledger):
    import torchvision

    ledger.model = torchvision.models.resnet50().to(DEVICE)
    ledger.optimizer = torch.optim.SGD(ledger.model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(STEPS):
        x, y = torch.randn(32, 3, 224, 224, device=DEVICE), torch.randint(0, 1000, (32,), device=DEVICE)
        ledger.inputs = [x, y]
        loss = torch.nn.functional.cross_entropy(ledger.model(x), y)
        ledger.tell()
        loss.backward()
        ledger.tell()
        ledger.optimizer.step()
        ledger.tell()
        ledger.optimizer.zero_grad()


def run_generation(ledger):
    ledger.model = gpt2(use_cache=True).eval()
    for _ in range(STEPS):
        with torch.no_grad():
            x, past = tokens(16, 160), None
            ledger.inputs = [x]
            for _ in range(24):
                out = ledger.model(input_ids=x, past_key_values=past, use_cache=True)
                past, x = out.past_key_values, out.logits[:, -1:].argmax(-1)
            layers = getattr(past, "layers", None)
            pairs = [(of.keys, of.values) for of in layers] if layers else [of[:2] for of in past]
            ledger.cache = [t for pair in pairs for t in pair]
            ledger.tell()
            ledger.cache.clear()
            del past, out


def main():
    name, out = sys.argv[1:]
    torch.manual_seed(0)
    ledger = Ledger()
    globals()[f"run_{name}"](ledger)
    with open(out, "w") as file:
        json.dump(ledger.moments, file)


main()
