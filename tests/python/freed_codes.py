# Calls functions whose code objects are freed, so that others are made at their addresses: with the same name, file
# and first line, and with their calls at the same instructions of other lines. Prints what frames_situations.py
# prints, and at last how often an address was used again. Python 3.8 to 3.15.
import ctypes, json, sys, threading, traceback

driver = ctypes.CDLL("libcuda.so.1")
THREADS, ROUNDS = 4, 60
# Longer than a few words: its line table is, too.
BEFORE, AFTER = "    a = 1\n" * 30, "    b = 1\n" * 30


def must(result):
    if result != 0:
        raise SystemExit("driver: %d" % result)


device = ctypes.c_int()
context = ctypes.c_void_p()
must(driver.cuInit(0))
must(driver.cuDeviceGet(ctypes.byref(device), 0))
must(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))


def take(size, lines):
    address = ctypes.c_uint64()
    frames, frame = [], sys._getframe()
    stack = traceback.extract_stack(); result = driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))  # noqa
    must(result)
    while frame is not None:
        frames.append(getattr(frame.f_code, "co_qualname", frame.f_code.co_name))
        frame = frame.f_back
    stack = [[name, entry.filename, entry.lineno] for name, entry in zip(frames, reversed(stack))]
    lines.append(json.dumps({"size": size, "frames": stack}))


def made(number):
    # The call is one line further down in half of the functions, and all else where it is in the others. Two addresses
    # may take turns.
    call = ["    call()\n\n", "\n    call()\n"][number // 2 % 2]
    # Mostly the last call of one function and the first call of the next are at one instruction.
    last = ["", "    call()\n"][number % 4 == 3]
    return "def work(call):\n" + BEFORE + call + AFTER + last


def once(number, call, places):
    names = {}
    exec(compile(made(number), "made.py", "exec"), names)
    work = names.pop("work")  # which would keep itself alive
    places.append(id(work.__code__))
    if number % 3 == 2:
        # Through a frame of its own that stays.
        deeper(work, call)
    else:
        work(call)


def deeper(work, call):
    work(lambda: call())


def work(number, lines, places):
    must(driver.cuCtxSetCurrent(context))
    sizes = iter(range(ROUNDS * 2))

    def call():
        take(512 * (1 + number * ROUNDS * 2 + next(sizes)), lines)

    for turn in range(ROUNDS):
        once(turn, call, places)


results = [([], []) for _ in range(THREADS)]
threads = [threading.Thread(target=work, args=(n, *results[n])) for n in range(THREADS)]
for thread in threads[:1]:  # alone: addresses are soon used again
    thread.start()
    thread.join()
for thread in threads[1:]:
    thread.start()
for thread in threads[1:]:
    thread.join()
again = sum(len(places) - len(set(places)) for _, places in results)
print("\n".join(line for lines, _ in results for line in lines))
print(json.dumps({"again": again}))
