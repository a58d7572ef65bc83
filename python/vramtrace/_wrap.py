"""Wraps functions in phases and limits."""

import functools
import inspect

from . import _functions


class _Range:
    """A phase that belongs to no thread: any thread may end it."""

    def __init__(self, name):
        self.name = name.encode("utf-8", "replace")

    def __enter__(self):
        self.functions = _functions()
        if self.functions is not None:
            self.number = self.functions.start(self.name, len(self.name))

    def __exit__(self, *exception):
        if self.functions is not None:
            self.functions.end(self.number)


def in_phase(phase, function):
    """``function``, with each call recorded as a phase."""
    return within(lambda: phase, lambda: _Range(phase.name), function)


def within(plain, across, function):
    """``function``, with each call inside a context manager: ``plain()`` for ordinary functions, ``across()``
    for functions that are suspended and resumed."""
    if not callable(function):
        raise TypeError("%r is not a function" % (function,))
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def wrapper(*arguments, **named):
            with across():
                async for each in function(*arguments, **named):
                    yield each

    elif inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapper(*arguments, **named):
            with across():
                return await function(*arguments, **named)

    elif inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def wrapper(*arguments, **named):
            with across():
                return (yield from function(*arguments, **named))

    else:

        @functools.wraps(function)
        def wrapper(*arguments, **named):
            with plain():
                return function(*arguments, **named)

    return wrapper
