"""make_gguf.py FILE: writes a model of random weights for llama.cpp, 24 layers of 2,048 (2.7 GB).
The vocabulary has the 256 bytes, so that a text can be tokenized. Needs numpy alone."""
import struct
import sys

import numpy

LAYERS, WIDTH, INNER, HEADS, VOCABULARY = 24, 2048, 5632, 16, 32000
F32, F16 = 0, 1
U32, FLOAT, STRING, ARRAY, I32 = 4, 6, 8, 9, 5
ALIGNMENT = 32


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def array(kind, values):
    pack = {STRING: text, FLOAT: lambda value: struct.pack("<f", value), I32: lambda value: struct.pack("<i", value)}[kind]
    return struct.pack("<IQ", kind, len(values)) + b"".join(map(pack, values))


def metadata():
    number = lambda value: (U32, struct.pack("<I", value))
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    kinds = [2, 3, 3] + [6] * 256
    more = VOCABULARY - len(tokens)
    tokens, kinds = tokens + [f"w{n}" for n in range(more)], kinds + [1] * more
    return {
        "general.architecture": (STRING, text("llama")),
        "general.name": (STRING, text("random weights")),
        "general.file_type": number(1),
        "llama.context_length": number(32768),
        "llama.embedding_length": number(WIDTH),
        "llama.block_count": number(LAYERS),
        "llama.feed_forward_length": number(INNER),
        "llama.attention.head_count": number(HEADS),
        "llama.attention.head_count_kv": number(HEADS),
        "llama.attention.layer_norm_rms_epsilon": (FLOAT, struct.pack("<f", 1e-5)),
        "llama.rope.dimension_count": number(WIDTH // HEADS),
        "llama.vocab_size": number(VOCABULARY),
        "tokenizer.ggml.model": (STRING, text("llama")),
        "tokenizer.ggml.tokens": (ARRAY, array(STRING, tokens)),
        "tokenizer.ggml.scores": (ARRAY, array(FLOAT, [-float(n) for n in range(VOCABULARY)])),
        "tokenizer.ggml.token_type": (ARRAY, array(I32, kinds)),
        "tokenizer.ggml.bos_token_id": number(1),
        "tokenizer.ggml.eos_token_id": number(2),
        "tokenizer.ggml.unknown_token_id": number(0),
    }


def tensors():
    """Names and shapes, the fastest dimension last."""
    yield "token_embd.weight", (VOCABULARY, WIDTH), F16
    yield "output_norm.weight", (WIDTH,), F32
    yield "output.weight", (VOCABULARY, WIDTH), F16
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        yield block + "attn_norm.weight", (WIDTH,), F32
        yield block + "ffn_norm.weight", (WIDTH,), F32
        for name in ("q", "k", "v", "output"):
            yield block + f"attn_{name}.weight", (WIDTH, WIDTH), F16
        yield block + "ffn_gate.weight", (INNER, WIDTH), F16
        yield block + "ffn_up.weight", (INNER, WIDTH), F16
        yield block + "ffn_down.weight", (WIDTH, INNER), F16


def padded(size):
    return -size % ALIGNMENT


def main():
    facts, all_tensors = metadata(), list(tensors())
    head = b"GGUF" + struct.pack("<IQQ", 3, len(all_tensors), len(facts))
    for name, (kind, value) in facts.items():
        head += text(name) + struct.pack("<I", kind) + value
    offset = 0
    for name, shape, kind in all_tensors:
        head += text(name) + struct.pack("<I", len(shape))
        head += b"".join(struct.pack("<Q", size) for size in reversed(shape)) + struct.pack("<IQ", kind, offset)
        size = int(numpy.prod(shape)) * (2 if kind == F16 else 4)
        offset += size + padded(size)
    # One piece of random numbers, from another place for each tensor: all of them would take half a minute.
    random = numpy.random.default_rng(0)
    pool = (random.standard_normal(1 << 24, dtype=numpy.float32) * 0.02).astype(numpy.float16)
    with open(sys.argv[1], "wb") as file:
        file.write(head + bytes(padded(len(head))))
        for _, shape, kind in all_tensors:
            count = int(numpy.prod(shape))
            if kind == F32:
                data = numpy.ones(count, numpy.float32)
            else:
                start = int(random.integers(0, len(pool)))
                data = numpy.resize(numpy.roll(pool, -start), count)
            file.write(data.tobytes() + bytes(padded(data.nbytes)))


main()
