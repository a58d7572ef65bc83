"""wheel_use.py: tests the Python package with the real driver and PyTorch's allocator; prints figures as JSON."""
import json

import torch
import vramtrace

MIB = 1 << 20


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
print(json.dumps(facts))
