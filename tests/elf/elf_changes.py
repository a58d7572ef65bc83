"""Changes to the tables of an ELF file of 64 bits, little endian, for elf-shapes.py."""
import struct
from pathlib import Path

LOAD, DYNAMIC, NOTE, PHDR, EH_FRAME, STACK, RELRO = 1, 2, 4, 6, 0x6474E550, 0x6474E551, 0x6474E552
GNU_HASH, HASH, SONAME, VERNEED, STRSZ, RELACOUNT = 0x6FFFFEF5, 4, 14, 0x6FFFFFFE, 10, 0x6FFFFFF9


class Elf:
    """A file of 64 bits, little endian, whose tables can be changed in place."""

    def __init__(self, path):
        self.bytes = bytearray(Path(path).read_bytes())

    def get(self, form, at):
        return struct.unpack_from("<" + form, self.bytes, at)[0]

    def put(self, form, at, value):
        struct.pack_into("<" + form, self.bytes, at, value)

    def headers(self, kind=None):
        first, size, count = self.get("Q", 32), self.get("H", 54), self.get("H", 56)
        for at in range(first, first + size * count, size):
            if kind is None or self.get("I", at) == kind:
                yield at

    def offset(self, address):
        for at in self.headers(LOAD):
            start, filed = self.get("Q", at + 16), self.get("Q", at + 32)
            if start <= address < start + filed:
                return address - start + self.get("Q", at + 8)
        return None

    def dynamic(self, tag=None):
        for header in self.headers(DYNAMIC):
            at = self.get("Q", header + 8)
            while at + 16 <= len(self.bytes):
                if tag is None or self.get("Q", at) == tag:
                    yield at
                if self.get("Q", at) == 0:
                    break
                at += 16


def no_section_headers(elf):
    for at, form in ((40, "Q"), (58, "H"), (60, "H"), (62, "H")):
        elf.put(form, at, 0)


def tags(tag, form, offset, value):
    """Writes `value` into each entry of the dynamic table with this tag."""
    return lambda elf: [elf.put(form, at + offset, value) for at in elf.dynamic(tag)]


def headers(kind, act):
    """Calls `act` with the file, the place of each program header of this kind, and that of its segment."""
    return lambda elf: [act(elf, at, elf.get("Q", at + 8)) for at in elf.headers(kind)]


def drop(kind):
    return headers(kind, lambda elf, at, _: elf.put("I", at, 0))  # PT_NULL


def field(kind, offset, value):
    return headers(kind, lambda elf, at, _: elf.put("Q", at + offset, value))


def unwind(form, offset, value):
    """Writes into the header of the unwind tables."""
    return headers(EH_FRAME, lambda elf, _, start: elf.put(form, start + offset, value))


def empty_buckets(elf):
    for at in elf.dynamic(GNU_HASH):
        table = elf.offset(elf.get("Q", at + 8))
        buckets, words = elf.get("I", table), elf.get("I", table + 8)
        for bucket in range(buckets):
            elf.put("I", table + 16 + 8 * words + 4 * bucket, 0)


def full_bloom(elf):
    """Every name passes the filter, none is in a bucket."""
    empty_buckets(elf)
    for at in elf.dynamic(GNU_HASH):
        table = elf.offset(elf.get("Q", at + 8))
        for word in range(elf.get("I", table + 8)):
            elf.put("Q", table + 16 + 8 * word, (1 << 64) - 1)


def bloom_shift(elf):
    for at in elf.dynamic(GNU_HASH):
        elf.put("I", elf.offset(elf.get("Q", at + 8)) + 12, 63)


def unwind_unsorted(elf, at, start):
    for entry in range(start + 12, start + elf.get("Q", at + 32) - 7, 8):
        elf.put("i", entry, (entry * 7919) % 65536 - 32768)


def unwind_rules(elf, _, start):
    """The instructions of the unwind tables are bytes of no meaning."""
    frames = start + 4 + elf.get("i", start + 4)
    for byte in range(frames + 24, min(frames + 240, len(elf.bytes))):
        elf.bytes[byte] ^= 0x5A


def notes_of_nothing(elf, at, start):
    size = elf.get("Q", at + 32)
    elf.bytes[start : start + size] = b"\xff" * size


def load_flags(flags):
    def change(elf, at, _):
        if elf.get("I", at + 4) == 4:  # read only
            elf.put("I", at + 4, flags)

    return headers(LOAD, change)


def moved_headers(elf):
    """The program headers at the end of the file, as programs that change ELF files put them."""
    first, size, count = elf.get("Q", 32), elf.get("H", 54), elf.get("H", 56)
    table = elf.bytes[first : first + size * count]
    elf.bytes.extend(b"\0" * (-len(elf.bytes) % 4096))
    elf.put("Q", 32, len(elf.bytes))
    elf.bytes.extend(table)


def zero_segments(elf):
    for at in list(elf.headers(STACK)) + list(elf.headers(NOTE))[:1]:
        elf.put("I", at, LOAD)
        for field in (8, 16, 24, 32, 40):
            elf.put("Q", at + field, 0)
    # In ascending order of addresses, as a loader may demand.
    first, size, count = elf.get("Q", 32), elf.get("H", 54), elf.get("H", 56)
    rows = [bytes(elf.bytes[first + size * n : first + size * (n + 1)]) for n in range(count)]
    kept = [row for row in rows if struct.unpack_from("<I", row)[0] != LOAD]
    loads = [row for row in rows if struct.unpack_from("<I", row)[0] == LOAD]
    loads.sort(key=lambda row: (struct.unpack_from("<Q", row, 16)[0], struct.unpack_from("<Q", row, 40)[0]))
    elf.bytes[first : first + size * count] = b"".join(kept + loads)


CHANGES = {
    "no-section-headers": no_section_headers,
    "section-headers-beyond-the-end": lambda elf: elf.put("Q", 40, 1 << 40),
    "no-gnu-hash": tags(GNU_HASH, "Q", 0, 0x6000_0001),
    "no-sysv-hash": tags(HASH, "Q", 0, 0x6000_0001),
    "empty-buckets": empty_buckets,
    "full-bloom-filter": full_bloom,
    "bloom-shift": bloom_shift,
    "soname-beyond": tags(SONAME, "Q", 8, 1 << 30),
    "string-size-0": tags(STRSZ, "Q", 8, 0),
    "relative-count-0": tags(RELACOUNT, "Q", 8, 0),
    "no-version-needs": tags(VERNEED, "Q", 0, 0x6000_0001),
    "no-phdr": drop(PHDR),
    "no-notes": drop(NOTE),
    "no-unwind-header": drop(EH_FRAME),
    "no-stack-header": drop(STACK),
    "no-relro": drop(RELRO),
    "unwind-version": unwind("B", 0, 9),
    "unwind-pointer": unwind("i", 4, -0x7FFFFFF0),
    "unwind-count": unwind("I", 8, 0x7FFFFFFF),
    "unwind-unsorted": headers(EH_FRAME, unwind_unsorted),
    "unwind-rules": headers(EH_FRAME, unwind_rules),
    "unwind-address-0": field(EH_FRAME, 16, 0),
    "unwind-address-huge": field(EH_FRAME, 16, 1 << 45),
    "notes-of-nothing": headers(NOTE, notes_of_nothing),
    "notes-beyond": field(NOTE, 40, 1 << 44),
    "gnu-abi": lambda elf: elf.put("B", 7, 3),
    "unknown-abi": lambda elf: elf.put("B", 7, 77),
    "execute-only-headers": load_flags(1),
    "no-access-headers": load_flags(0),
    "moved-headers": moved_headers,
    "zero-segments": zero_segments,
}
