# A training loop through stand-ins of PyTorch's libraries, with a cache that cuts blocks out of
# segments, until a request fits nowhere.   torch_oom.py LIBC10_CUDA HOW
#   HOW fragments: enough is free, in pieces; together: it is with what the cap leaves; too-much: it is
#   not; library: another caller is refused, while the cache keeps free segments; survives: it goes on
#   after it; hangs: it waits to be killed
import ctypes, sys, time

from taking import driver, must, use_context

torch = ctypes.PyDLL(sys.argv[1])
MIB = 1 << 20
use_context()


def ask(mib):
    at = ctypes.c_uint64()
    result = driver.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(mib * MIB))
    return at.value if result == 0 else None


def block(at, mib):
    torch.cache_block(0, ctypes.c_void_p(at), ctypes.c_int64(mib * MIB))


def segment(mib):
    at = ask(mib)
    if at is not None:
        torch.cache_reserve(0, ctypes.c_int64(mib * MIB))
    return at


def give_back(at, mib):
    must(driver.cuMemFree_v2(ctypes.c_uint64(at)))
    torch.cache_reserve(0, ctypes.c_int64(-mib * MIB))


class OutOfMemoryError(RuntimeError):
    pass


def forward(at):
    block(at, 40)


def keep_the_loss(at):
    block(at + 60 * MIB, 20)


def logits(mib):
    # As PyTorch does: asks, empties its cache, asks again, gives up.
    for attempt in range(2):
        if segment(mib) is not None:
            return
    torch.cache_refuse(0, ctypes.c_int64(mib * MIB))
    raise OutOfMemoryError("%d MiB" % mib)


def absorbed(segments):
    free = segment(100)
    block(free, 100)
    block(free, -100)
    if ask(300) is not None:
        raise SystemExit("there was room")
    give_back(free, 100)
    at = segment(80)
    block(at, 80)
    block(at, -80)
    give_back(at, 80)


def train(how):
    segments = []
    for step in range(8):
        at = segment(100)
        forward(at)
        keep_the_loss(at)
        segments.append(at)
    absorbed(segments)
    if how == "fragments" or how == "survives" or how == "hangs":
        for at in segments[::2]:
            block(at, -40)
    if how == "library":
        for at in segments[:3]:
            block(at, -40)
            block(at + 60 * MIB, -20)
    time.sleep(0.05)
    return segments


def main(how):
    segments = train(how)
    if how == "library":
        create_handle()
        return
    try:
        logits({"together": 330, "too-much": 600}.get(how, 250))
    except OutOfMemoryError as error:
        print("OutOfMemoryError", error, flush=True)
        if how == "hangs":
            time.sleep(600)
        if how != "survives":
            raise
        block(segments[0], 8)


def create_handle():
    if ask(250) is None:
        raise SystemExit("no handle")


main(sys.argv[2])
