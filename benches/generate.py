"""generate.py DIRECTORY [ROUNDS [CODE [DATA]]]: text generation as PyTorch's allocator sees it.

A model of 12 layers makes its blocks by the module generate_blocks (generate.c, in DIRECTORY) from
some 20 Python frames, from the same lines for each layer and token; each token the caches of keys and
values are made anew, one longer. Between two blocks an operation works through CODE bytes of code and
DATA bytes of data. Prints JSON: ns of processor time a block made and freed (the program's own work
included), and the medians of ticks in the two calls alone.
"""
import ctypes
import json
import sys

sys.path.insert(0, sys.argv[1])
rounds, code, data = ([int(word) for word in sys.argv[2:5]] + [8, 0, 0][len(sys.argv) - 2 :])[:3]

driver = ctypes.CDLL("libcuda.so.1")
context, segment = ctypes.c_void_p(), ctypes.c_uint64()
driver.cuInit(0)
driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
driver.cuCtxSetCurrent(context)
BYTES = 1 << 30
assert driver.cuMemAlloc_v2(ctypes.byref(segment), ctypes.c_size_t(BYTES)) == 0

import generate_blocks
from generate_blocks import op

generate_blocks.start(segment.value, BYTES, code, data)


class Module:
    def _wrapped_call_impl(self, *args, **kwargs):
        return self._call_impl(*args, **kwargs)

    def _call_impl(self, *args, **kwargs):
        forward_call = self.forward
        return forward_call(*args, **kwargs)

    __call__ = _wrapped_call_impl


class Linear(Module):
    def __init__(self, size):
        self.weight, self.bias = op(size * 8), op(512)
        self.size = size

    def forward(self, x):
        flat = op(self.size)
        return op(self.size)


class Norm(Module):
    def __init__(self, size):
        self.weight, self.bias = op(512), op(512)
        self.size = size

    def forward(self, x):
        mean = op(512)
        rstd = op(512)
        return op(self.size)


def attend(query, key, value, size):
    scores = op(size // 2)
    scale = op(512)
    scores = op(size // 2)
    mask = op(1024)
    scores = op(size // 2)
    weights = op(size // 2)
    return op(size)


class Cache:
    def __init__(self):
        self.layers = {}

    def update(self, key, value, layer):
        grown = self.layers[layer][2] + 64 if layer in self.layers else 1024
        keys = op(grown)
        values = op(grown)
        self.layers[layer] = (keys, values, grown)
        return keys, values


class Attention(Module):
    def __init__(self, layer, size):
        self.project, self.out, self.layer, self.size = Linear(size), Linear(size), layer, size

    def forward(self, x, cache):
        both = self.project(x)
        query, key, value = op(self.size), op(self.size), op(self.size)
        key, value = cache.update(key, value, self.layer)
        found = attend(query, key, value, self.size)
        return self.out(found)


class Perceptron(Module):
    def __init__(self, size):
        self.up, self.down, self.size = Linear(size * 4), Linear(size), size

    def forward(self, x):
        x = self.up(x)
        x = self.activate(x)
        return self.down(x)

    def activate(self, x):
        half = op(self.size * 4)
        cube = op(self.size * 4)
        inner = op(self.size * 4)
        return op(self.size * 4)


class Block(Module):
    def __init__(self, layer, size):
        self.first, self.second = Norm(size), Norm(size)
        self.attention, self.perceptron = Attention(layer, size), Perceptron(size)
        self.size = size

    def forward(self, x, cache):
        found = self.attention(self.first(x), cache)
        x = op(self.size)
        found = self.perceptron(self.second(x))
        return op(self.size)


class Transformer(Module):
    def __init__(self, size):
        self.blocks = [Block(layer, size) for layer in range(12)]
        self.norm, self.size = Norm(size), size

    def forward(self, token, cache):
        x = op(self.size)
        for block in self.blocks:
            x = block(x, cache)
        return self.norm(x)


class Model(Module):
    def __init__(self, size):
        self.transformer, self.head = Transformer(size), Linear(size)

    def forward(self, token, cache):
        return self.head(self.transformer(token, cache))

    def generate(self, tokens):
        return self._sample(tokens)

    def _sample(self, tokens):
        cache = Cache()
        token = op(512)
        for _ in range(tokens):
            logits = self(token, cache)
            token = op(512)


def without_gradients(call):
    def decorated(*args, **kwargs):
        return call(*args, **kwargs)

    return decorated


@without_gradients
def generate(model):
    model.generate(48)


def main():
    model = Model(3072)
    kept = [op(512 + 512 * (n % 7)) for n in range(1200)]
    for _ in range(3):
        generate(model)
    best = 1e18
    for _ in range(rounds):
        (began, before) = generate_blocks.now()
        generate(model)
        (ended, after) = generate_blocks.now()
        best = min(best, (ended - began) / (after - before))
    ticks = []
    for _ in range(max(rounds // 2, 1)):
        generate_blocks.clock(True)
        generate(model)
        ticks.append(generate_blocks.clock(False))
    made, freed = min(made for made, _ in ticks), min(freed for _, freed in ticks)
    print(json.dumps({"ns": best, "made": made, "freed": freed, "blocks": after - before}))


main()
