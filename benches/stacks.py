"""stacks.py LIBRARY: ns of a pair at the bottom of 20 Python and 20 native frames; prints JSON.

The library is stacks.c. Natives below Python are the interpreter's and ctypes' own; stacks.c adds
what lacks to 20.
"""
import ctypes
import json
import statistics
import sys

DEEP = 20
library = ctypes.PyDLL(sys.argv[1])
library.pair.restype = library.trace.restype = ctypes.c_double
library.start()


# A function for each depth; plain calls, since one with a star makes the interpreter begin another
# loop of its own. `down` is the outermost; `apart` goes over either of two lines at each step, so
# that each path of zeros and ones is another stack.
source = ["def down_2(call):\n    return call()\n", "def apart_2(call, path):\n    return call()\n"]
FUNCTIONS = DEEP - 4  # the module, `repeated`, its generator and a lambda are frames, too
for depth in range(3, FUNCTIONS + 2):
    source.append(f"def down_{depth}(call):\n    return down_{depth - 1}(call)\n")
    step = f"return apart_{depth - 1}(call, path >> 1)"
    source.append(f"def apart_{depth}(call, path):\n    if path & 1:\n        {step}\n    {step}\n")
source.append(f"down, apart = down_{FUNCTIONS + 1}, apart_{FUNCTIONS + 1}")
exec(compile("".join(source), __file__, "exec"))

below = down(lambda: library.frames(0))
natives = max(DEEP - below, 0)


def repeated(call, rounds):
    return min(down(call) for _ in range(rounds))


result = {"python": "%d.%d" % sys.version_info[:2], "natives": down(lambda: library.frames(natives))}
# Short rounds: one of them is undisturbed on a busy machine, too.
result["repeated"] = repeated(lambda: library.pair(natives, 0, 200), 300)
result["backtrace"] = repeated(lambda: library.trace(natives, 50), 300)
# Another stack each time; what is new to the caches of the process is warm by then.
first = [apart(lambda: library.pair(natives, path, 1), path) for path in range(2000)]
result["first"] = statistics.quantiles(first[200:], n=4)[0]
print(json.dumps(result))
