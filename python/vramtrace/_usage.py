"""The GPU memory of this process now, and the peak of a part of the program."""

import json
from collections import namedtuple

from . import _recorder
from ._size import show

Library = namedtuple("Library", "name bytes allocations")
Library.__doc__ = "Memory that one library allocated. ``name`` is None if the library is not known."
Site = namedtuple("Site", "bytes allocations library place")
Site.__doc__ = "Memory that one line of the program allocated. ``place`` is a text like ``train.py:7``, or None."
Device = namedtuple(
    "Device",
    "ordinal uuid total used live peak cap allocations frees refused cache_allocated cache_reserved "
    "libraries sites",
)
Device.__doc__ = """This process's use of one GPU. Sizes are in bytes.

``used`` is the figure that a cap limits and that nvidia-smi shows; it includes the CUDA context if its size
is known. ``live`` is the size of all live allocations, and ``peak`` the maximum of ``live``.
``cache_allocated`` and ``cache_reserved`` are the figures of PyTorch's caching allocator, or None without
one. ``libraries`` and ``sites`` list who holds memory now, largest first."""


class Usage(namedtuple("Usage", "pid trace devices")):
    """All GPUs that this process uses."""

    __slots__ = ()

    def _sum(self, what):
        return sum(getattr(device, what) for device in self.devices)

    @property
    def used(self):
        return self._sum("used")

    @property
    def live(self):
        return self._sum("live")

    @property
    def peak(self):
        """The sum of the devices' peaks, which can be from different times."""
        return self._sum("peak")

    def metrics(self, prefix="vram/"):
        """A flat dict of numbers for loggers: sizes in GiB, and refused requests, by device and library."""
        values = {}
        for device in self.devices:
            of = "%scuda%d/" % (prefix, device.ordinal)
            for what in ("used", "live", "peak", "cap", "cache_allocated", "cache_reserved"):
                value = getattr(device, what)
                if value is not None:
                    values[of + what + "_gib"] = value / (1 << 30)
            values[of + "refused"] = device.refused
            for library in device.libraries:
                name = of + "library/%s_gib" % (library.name or "unknown")
                values[name] = values.get(name, 0) + library.bytes / (1 << 30)
        return values

    def __str__(self):
        lines = []
        for device in self.devices:
            cap = "" if device.cap is None else " of %s" % show(device.cap)
            lines.append(
                "cuda:%d  used %s%s, allocations %s, peak %s"
                % (device.ordinal, show(device.used), cap, show(device.live), show(device.peak))
            )
            for site in device.sites:
                lines.append(
                    "    %12s  %6d  %-16s %s"
                    % (show(site.bytes), site.allocations, site.library or "", site.place or "(not known)")
                )
        return "\n".join(lines) or "this process has not used a GPU"


def _device(facts):
    cache = facts["cache"] or {}
    return Device(
        **{name: facts[name] for name in Device._fields if name in facts and name not in ("libraries", "sites")},
        cache_allocated=cache.get("allocated"),
        cache_reserved=cache.get("reserved"),
        libraries=[Library(each["name"], each["bytes"], each["count"]) for each in facts["libraries"]],
        sites=[
            Site(each["bytes"], each["count"], each["library"], each["place"]) for each in facts["sites"]
        ],
    )


def usage(sites=10):
    """The GPU memory of this process now; ``None`` without the recorder.

    ``sites`` is the maximum number of call sites for each device. A call takes about 0.1 ms for each stack
    that holds memory.
    """
    if isinstance(sites, bool) or not isinstance(sites, int) or not 0 <= sites < 1 << 31:
        raise ValueError("sites=%r: the number of call sites must be an int, 0 or more" % (sites,))
    recorder = _recorder.functions()
    if recorder is None:
        return None
    text = recorder.text(recorder.usage, sites)
    if not text:
        # The call came from a callback of the driver, or the recorder failed and printed an error.
        return None
    facts = json.loads(text.decode("utf-8", "replace"))
    return Usage(facts["pid"], facts["trace"], [_device(device) for device in facts["devices"]])


class Peak:
    """The peak of all live allocations inside the ``with`` block: ``bytes``, and ``by_device``.

    ``grown`` is the peak minus what was live at the start. All figures are 0 without the recorder.
    Overlapping ``Peak`` blocks do not disturb each other. Devices 0 to 15 are measured.
    """

    DEVICES = 16

    def __init__(self):
        self.bytes = self.grown = 0
        self.by_device = {}

    def __enter__(self):
        recorder = _recorder.functions()
        self._began = []
        if recorder is not None:
            now = usage(0)
            self._live = {device.ordinal: device.live for device in (now.devices if now else ())}
            self._began = [(device, recorder.peak_begin(device)) for device in range(self.DEVICES)]
        return self

    def __exit__(self, *exception):
        recorder = _recorder.functions()
        for device, before in self._began:
            peak = recorder.peak_end(device, before)
            if peak or device in self._live:
                self.by_device[device] = peak
        self.bytes = sum(self.by_device.values())
        self.grown = sum(
            max(0, peak - self._live.get(device, 0)) for device, peak in self.by_device.items()
        )
