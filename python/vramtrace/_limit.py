"""A lower cap for a part of the program."""

import ctypes
import warnings

from . import VramtraceWarning, _recorder, _size

#: Devices that are limited when none is named.
ALL = 16


class limit:
    """Lowers the cap of this process while it is entered; a context manager and a decorator.

    ``cap`` is ``"8GiB"`` or a number of bytes; ``device`` the CUDA ordinal (default: each device). Never
    raises a cap: what is lower already stays, and so does what somebody else orders meanwhile. The cap is
    the whole process's, all its threads included. Memory that the process has stays its own; while that
    is more than the cap, each request is refused.
    """

    def __init__(self, cap, device=None):
        self.bytes = _size.parse(cap)
        if device is not None and not 0 <= device < 64:
            raise ValueError("device=%r: a CUDA ordinal is 0 to 63" % (device,))
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
