"""An independent reader of PyTorch's memory in a trace, written from docs/FORMAT.md without vramtrace's code:
blocks, the driver's allocations and mappings, and the totals that PyTorch's hook reported."""
import bisect
import struct

SLOT = 256 << 10
ALLOC, ALLOC_WIDE, FREE, FREE_WIDE, MAP, UNMAP = 0x10, 0x11, 0x12, 0x13, 0x16, 0x17
BLOCK, BLOCK_FREE, STATE, OOM = 0x21, 0x22, 0x23, 0x24
DEVICE_SPACE, BLOCK_SPACE = 0, 4


def records(path):
    """(time in ns since the start, kind, small, words from 2 on) of each event, in file order."""
    data = path.read_bytes()
    windows = []
    at = 4096
    while at + 64 <= len(data):
        magic, place, sequence, base, _, _, _, published = struct.unpack_from("<8s7Q", data, at)
        slots = place >> 16 & 0xFFFF
        if magic != b"vtwindow":
            at += SLOT
            continue
        if place & 0xFF == 1:
            windows.append((sequence, at, slots * SLOT, base))
        at += max(slots, 1) * SLOT
    for _, start, length, base in sorted(windows):
        last = base
        at = start + 64
        while at + 8 <= start + length:
            head = struct.unpack_from("<Q", data, at)[0]
            words = head >> 32 & 0xFF
            if head == 0 or words == 0:
                at += 8
                continue
            kind = head >> 40 & 0xFF
            if kind not in (0, 1, 2) and words >= 2:
                body = struct.unpack_from(f"<{words}Q", data, at)
                ticks = (body[1] >> 40) << 16 | head >> 48
                # The full time nearest to the one before.
                span = 1 << 40
                near = last // 64
                full = ticks + (near - ticks + span // 2) // span * span
                last = full * 64
                yield last, kind, body[1] & 0xFFFFFFFFFF, body[2:]
            at += 8 * words


class Memory:
    """The live memory, updated event by event."""

    def __init__(self):
        self.blocks, self.driver, self.maps = {}, {}, {}
        self.made = self.freed = self.unknown = self.again = 0
        self.allocated = 0
        # Sorted addresses of the driver's allocations; the addresses of those that have held a block.
        self.order, self.segments = [], set()
        self.states = []
        self.wrong_states = []
        self.ooms = 0

    def take(self, time, kind, small, body):
        if kind == BLOCK or kind == ALLOC_WIDE and small & 0xFF == BLOCK_SPACE:
            key, size = (small << 9, body[0]) if kind == BLOCK else body[:2]
            self.made += 1
            self.again += key in self.blocks
            self.blocks[key] = size
            self.allocated += size
            at = bisect.bisect_right(self.order, key) - 1
            if at >= 0 and key < self.order[at] + self.driver[self.order[at]]:
                self.segments.add(self.order[at])
        elif kind == BLOCK_FREE or kind == FREE_WIDE and small & 0xFF == BLOCK_SPACE:
            key = small << 9 if kind == BLOCK_FREE else body[0]
            self.freed += 1
            size = self.blocks.pop(key, None)
            self.unknown += size is None
            self.allocated -= size or 0
        elif kind == ALLOC or kind == ALLOC_WIDE and small & 0xFF == DEVICE_SPACE:
            key, size = (small << 9, body[0]) if kind == ALLOC else body[:2]
            if key not in self.driver:
                bisect.insort(self.order, key)
            self.driver[key] = size
        elif kind == FREE or kind == FREE_WIDE and small & 0xFF == DEVICE_SPACE:
            key = small << 9 if kind == FREE else body[0]
            if self.driver.pop(key, None) is not None:
                self.order.remove(key)
                self.segments.discard(key)
        elif kind == MAP:
            self.maps[body[0]] = body[1]
        elif kind == UNMAP:
            end = body[0] + body[1]
            for address in [a for a in self.maps if body[0] <= a < end]:
                del self.maps[address]
        elif kind == STATE:
            allocated, reserved = body[:2]
            self.states.append((time, allocated, reserved))
            if allocated != self.allocated:
                self.wrong_states.append((time, allocated, self.allocated))
        elif kind == OOM:
            self.ooms += 1

    def reserved(self):
        """Bytes of the allocations that have held a block, and of all mappings (in these programs only PyTorch
        maps memory)."""
        return sum(self.driver[address] for address in self.segments) + sum(self.maps.values())


def at_marks(path, marks):
    """(allocated, reserved) at each of the times (ns since the start), and the `Memory` at the end."""
    memory, found, marks = Memory(), [], list(marks)
    for record in records(path):
        while marks and record[0] > marks[0]:
            found.append((memory.allocated, memory.reserved()))
            marks.pop(0)
        memory.take(*record)
    found += [(memory.allocated, memory.reserved())] * len(marks)
    return found, memory


def start_ns(path):
    """The start of the recording, ns of CLOCK_MONOTONIC."""
    with open(path, "rb") as file:
        return struct.unpack_from("<Q", file.read(64), 56)[0]
