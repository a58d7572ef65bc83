# Makes nodes of an autograd graph through a stand-in of PyTorch's libtorch_cpu.so, and runs them on threads without
# Python. Prints for each block the Python functions of the forward operation, innermost first: {"size", "forward"};
# null: none is known. At the end the owners of each node.
# torch_forward.py LIBTORCH_CPU [oom]; oom: at the end the driver refuses a request, and the program fails by it.
import ctypes, json, sys

from taking import driver, must, use_context

segment = ctypes.c_uint64()
use_context()
must(driver.cuMemAlloc_v2(ctypes.byref(segment), ctypes.c_size_t(20 << 20)))

# The forward operation holds the interpreter's lock; backward does not.
torch, engine = ctypes.PyDLL(sys.argv[1]), ctypes.CDLL(sys.argv[1])
count = 0


def place():
    global count
    count += 1
    return ctypes.c_void_p(segment.value + 4096 * count), ctypes.c_int64(512 * count)


def tell(forward):
    names = forward and [*forward, "<module>"]
    print(json.dumps({"size": 512 * count, "forward": names}))


def backward(node, forward, after=0):
    at, size = place()
    made = engine.backward(node, at, size, after)
    if forward != "no block":
        tell(forward)
    return made


def linear(next):
    return torch.forward_node(next)


def layer(next):
    return linear(next)


def relu(next):
    return torch.forward_node(next)


def penalty(next):
    return torch.node_that_makes_another(next)


leaf = torch.leaf_node()
first = layer(leaf)
second = relu(first)
third = layer(second)
# The first node that runs confirms the layout.
backward(third, ["linear", "layer"])
backward(second, ["relu"])
backward(first, ["linear", "layer"])
backward(leaf, None)
# Behind a node nothing is of its line, and neither is memory of another thread.
backward(third, None, after=1)
at, size = place()
engine.block_outside(at, size)
tell(None)
# A number that was never given out.
strange = relu(third)
torch.renumber(strange)
backward(strange, None)
# A node that backward makes is of the line of the node that makes it, also over two passes.
outer = penalty(third)
inner = backward(outer, "no block")
backward(inner, ["penalty"])
# 70,000 more nodes: the oldest ones are not known any more, the newest ones are.
for _ in range(70_000):
    last = linear(leaf)
backward(first, None)
backward(last, ["linear"])
print(json.dumps({"owners": [torch.owners(node) for node in (leaf, first, second, third, outer, inner)]}))
if sys.argv[2:] == ["oom"]:
    more = ctypes.c_uint64()
    result = driver.cuMemAlloc_v2(ctypes.byref(more), ctypes.c_size_t(1 << 40))
    raise MemoryError("CUDA out of memory: %d" % result)
