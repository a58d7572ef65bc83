"""Who holds GPU memory in this process, under the recorder of vramtrace.

Everything here works without the recorder too: phases and marks then do nothing, :func:`usage` gives
``None``, and :func:`limit` warns. The recorder is there when the process was started by
``vramtrace run`` or with ``LD_PRELOAD`` naming ``libvramtrace.so``.
"""

__all__ = [
    "Device",
    "Library",
    "Peak",
    "Site",
    "Usage",
    "VramtraceError",
    "VramtraceWarning",
    "__version__",
    "is_active",
    "library",
    "limit",
    "mark",
    "phase",
    "snapshot",
    "trace",
    "usage",
]

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._limit import limit
    from ._recorder import is_active, snapshot, trace
    from ._usage import Device, Library, Peak, Site, Usage, usage

# Where each name is defined: modules are loaded when they are needed, as ctypes alone takes longer
# than this one.
_LAZY = {
    "Device": "_usage",
    "Library": "_usage",
    "Peak": "_usage",
    "Site": "_usage",
    "Usage": "_usage",
    "usage": "_usage",
    "limit": "_limit",
    "is_active": "_recorder",
    "snapshot": "_recorder",
    "trace": "_recorder",
}


class VramtraceError(RuntimeError):
    """What was asked for cannot be done, and why."""


class VramtraceWarning(UserWarning):
    """Something has no effect, because the recorder is not there."""


def __getattr__(name):
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError("module 'vramtrace' has no attribute %r" % name)
    from importlib import import_module

    value = getattr(import_module("." + module, __name__), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted(set(globals()) | set(__all__))


_recorder_module = None


def _functions():
    """The recorder's functions; ``None`` without a recorder."""
    global _recorder_module
    if _recorder_module is None:
        from . import _recorder as module

        _recorder_module = module
    return _recorder_module.functions()


class phase:
    """A phase of the program, in the trace: ``report --by-phase`` and timelines show it.

    A context manager and a decorator, for plain, asynchronous and generator functions::

        with vramtrace.phase("forward"):
            ...

        @vramtrace.phase("step")
        def step(): ...

    Phases of a thread lie in each other. A decorated asynchronous function or generator is a phase of
    no thread, since it is left and entered again.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(
                "the name of a phase is a str, not %s; use @phase(\"name\")" % type(name).__name__
            )
        self.name = name

    def __enter__(self) -> "phase":
        functions = _functions()
        if functions is not None:
            name = self.name.encode("utf-8", "replace")
            functions.push(name, len(name))
        return self

    def __exit__(self, *exception: object) -> None:
        functions = _functions()
        if functions is not None:
            functions.pop()

    def __call__(self, function):
        from ._wrap import in_phase

        return in_phase(self, function)


def mark(name: str) -> None:
    """A moment of the program, in the trace."""
    if not isinstance(name, str):
        raise TypeError("the name of a mark is a str, not %s" % type(name).__name__)
    functions = _functions()
    if functions is not None:
        text = name.encode("utf-8", "replace")
        functions.mark(text, len(text))


def library() -> str:
    """The absolute path of ``libvramtrace.so`` that came with this package, for ``LD_PRELOAD``."""
    import os

    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libvramtrace.so")
    if not os.path.exists(path):
        raise VramtraceError(
            "%s does not exist: this package was not installed from a wheel; build the recorder "
            "(cargo build --release --workspace) and use target/release/libvramtrace.so" % path
        )
    return path


def load_ipython_extension(ipython) -> None:
    """``%load_ext vramtrace``"""
    from ._jupyter import load

    load(ipython)


def unload_ipython_extension(ipython) -> None:
    from ._jupyter import unload

    unload(ipython)
