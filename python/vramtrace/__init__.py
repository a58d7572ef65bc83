"""Reports and limits the GPU memory of this process, through the vramtrace recorder.

The recorder is loaded if the process was started with ``vramtrace run``, or with ``libvramtrace.so`` in
``LD_PRELOAD``. Without it every function still works: phases and marks do nothing, :func:`usage` returns
``None``, and :func:`limit` warns.
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

# The module that defines each name. Modules are imported on first use: importing ctypes alone takes
# longer than importing this module.
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
    """An operation failed; the message says why."""


class VramtraceWarning(UserWarning):
    """A call has no effect, because the recorder is not loaded."""


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
    """The functions that the recorder exports; ``None`` without the recorder."""
    global _recorder_module
    if _recorder_module is None:
        from . import _recorder as module

        _recorder_module = module
    return _recorder_module.functions()


class phase:
    """Records a phase of the program in the trace. ``report --by phase`` and timelines show it.

    A context manager, and a decorator for plain, asynchronous and generator functions::

        with vramtrace.phase("forward"):
            ...

        @vramtrace.phase("step")
        def step(): ...

    Numbers may be given as keywords. Their name and value are part of the phase's name, ``batch=6``, from which
    ``vramtrace fits`` knows the batch of a step::

        with vramtrace.phase(batch=len(images)):
            ...

    The phases of one thread nest. The phase of a decorated asynchronous function or generator belongs to
    no thread, because such a function is suspended and resumed.
    """

    __slots__ = ("name",)

    def __init__(self, name: "str | None" = None, **numbers: int) -> None:
        if not isinstance(name, str) and (name is not None or not numbers):
            raise TypeError(
                "the name of a phase must be a str, not %s; use @phase(\"name\") or phase(batch=6)"
                % type(name).__name__
            )
        parts = [] if name is None else [name]
        self.name = " ".join(parts + [_number(*item) for item in numbers.items()])

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


def _number(name, value):
    """``batch=6``. The value is whatever stands for an integer, as an integer of NumPy does."""
    from operator import index

    try:
        return "%s=%d" % (name, index(value))
    except TypeError:
        raise TypeError("%s=%r: must be an integer, as in phase(batch=6)" % (name, value)) from None


def mark(name: str) -> None:
    """Records a mark (a named point in time) in the trace."""
    if not isinstance(name, str):
        raise TypeError("the name of a mark must be a str, not %s" % type(name).__name__)
    functions = _functions()
    if functions is not None:
        text = name.encode("utf-8", "replace")
        functions.mark(text, len(text))


def library() -> str:
    """The absolute path of this package's ``libvramtrace.so``, for ``LD_PRELOAD``."""
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
