# Takes driver memory and blocks of PyTorch's cache (by a stand-in) from lines of this program and of a package.
# Prints the libraries that usage() names for them, and those of the live page.
# usage_libraries.py LIBC10_CUDA DIRECTORY_OF_PACKAGES VRAMTRACE
import ctypes
import json
import os
import subprocess
import sys
import time

import vramtrace

sys.path.insert(0, sys.argv[2])
import kernels  # noqa: E402
from taking import driver, must, use_context  # noqa: E402

torch = ctypes.PyDLL(sys.argv[1])
segment = ctypes.c_uint64()
use_context()
must(driver.cuMemAlloc_v2(ctypes.byref(segment), ctypes.c_size_t(20 << 20)))
kernels.take(driver, 4 << 20)
torch.cache_block(0, ctypes.c_void_p(segment.value), ctypes.c_int64(2 << 20))
kernels.block(torch, segment.value + (8 << 20), 1 << 20)


def live_page():
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    found = json.loads(subprocess.check_output([sys.argv[3], "ps", "--json"], env=environment))
    [this] = [process for process in found["processes"] if process["pid"] == os.getpid()]
    return {"%s %s" % (site["level"], site["library"]) for site in this["sites"]}


# The page is refreshed by calls, at most every 100 ms.
for _ in range(100):
    time.sleep(0.1)
    kernels.touch(driver)
    sites = live_page()
    if len(sites) >= 4:
        break
print(json.dumps({
    "usage": sorted("%s" % library.name for library in vramtrace.usage().devices[0].libraries),
    "live page": sorted(sites),
}))
