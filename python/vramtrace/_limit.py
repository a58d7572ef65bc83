"""A lower cap for a part of the program."""

import ctypes
import warnings

from . import VramtraceWarning, _recorder, _size

#: The number of devices, from ordinal 0 on, that are limited if no device is named.
ALL = 16


class limit:
    """Lowers the memory cap of this process for a part of the program; a context manager and a decorator.

    ``cap`` is a text like ``"8GiB"`` or a number of bytes. ``device`` is a CUDA ordinal (default: the
    devices 0 to 15). The cap holds for all threads of the process. It is never raised: a lower cap stays,
    and so does a cap that ``vramtrace cap`` sets meanwhile. Memory that is already allocated is not freed.
    While it exceeds the cap, each request is refused.
    """

    def __init__(self, cap, device=None):
        self.bytes = _size.parse(cap)
        if device is not None and not 0 <= device < 64:
            raise ValueError("device=%r: a CUDA ordinal must be 0 to 63" % (device,))
        self.devices = range(ALL) if device is None else (device,)
        self._before = []

    def __enter__(self):
        recorder = _recorder.functions()
        lowered = []
        if recorder is None:
            warnings.warn(
                "vramtrace.limit has no effect: " + _recorder.why_not(), VramtraceWarning, stacklevel=2
            )
        else:
            for device in self.devices:
                before = (ctypes.c_uint64 * 2)()
                if recorder.limit(device, self.bytes, ctypes.byref(before)) == 0:
                    lowered.append((device, before))
        self._before.append(lowered)
        return self

    def __exit__(self, *exception):
        recorder = _recorder.functions()
        for device, before in self._before.pop():
            recorder.unlimit(device, ctypes.byref(before))

    def __call__(self, function):
        from ._wrap import within

        again = lambda: limit(self.bytes, self.devices[0] if len(self.devices) == 1 else None)  # noqa: E731
        return within(again, again, function)
