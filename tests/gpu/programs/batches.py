"""batches.py MODEL BATCH [FILE]: three training steps of a model with random weights, at one batch size.
batches.py --each N FILE: the same for each line `MODEL BATCH` of standard input, N at a time, each in a process that
is forked after the imports and before CUDA is used.

Prints `PEAK {...}`: PyTorch's peaks in bytes, allocated and reserved, and how often it freed its cache to serve a
request; appends the same line to FILE. Ends with status 3 if PyTorch is out of memory. BATCH may be a list, "6,6,4":
the batch of each step. Each step is an NVTX range `batch=N`.

The models of DEVELOPMENT were used to write `vramtrace fits`. UNSEEN measured how often its intervals hold; the part
for fragmentation was then set on its reserved peaks.

BATCHES_FRACTION=0.25      the part of the card that PyTorch may take (default: all)
BATCHES_DEADLINE=SECONDS   the Unix time after which --each starts no further process
"""
import json
import os
import sys
import time

import torch
from torch import nn

WORDS = 8192
compiles = False


def tokens(batch, length):
    return torch.randint(0, WORDS, (batch, length), device="cuda")


def language(make, length, autocast=None, checkpointed=False, frozen=0):
    """A language model of transformers: the labels are its input."""
    import transformers

    transformers.logging.set_verbosity_error()
    model = make(transformers).cuda().train()
    if checkpointed:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for parameter in list(model.parameters())[:frozen]:
        parameter.requires_grad_(False)
    model = torch.compile(model) if compiles else model

    def loss(batch):
        words = tokens(batch, length)
        with torch.autocast("cuda", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
            return model(input_ids=words, labels=words).loss

    used = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return loss, torch.optim.AdamW(used, lr=1e-4)


def images(model, size, classes=1000, optimizer=None, channels_last=False, autocast=None):
    model = model.cuda().train()
    model = torch.compile(model) if compiles else model
    if channels_last:
        model = model.to(memory_format=torch.channels_last)

    def loss(batch):
        picture = torch.randn(batch, 3, size, size, device="cuda")
        if channels_last:
            picture = picture.to(memory_format=torch.channels_last)
        label = torch.randint(0, classes, (batch,), device="cuda")
        with torch.autocast("cuda", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
            out = model(picture)
            out = getattr(out, "logits", out)
            return nn.functional.cross_entropy(out, label)

    optimizer = optimizer or (lambda used: torch.optim.SGD(used, lr=0.01, momentum=0.9))
    return loss, optimizer(model.parameters())


def torchvision(name):
    import torchvision.models

    return getattr(torchvision.models, name)(weights=None)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 768)
        self.layers = nn.LSTM(768, 1024, num_layers=3, batch_first=True)
        self.out = nn.Linear(1024, WORDS)

    def forward(self, words):
        return self.out(self.layers(self.words(words))[0])


def recurrent():
    model = Recurrent().cuda().train()

    def loss(batch):
        words = tokens(batch, 256)
        return nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten())

    return loss, torch.optim.Adam(model.parameters(), lr=1e-4)


