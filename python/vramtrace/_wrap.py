"""Wraps functions in phases and limits."""

import functools
import inspect
import sys
import types

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
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(within(plain, across, function.__func__))
    if inspect.isclass(function):
        raise TypeError("%r is a class; decorate its methods" % (function,))
    if not callable(function):
        raise TypeError("%r is not a function" % (function,))
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def wrapper(*arguments, **named):
            with across():
                inner = function(*arguments, **named)
                step = _first_step(inner)
                # What `yield from` does for other generators: whatever is sent or thrown in goes to `inner`.
                while True:
                    try:
                        value = await step
                    except StopAsyncIteration:
                        return
                    thrown = None
                    try:
                        sent = yield value
                    except BaseException as exception:
                        thrown = exception
                    # Not inside `except`: an exception that `inner` raises would get `thrown` as its context.
                    step = inner.asend(sent) if thrown is None else inner.athrow(thrown)
                    # The exception refers to this frame: without this both stay until the next collection.
                    del thrown

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

        if function.__code__.co_flags & inspect.CO_ITERABLE_COROUTINE:
            wrapper = types.coroutine(wrapper)

    else:

        @functools.wraps(function)
        def wrapper(*arguments, **named):
            with plain():
                return function(*arguments, **named)

    return wrapper


def _first_step(inner):
    """Begins an asynchronous generator that the event loop does not see: it sees the one around it, and would
    close both at its end."""
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        return inner.__anext__()
    finally:
        sys.set_asyncgen_hooks(*hooks)
