# Allocates from many call situations, each with a size of its own, and prints for each what
# traceback.extract_stack says: one JSON line {"size", "frames": [[name, file, line], ...]},
# innermost first. Python 3.8 to 3.15.
import asyncio, concurrent.futures, contextlib, ctypes, functools, gc, json, sys, sysconfig, threading, traceback

released = ctypes.CDLL("libcuda.so.1")
held = ctypes.PyDLL("libcuda.so.1")
lines = []
count = 0


def must(result):
    if result != 0:
        raise SystemExit("driver: %d" % result)


device = ctypes.c_int()
context = ctypes.c_void_p()
must(released.cuInit(0))
must(released.cuDeviceGet(ctypes.byref(device), 0))
must(released.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
must(released.cuCtxSetCurrent(context))


def take(library=released):
    global count
    count += 1
    size = 512 * count
    address = ctypes.c_uint64()
    if threading.current_thread() is not threading.main_thread():
        must(library.cuCtxSetCurrent(context))
    frames, frame = [], sys._getframe()
    stack = traceback.extract_stack(); result = library.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))  # noqa
    must(result)
    while frame is not None:
        name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
        frames.append(name)
        frame = frame.f_back
    stack = [[name, entry.filename, entry.lineno] for name, entry in zip(frames, reversed(stack))]
    lines.append(json.dumps({"size": size, "depth": len(stack), "frames": stack}))
    return address


def both(function):
    function(released)
    function(held)


class Thing:
    def method(self, library):
        take(library)

    @classmethod
    def of_class(cls, library):
        take(library)

    @staticmethod
    def static(library):
        take(library)

    @property
    def prop(self):
        take()
        return 1

    def __call__(self, library):
        take(library)

    def __len__(self):
        take()
        return 3

    def __getattr__(self, name):
        take()
        return name

    def __enter__(self):
        take()
        return self

    def __exit__(self, *unused):
        take()

    def __lt__(self, other):
        take()
        return True

    def __init__(self):
        take()

    def __del__(self):
        take()


class Meta(type):
    def __new__(mcs, name, bases, space):
        take()
        return super().__new__(mcs, name, bases, space)


def generator(library):
    take(library)
    yield 1
    take(library)
    yield from inner(library)


def inner(library):
    take(library)
    yield 2


async def coroutine(depth, library):
    if depth:
        await asyncio.sleep(0)
        return await coroutine(depth - 1, library)
    take(library)


async def several():
    await asyncio.gather(coroutine(2, released), coroutine(3, held))
    async for _ in stream():
        take()
    async with manager():
        take()


async def stream():
    take()
    yield 1
    await asyncio.sleep(0)
    yield 2


@contextlib.asynccontextmanager
async def manager():
    take()
    yield


def deep(depth, library):
    if depth:
        deep(depth - 1, library)
    else:
        take(library)


def decorated(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


@decorated
@functools.lru_cache(maxsize=None)
def cached(n):
    take()
    return n


def through_c(library):
    list(map(lambda n: take(library), [1, 2]))
    sorted([3, 1, 2], key=lambda n: (take(library), n)[1])
    functools.reduce(lambda a, b: take(library) and 1, [1, 2, 3])


CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


def through_callback(library):
    numbers = (ctypes.c_int * 2)(2, 1)

    def compare(a, b):
        take(library)
        through_c(library)
        return 0

    ctypes.CDLL(None).qsort(numbers, 2, 4, CALLBACK(compare))


def raising(library):
    try:
        raise ValueError
    except ValueError:
        take(library)
    finally:
        take(library)


def nested(library):
    def one():
        def two():
            take(library)

        two()

    one()


def on_thread(library):
    thread = threading.Thread(target=through_callback, args=(library,))
    thread.start()
    thread.join()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        pool.submit(deep, 5, library).result()


def unusual_lines(library):
    (
        take
    )(

        library

    )
    x = [
        take(library)
        for _ in (1,
                  2)
    ]
    return x


def with_text(library):
    exec(compile("def grüße(library):\n\n    take(library)\ngrüße(library)", "<vérité>", "exec"), {"take": take, "library": library})
    exec(compile("def 函数(l):\n    take(l)\n函数(library)", "/tmp/文件.py", "exec"), {"take": take, "library": library})
    exec(compile("take(library)", "/tmp/\U0001f600.py", "exec"), {"take": take, "library": library})
    eval("take(library)")


def traced(library):
    sys.settrace(lambda *_: None)
    take(library)
    sys.settrace(None)
    sys.setprofile(lambda *_: None)
    take(library)
    sys.setprofile(None)


def reused():
    # Other functions in the place of ones that have died: at the same addresses, as long as them.
    seen, again, n = {}, 0, 0
    while again < 40:
        # Free-threaded 3.13 makes code objects immortal once a second thread has begun.
        if n == 400 and sys.version_info[:2] == (3, 13) and sysconfig.get_config_var("Py_GIL_DISABLED"):
            break
        if n == 4000:
            raise SystemExit("no address was used again")
        space = {"take": take if n % 2 == 0 else lambda: None}
        source = "%sdef name_%04d():\n    take()\nname_%04d()" % ("\n" * (n % 3), n, n)
        exec(compile(source, "<made>", "exec"), space)
        place = id(space["name_%04d" % n].__code__)
        if n % 2 == 0:
            again += place in seen
            seen[place] = n
        n += 1
        del space
        # Free-threaded builds free code objects in a collection alone.
        if n % 50 == 0:
            gc.collect()


def main():
    thing = Thing()
    for library in (released, held):
        take(library)
        thing.method(library)
        Thing.of_class(library)
        Thing.static(library)
        thing(library)
        (lambda: take(library))()
        [take(library) for _ in range(2)]
        {n: take(library) for n in range(2)}
        {id(take(library)) for n in range(2)}
        list(take(library) for _ in range(2))
        for _ in generator(library):
            pass
        functools.partial(take, library)()
        functools.partial(nested)(library)
        deep(200, library)
        deep(10, library)
        through_c(library)
        through_callback(library)
        raising(library)
        nested(library)
        on_thread(library)
        unusual_lines(library)
        with_text(library)
        traced(library)
        asyncio.run(coroutine(3, library))
    thing.prop
    len(thing)
    thing.anything
    with thing:
        take()
    thing < thing
    sorted([Thing(), Thing()])
    cached(1)

    class Made(metaclass=Meta):
        take()

    asyncio.run(several())
    reused()
    del thing


main()
take()
take(held)
print("\n".join(lines))
