from typing import Any, Callable, List, NamedTuple, Optional, TypeVar, Union

__version__: str

class VramtraceError(RuntimeError): ...
class VramtraceWarning(UserWarning): ...

class Library(NamedTuple):
    """Memory that one library asked for."""
    name: Optional[str]
    bytes: int
    count: int

class Site(NamedTuple):
    """Memory that was asked for at one line of the program."""
    bytes: int
    count: int
    library: Optional[str]
    place: Optional[str]

class Device(NamedTuple):
    """One GPU, as this process uses it. Sizes are bytes."""
    ordinal: int
    uuid: Optional[str]
    total: Optional[int]
    used: int
    live: int
    peak: int
    cap: Optional[int]
    allocations: int
    frees: int
    refused: int
    cache_allocated: Optional[int]
    cache_reserved: Optional[int]
    libraries: List[Library]
    sites: List[Site]

class Usage(NamedTuple):
    """All GPUs that this process uses. ``str()`` of it is a short table."""
    pid: int
    trace: Optional[str]
    devices: List[Device]
    @property
    def used(self) -> int: ...
    @property
    def live(self) -> int: ...
    @property
    def peak(self) -> int: ...
    def metrics(self, prefix: str = ...) -> "dict[str, float]": ...

_F = TypeVar("_F", bound=Callable[..., Any])

class phase:
    name: str
    def __init__(self, name: str) -> None: ...
    def __enter__(self) -> phase: ...
    def __exit__(self, *exception: object) -> None: ...
    def __call__(self, function: _F) -> _F: ...

class limit:
    def __init__(self, cap: Union[str, int], device: Optional[int] = ...) -> None: ...
    def __enter__(self) -> limit: ...
    def __exit__(self, *exception: object) -> None: ...
    def __call__(self, function: _F) -> _F: ...

class Peak:
    """The most memory that allocations took while this was entered, by device."""
    bytes: int
    grown: int
    by_device: "dict[int, int]"
    def __enter__(self) -> Peak: ...
    def __exit__(self, *exception: object) -> None: ...

def is_active() -> bool: ...
def mark(name: str) -> None: ...
def usage(sites: int = ...) -> Optional[Usage]: ...
def trace() -> Optional[str]: ...
def snapshot(path: Any) -> str: ...
def library() -> str: ...
def load_ipython_extension(ipython: Any) -> None: ...
def unload_ipython_extension(ipython: Any) -> None: ...
