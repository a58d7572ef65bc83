"""punch.py TRACE KEEP: punches all but the last KEEP event windows, as the recorder does at its limit
(which it does not set below 4 MiB: too much for here)."""
import struct
import sys

HEADER, SLOT, EVENTS = 4096, 256 << 10, 1
path, keep = sys.argv[1], int(sys.argv[2])
with open(path, "r+b") as file:
    trace = file.read()
    windows, at = [], HEADER
    while at < len(trace):
        place = struct.unpack_from("<Q", trace, at + 8)[0]
        kind, slots = place & 0xFF, place >> 16 & 0xFFFF
        if kind == EVENTS:
            windows.append((at, slots * SLOT))
        at += max(slots, 1) * SLOT
    for at, length in windows[:-keep]:
        file.seek(at)
        file.write(bytes(length))
