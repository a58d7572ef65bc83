"""wheel_use.py: tests the Python package with the real driver and PyTorch's allocator; prints figures as JSON."""
import importlib.util
import json
import tempfile
from pathlib import Path

import torch
import vramtrace
from vramtrace import callbacks

MIB = 1 << 20


def trainer():
    """Checks that the loggers of a real Trainer get the figures, and TensorBoard's files if it is installed."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    class Logger(TrainerCallback):
        logged = []

        def on_log(self, args, state, control, logs=None, **named):
            self.logged.append(dict(logs))

    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=64, n_head=2, vocab_size=128))
    tokens = torch.randint(0, 128, (32,))
    board = importlib.util.find_spec("tensorboard") is not None
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, max_steps=3, logging_steps=1, per_device_train_batch_size=4, save_strategy="no",
            report_to=["tensorboard"] if board else [], disable_tqdm=True,
        )
        data = [{"input_ids": tokens, "labels": tokens}] * 16
        Trainer(model, arguments, train_dataset=data, callbacks=[Logger(), callbacks.trainer_callback()]).train()
        steps = [logs for logs in Logger.logged if "loss" in logs]
        assert len(steps) == 3 and all(logs["vram/cuda0/live_gib"] > 0.5 for logs in steps), Logger.logged
        if not board:
            return "a logger sees usage(); no tensorboard"
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        tags = []
        for file in Path(folder).rglob("events.out.tfevents*"):
            events = EventAccumulator(str(file))
            events.Reload()
            tags += events.Tags()["scalars"]
        assert any(tag.endswith("vram/cuda0/live_gib") for tag in tags), tags
        return "a logger and TensorBoard's file have usage()"


assert vramtrace.is_active()
torch.cuda.init()
with vramtrace.phase("weights"):
    kept = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
usage = vramtrace.usage()
device = usage.devices[0]
assert device.cache_allocated == torch.cuda.memory_allocated(), (device, torch.cuda.memory_allocated())
assert device.cache_reserved == torch.cuda.memory_reserved(), (device, torch.cuda.memory_reserved())
assert device.live >= 512 * MIB and device.used > device.live, device
assert any("wheel_use.py" in (site.place or "") for site in device.sites), device.sites

with vramtrace.Peak() as peak:
    del_me = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    del del_me
    torch.cuda.empty_cache()
assert 256 * MIB <= peak.grown < 320 * MIB, peak.grown

refused = None
with vramtrace.limit(device.used + 64 * MIB):
    try:
        torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError as error:
        refused = type(error).__name__
assert refused, "the limit refused nothing"
after = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
assert vramtrace.usage(0).devices[0].cap is None

facts = {"used": f"{usage.used / MIB:.0f} MiB", "peak grown": f"{peak.grown / MIB:.0f} MiB", "limit": refused}
missing = [name for name in ("transformers", "accelerate") if importlib.util.find_spec(name) is None]
facts["trainer"] = f"SKIP no {', '.join(missing)}" if missing else trainer()
print(json.dumps(facts))
