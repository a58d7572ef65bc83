"""What PyTorch's viewers need of a memory snapshot, checked with Python's own pickle module.

opcodes FILE         only the opcodes that the viewer in the browser knows
rules FILE           the viewers can go back from the end to the beginning
same BEFORE AFTER    two snapshots tell the same segments, blocks, states and actions
facts FILE           a few figures, as JSON
viewer FILE VIZ      torch/cuda/_memory_viz.py (at VIZ) takes it
"""
import gzip
import importlib.util
import json
import pickle
import pickletools
import sys

OPCODES = set(
    "PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT SHORT_BINUNICODE "
    "BINUNICODE EMPTY_LIST APPEND APPENDS LIST EMPTY_DICT DICT SETITEM SETITEMS EMPTY_TUPLE TUPLE TUPLE1 "
    "TUPLE2 TUPLE3 BINPUT LONG_BINPUT BINGET LONG_BINGET MEMOIZE".split()
)


def raw(path):
    data = open(path, "rb").read()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def load(path):
    return pickle.loads(raw(path))


def opcodes(path):
    marks, depth, top = [], 0, 0
    for opcode, argument, at in pickletools.genops(raw(path)):
        name = opcode.name
        assert name in OPCODES, f"byte {at}: {name}"
        if name == "PROTO":
            assert argument == 4, argument
        if name == "LONG1":
            assert argument.bit_length() < 64, argument
        if name == "MARK":
            marks.append(depth)
        elif name == "SETITEMS":
            depth = marks.pop()
        elif name in ("APPEND", "TUPLE2"):
            depth -= 1
        elif name not in ("PROTO", "FRAME", "STOP", "MEMOIZE"):
            depth += 1
        top = max(top, depth)
    assert depth == 1, depth


def rules(path):
    snapshot = load(path)
    assert snapshot["device_traces"], "no list for device 0"
    for segment in snapshot["segments"]:
        at = segment["address"]
        assert isinstance(segment["device"], int) and isinstance(segment["stream"], int)
        for block in segment["blocks"]:
            assert block["address"] == at, "blocks do not tile their segment"
            at += block["size"]
            assert 0 <= block["requested_size"] <= block["size"] and block["size"] > 0
            assert block["state"] in ("active_allocated", "active_pending_free", "inactive")
        assert at == segment["address"] + segment["total_size"]
        sizes = {state: sum(b["size"] for b in segment["blocks"] if b["state"] == state) for state in ("active_allocated", "active_pending_free")}
        assert segment["allocated_size"] == sizes["active_allocated"]
        assert segment["active_size"] == sum(sizes.values())
    for device, trace in enumerate(snapshot["device_traces"]):
        rewind(device, trace, [s for s in snapshot["segments"] if s["device"] == device])


def rewind(device, trace, segments):
    """From the end to the beginning, as the viewer does it, and forward again."""
    spans = Spans()
    blocks = {}
    for segment in segments:
        spans.add(segment["address"], segment["total_size"], segment["stream"])
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                blocks[block["address"]] = [block["requested_size"], block["state"] == "active_pending_free"]
    for entry in reversed(trace):
        address, size, action = entry.get("addr"), entry["size"], entry["action"]
        assert isinstance(entry["time_us"], int) and isinstance(entry["frames"], list)
        if action in ("segment_alloc", "segment_map"):
            spans.remove(address, size, entry["stream"])
            assert not any(address <= b < address + size for b in blocks), f"{entry}: blocks before their segment"
        elif action in ("segment_free", "segment_unmap"):
            spans.add(address, size, entry["stream"])
        elif action == "alloc":
            assert blocks.pop(address)[0] == size, entry
            assert spans.holds(address, size), f"{entry}: in no segment"
        elif action == "free_completed":
            assert address not in blocks, f"{entry}: completed, and still there"
            blocks[address] = [size, True]
            assert spans.holds(address, size), f"{entry}: in no segment"
        elif action == "free_requested":
            assert blocks[address] == [size, True], f"{entry}: requested without being completed"
            blocks[address][1] = False
        else:
            assert action == "oom" and "device_free" in entry and address is None, entry