def block(before, after):
    layers = []
    for width in (before, after):
        layers += [nn.Conv2d(width, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self, widths=(48, 96, 192, 384)):
        super().__init__()
        self.down = nn.ModuleList(block(a, b) for a, b in zip((3, *widths), widths))
        self.up = nn.ModuleList(block(a + b, a) for a, b in zip(widths, widths[1:]))
        self.out = nn.Conv2d(widths[0], 1, 1)

    def forward(self, x):
        kept = []
        for layer in self.down:
            x = layer(x)
            kept.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = kept.pop()
        for layer in reversed(self.up):
            x = nn.functional.interpolate(x, scale_factor=2)
            x = layer(torch.cat([kept.pop(), x], 1))
        return self.out(x)


def unet():
    model = UNet().cuda().train()

    def loss(batch):
        picture = torch.randn(batch, 3, 192, 192, device="cuda")
        return (model(picture) - picture[:, :1]).square().mean()

    return loss, torch.optim.Adam(model.parameters(), lr=1e-4)


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [4096, 8192, 8192, 4096, 4096]
        layers = [[nn.Linear(a, b), nn.LayerNorm(b), nn.GELU(), nn.Dropout(0.1)] for a, b in zip(widths, widths[1:])]
        self.layers = nn.Sequential(*sum(layers, []))

    def forward(self, x):
        return self.layers(x)


def perceptron():
    model = Perceptron().cuda().train()

    def loss(batch):
        return model(torch.randn(batch, 64, 4096, device="cuda")).square().mean()

    return loss, torch.optim.AdamW(model.parameters(), lr=1e-4)


def gpt2(**other):
    return language(lambda t: t.GPT2LMHeadModel(t.GPT2Config()), 512, **other)


def bert(t):
    return t.BertForMaskedLM(t.BertConfig())


def llama(t):
    config = dict(hidden_size=768, intermediate_size=2048, num_hidden_layers=10, num_attention_heads=12)
    return t.LlamaForCausalLM(t.LlamaConfig(vocab_size=32000, num_key_value_heads=4, **config))


def qwen2(t):
    config = dict(hidden_size=640, intermediate_size=1920, num_hidden_layers=12, num_attention_heads=10)
    return t.Qwen2ForCausalLM(t.Qwen2Config(vocab_size=48000, num_key_value_heads=2, **config))


def opt(t):
    config = dict(hidden_size=768, ffn_dim=3072, num_hidden_layers=8, num_attention_heads=12)
    return t.OPTForCausalLM(t.OPTConfig(vocab_size=WORDS * 4, word_embed_proj_dim=768, **config))


def neox(t):
    config = dict(hidden_size=768, intermediate_size=3072, num_hidden_layers=8, num_attention_heads=12)
    return t.GPTNeoXForCausalLM(t.GPTNeoXConfig(vocab_size=WORDS * 4, **config))


def vit(t):
    return t.ViTForImageClassification(t.ViTConfig(num_labels=1000))


def swin(t):
    return t.SwinForImageClassification(t.SwinConfig(num_labels=1000))


def of_transformers(make):
    import transformers

    transformers.logging.set_verbosity_error()
    return make(transformers)


def adamw(used):
    return torch.optim.AdamW(used, lr=1e-4)


# The model, and the batches that are run; the first two are recorded.
DEVELOPMENT = {
    "gpt2": (gpt2, (4, 6, 7, 8, 10, 12)),
    "gpt2-checkpointed": (lambda: gpt2(checkpointed=True), (4, 6, 8, 12, 16, 20)),
    "bert-autocast": (lambda: language(bert, 256, autocast=torch.bfloat16), (4, 6, 12, 16, 24, 32)),
    "resnet50": (lambda: images(torchvision("resnet50"), 224), (16, 24, 32, 48, 64, 96)),
    "gpt2-partial": (lambda: gpt2(frozen=100), (4, 6, 8, 12, 16, 20)),
}
UNSEEN = {
    "llama": (lambda: language(llama, 384), (3, 5, 7, 9, 11, 13, 15)),
    "qwen2-autocast": (lambda: language(qwen2, 384, autocast=torch.bfloat16), (3, 5, 7, 9, 11, 13, 15)),
    "opt": (lambda: language(opt, 384), (4, 6, 9, 12, 15, 18, 21)),
    "neox": (lambda: language(neox, 256), (4, 6, 9, 14, 19, 24, 29)),
    "roberta": (lambda: language(lambda t: t.RobertaForMaskedLM(t.RobertaConfig()), 256), (4, 6, 9, 12, 16, 20, 24)),
    "distilbert-autocast": (
        lambda: language(lambda t: t.DistilBertForMaskedLM(t.DistilBertConfig()), 256, autocast=torch.float16),
        (6, 9, 14, 20, 26, 32, 40),
    ),
    "t5": (lambda: language(lambda t: t.T5ForConditionalGeneration(t.T5Config(decoder_start_token_id=0, num_layers=6)), 384), (4, 6, 9, 12, 16, 20, 24)),
    "llama-checkpointed": (lambda: language(llama, 384, checkpointed=True), (4, 6, 9, 12, 16, 20, 24)),
    "vit": (lambda: images(of_transformers(vit), 224, optimizer=adamw), (8, 12, 18, 24, 32, 40, 48)),
    "swin": (lambda: images(of_transformers(swin), 224, optimizer=adamw), (8, 12, 18, 24, 32, 40, 48)),
    "mobilenet": (lambda: images(torchvision("mobilenet_v3_large"), 224), (16, 24, 36, 48, 64, 80, 96)),
    "densenet": (lambda: images(torchvision("densenet121"), 224), (8, 12, 18, 24, 32, 40, 48)),
    "efficientnet": (lambda: images(torchvision("efficientnet_b0"), 224), (12, 18, 27, 36, 48, 60, 72)),
    "convnext-channels-last": (
        lambda: images(torchvision("convnext_tiny"), 224, optimizer=adamw, channels_last=True, autocast=torch.bfloat16),
        (8, 12, 18, 24, 32, 40, 48),
    ),
    "vgg": (lambda: images(torchvision("vgg11"), 224), (8, 12, 18, 24, 32, 40, 48)),
    "lstm": (recurrent, (8, 12, 18, 24, 32, 40, 48)),
    "unet": (unet, (4, 6, 9, 12, 16, 20, 24)),
    "perceptron": (perceptron, (8, 12, 18, 24, 32, 40, 48)),
}
# Compiled by torch.compile. The first three were used to write what `vramtrace fits` knows of such code.
COMPILED = {
    "gpt2-compiled": (lambda: language(lambda t: t.GPT2LMHeadModel(t.GPT2Config(n_layer=6)), 512), (3, 4, 8, 14, 20, 24, 28, 30)),
    "bert-compiled": (DEVELOPMENT["bert-autocast"][0], (4, 6, 12, 24, 32, 48)),
    "vit-compiled": (UNSEEN["vit"][0], (8, 12, 24, 40, 64)),
    "llama-compiled": (UNSEEN["llama"][0], (3, 5, 9, 15, 24)),
    "opt-compiled": (UNSEEN["opt"][0], (3, 4, 9, 16, 24)),
    "resnet50-compiled": (DEVELOPMENT["resnet50"][0], (16, 24, 48, 80, 128)),
    "roberta-compiled": (UNSEEN["roberta"][0], (4, 6, 12, 20, 32)),
}
# Looked at only after it was written.
COMPILED_UNSEEN = {
    "t5-compiled": (UNSEEN["t5"][0], (4, 6, 9, 16, 24)),
    "qwen2-compiled": (UNSEEN["qwen2-autocast"][0], (3, 5, 9, 13, 20)),
    "neox-compiled": (UNSEEN["neox"][0], (4, 6, 9, 19, 29)),
    "distilbert-compiled": (UNSEEN["distilbert-autocast"][0], (6, 9, 20, 32, 48)),
    "swin-compiled": (UNSEEN["swin"][0], (8, 12, 24, 40, 64)),
}
SETS = {"development": DEVELOPMENT, "unseen": UNSEEN, "compiled": COMPILED, "compiled-unseen": COMPILED_UNSEEN}
MODELS = {**DEVELOPMENT, **UNSEEN, **COMPILED, **COMPILED_UNSEEN}


def main(name, batches, file):
    global compiles
    compiles = name in COMPILED or name in COMPILED_UNSEEN
    torch.manual_seed(0)
    if part := os.environ.get("BATCHES_FRACTION"):
        torch.cuda.set_per_process_memory_fraction(float(part))
    loss, optimizer = MODELS[name][0]()
    sizes = [int(batch) for batch in batches.split(",")]
    for batch in sizes * 3 if len(sizes) == 1 else sizes:
        torch.cuda.nvtx.range_push(f"batch={batch}")
        loss(batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.nvtx.range_pop()
    torch.cuda.synchronize()
    setting = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    peaks = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
    retries = torch.cuda.memory_stats()["num_alloc_retries"]
    peak = {"model": name, "batch": batches, "setting": setting, **peaks, "retries": retries}
    print("PEAK", json.dumps(peak), flush=True)
    if file:
        with open(file, "a") as out:
            out.write(json.dumps(peak) + "\n")


def status(name, batches, file):
    try:
        main(name, batches, file)
    except torch.cuda.OutOfMemoryError as error:
        print(f"OOM {name} {batches}: {str(error)[:200]}", flush=True)
        return 3
    return 0


def each(at_once, file):
    import torchvision.models  # noqa: F401
    import transformers  # noqa: F401
    from transformers import models  # noqa: F401

    running, deadline = {}, float(os.environ.get("BATCHES_DEADLINE", "inf"))
    for line in sys.stdin.read().splitlines():
        while len(running) >= at_once:
            ended(running)
        if time.time() > deadline:
            print(f"{line}: not run, BATCHES_DEADLINE has passed: no status", flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = status(*line.split(), file)
            except Exception as error:
                print(f"FAILED {line}: {error!r}"[:300], flush=True)
            finally:
                os._exit(code)
        running[pid] = line
    while running:
        ended(running)


def ended(running):
    pid, code = os.wait()
    line = running.pop(pid)
    if code:
        print(f"{line}: status {os.waitstatus_to_exitcode(code)}", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--each":
        each(int(sys.argv[2]), sys.argv[3])
    else:
        sys.exit(status(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None))
