"""The functions that the recorder exports (shim/src/hooks/entry/python_api.rs), and their direct users."""

import ctypes
import os

from . import VramtraceError

#: The version of the recorder's interface that this package knows.
KNOWN = 1


class Functions:
    """The functions of the loaded recorder. ctypes releases the GIL while one of them runs."""

    def __init__(self, library):
        name, size = ctypes.c_char_p, ctypes.c_size_t
        u32, u64, pair = ctypes.c_uint32, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64 * 2)

        def function(what, result, *arguments):
            found = getattr(library, "vramtrace_python_" + what)
            found.restype, found.argtypes = result, arguments
            return found

        self.state = function("state", u32)
        self.push = function("push", None, name, size)
        self.pop = function("pop", None)
        self.start = function("start", u64, name, size)
        self.end = function("end", None, u64)
        self.mark = function("mark", None, name, size)
        self.usage = function("usage", size, ctypes.c_void_p, size, u32)
        self.trace = function("trace", size, ctypes.c_void_p, size)
        self.limit = function("limit", ctypes.c_int32, u32, u64, pair)
        self.unlimit = function("unlimit", None, u32, pair)
        self.peak_begin = function("peak_begin", u64, u32)
        self.peak_end = function("peak_end", u64, u32, u64)

    def text(self, function, *more):
        """The bytes that a function writes into its buffer."""
        room = 1 << 14
        while True:
            buffer = ctypes.create_string_buffer(room)
            length = function(buffer, room, *more)
            if length <= room:
                return buffer.raw[:length]
            # Twice as much: the text may have grown by the next call.
            room = 2 * length


_functions = None
_looked = False


def functions():
    """The functions of the recorder; ``None`` if it is not loaded, or has another interface version."""
    global _functions, _looked
    if not _looked:
        # The symbols of a preloaded library are in the program's global scope.
        library = ctypes.CDLL(None)
        try:
            version = library.vramtrace_python_api
        except AttributeError:
            found = None
        else:
            version.restype = ctypes.c_uint32
            found = version()
        if found is not None:
            if found != KNOWN:
                import warnings

                from . import VramtraceWarning

                warnings.warn(
                    "the recorder in this process has version %d of the Python interface, and this package "
                    "needs version %d: install the same release of both" % (found, KNOWN),
                    VramtraceWarning,
                    stacklevel=3,
                )
            else:
                _functions = Functions(library)
        _looked = True
    return _functions


def is_active():
    """Whether the recorder is loaded in this process."""
    return functions() is not None


def trace():
    """The path of this process's trace. The file contains every event up to this call.

    ``None`` if there is no trace: the recorder is not loaded, ``VRAMTRACE_OUT=off`` is set, the trace
    could not be written, or the process has not used a GPU yet.
    """
    recorder = functions()
    if recorder is None:
        return None
    return os.fsdecode(recorder.text(recorder.trace)) or None


def snapshot(path):
    """Copies the trace as it is now to the new file ``path``, and returns the path.

    Recording continues. All commands of ``vramtrace`` read the copy. Its mode is 0600. An existing file is
    not overwritten: ``FileExistsError``.
    """
    source = trace()
    if source is None:
        raise VramtraceError("there is no trace to copy: " + why_not())
    path = os.fspath(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(source, "rb") as reader:
        with os.fdopen(os.open(path, flags, 0o600), "wb") as writer:
            try:
                while True:
                    block = reader.read(1 << 20)
                    if not block:
                        break
                    # The file is sparse: windows without records are holes.
                    if block.count(0) == len(block):
                        writer.seek(len(block), os.SEEK_CUR)
                    else:
                        writer.write(block)
                writer.truncate()
            except BaseException:
                os.unlink(path)
                raise
    return path


def why_not():
    """The reason why nothing is recorded."""
    recorder = functions()
    if recorder is None:
        return (
            "the recorder is not loaded in this process; start it with `vramtrace run python ...`, or with "
            "libvramtrace.so in LD_PRELOAD"
        )
    if recorder.state() & 1 == 0:
        return "this process has not used a GPU yet"
    return "the recorder writes no trace (VRAMTRACE_OUT=off, or it could not write one)"