class Spans:
    """Ranges with a stream; adjacent ones of a stream are one."""

    def __init__(self):
        self.all = []

    def add(self, start, size, stream):
        assert not any(s < start + size and start < e for s, e, _ in self.all), "segments overlap"
        self.all.append((start, start + size, stream))
        self.all.sort()
        merged = []
        for s, e, stream in self.all:
            if merged and merged[-1][1] == s and merged[-1][2] == stream:
                merged[-1] = (merged[-1][0], e, stream)
            else:
                merged.append((s, e, stream))
        self.all = merged

    def remove(self, start, size, stream):
        for index, (s, e, found) in enumerate(self.all):
            if s <= start and start + size <= e and found == stream:
                rest = [(s, start, stream), (start + size, e, stream)]
                self.all[index : index + 1] = [r for r in rest if r[0] < r[1]]
                return
        raise AssertionError(f"segment {start:#x} of {size} bytes is not in one segment of its stream")

    def holds(self, start, size):
        return any(s <= start and start + size <= e for s, e, _ in self.all)


def same(before, after):
    before, after = load(before), load(after)
    assert before["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] == after["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"]
    assert len(before["segments"]) == len(after["segments"])
    for a, b in zip(before["segments"], after["segments"]):
        for key in a:
            # Torch gives a segment's frames only while its first block is in use.
            if key not in ("blocks", "frames"):
                assert a[key] == b[key], (key, a[key], b[key])
        assert len(a["blocks"]) == len(b["blocks"])
        for x, y in zip(a["blocks"], b["blocks"]):
            # What a free block was asked for, when it was none, is no part of a history.
            free = x["state"] == "inactive"
            x, y = ({k: v for k, v in block.items() if not (free and k == "requested_size")} for block in (x, y))
            assert x == y, (x, y)
    assert len(before["device_traces"]) == len(after["device_traces"])
    for a, b in zip(before["device_traces"], after["device_traces"]):
        assert [e["action"] for e in a] == [e["action"] for e in b]
        for x, y in zip(a, b):
            assert x.keys() == y.keys(), (x, y)
            # A trace does not tell who freed; a free and its completion are one event there.
            freed = "free" in x["action"]
            loose = {"frames"} if freed else set()
            loose |= {"stream"} if x["action"] == "oom" else set()
            loose |= {"time_us"} if x["action"] == "free_completed" else set()
            for key in x.keys() - loose:
                assert x[key] == y[key], (key, x, y)
            assert x["time_us"] - 50 <= y["time_us"] <= x["time_us"], (x, y)


def facts(path):
    snapshot = load(path)
    count = {}
    for entry in sum(snapshot["device_traces"], []):
        count[entry["action"]] = count.get(entry["action"], 0) + 1
    segments = snapshot["segments"]
    print(
        json.dumps(
            {
                "devices": len(snapshot["device_traces"]),
                "actions": count,
                "segments": [[s["device"], s["address"], s["total_size"], s["allocated_size"], s["is_expandable"]] for s in segments],
                "states": [[b["state"], b["size"], [f["name"] for f in b["frames"]]] for s in segments for b in s["blocks"]],
                "metadata": sorted({e["user_metadata"] for t in snapshot["device_traces"] for e in t}),
            }
        )
    )


def viewer(path, viz):
    spec = importlib.util.spec_from_file_location("_memory_viz", viz)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    snapshot = module._read(path) if hasattr(module, "_read") else load(path)
    text = lambda lines: lines  # noqa: E731: its own default fetches a script from the network
    assert module.segsum(snapshot)
    for device, trace in enumerate(snapshot["device_traces"]):
        assert module.trace({**snapshot, "device_traces": [trace]}) if trace else True
    if snapshot["segments"]:
        assert module.segments(snapshot, text) and module.memory(snapshot, text)
    html = module.trace_plot(snapshot)
    assert "MemoryViz" in html and len(html) > len(raw(path))
    assert "MemoryViz" in module.segment_plot(snapshot)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
    print("ok") if sys.argv[1] != "facts" else None
