"""fits_peers.py OUT_FILE [MODEL]...: what other estimators say of the models of programs/batches.py, as JSON lines of
model, batch, tool and bytes (or why there is no figure). Each is called as its README says, in its Python interface:

torch-kitsune   kitsune.predict.predict_memory(model, input_shape, batch_size, optimizer=..., training=True)
vram-check      vram_check.analyze(model, batch_size, dtype, optimizer, seq_len)
accelerate      estimate-memory's figure for training: the largest of estimate_training_usage; it knows no batch

fitcheck-llm estimates LoRA alone, DeepSpeed's estimator the states of ZeRO alone: no model here has them.
"""
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "programs"))
import batches

def optimizer_name(step):
    return type(step.optimizer).__name__.lower()


def kitsune(step, batch):
    import torch
    from kitsune.predict import predict_memory

    dtype = "float32" if step.autocast is None else str(step.autocast).removeprefix("torch.")
    name = optimizer_name(step)
    said = predict_memory(step.model, step.shape, batch_size=batch, dtype=dtype, optimizer=name, training=True)
    return int(said.total_bytes)


def vram_check(step, batch):
    from vram_check import analyze

    dtype = {None: "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}[step.autocast and str(step.autocast)]
    said = analyze(step.model, batch_size=batch, dtype=dtype, optimizer=optimizer_name(step), seq_len=step.length or 128)
    return int(said["estimate"].total_bytes)


def accelerate(step, batch):
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    dtype = "float32" if step.autocast is None else str(step.autocast).removeprefix("torch.")
    return int(max(estimate_training_usage(calculate_maximum_sizes(step.model)[0], dtype).values()))


def main(file, names):
    with open(file, "w") as out:
        for name in names or batches.MODELS:
            make, sizes = batches.MODELS[name]
            step = make()
            for tool in (kitsune, vram_check, accelerate):
                for batch in sizes[2:]:
                    row = {"model": name, "batch": batch, "tool": tool.__name__}
                    try:
                        row["bytes"] = tool(step, batch)
                    except Exception as error:
                        row["why"] = f"{type(error).__name__}: {error}"[:200]
                    out.write(json.dumps(row) + "\n")
            del step


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
