"""Decorated generators behave as the plain ones, whatever is sent, thrown in or left open. Prints what differs.

Each shape of a generator is driven by the same random operations, bare, in a phase and under a limit, and what
it does and logs is compared: values, exceptions with their contexts, and when `finally` runs."""

import asyncio
import contextlib
import gc
import inspect
import random
import sys
import types
import warnings

import vramtrace

warnings.simplefilter("ignore", vramtrace.VramtraceWarning)


class Own(Exception):
    pass


def shapes(log):
    async def plain(*values):
        for each in values:
            log.append(("sent", (yield each)))

    async def catches(n):
        for each in range(n):
            try:
                log.append(("sent", (yield each)))
            except ValueError as error:
                log.append(("caught", repr(error)))
        raise Own("end")

    async def cleans_up(n):
        try:
            for each in range(n):
                await asyncio.sleep(0)
                yield each
        finally:
            log.append("finally begins")
            await asyncio.sleep(0)
            log.append("finally ends")

    async def translates(n):
        for each in range(n):
            try:
                yield each
            except ValueError as error:
                raise Own("translated") from error
            except KeyError:
                raise Own("in a handler")

    async def goes_on(n):
        failed = None
        try:
            yield "first"
        except ValueError as error:
            failed = repr(error)
        log.append(failed)
        raise Own("later")

    async def ignores_the_end(n):
        for each in range(n):
            try:
                yield each
            except GeneratorExit:
                log.append("ignored")

    async def stops_oddly(n):
        yield 1
        raise StopIteration(2)

    async def empty(n):
        return
        yield

    return [plain, catches, cleans_up, translates, goes_on, ignores_the_end, stops_oddly, empty]


def described(error):
    links = []
    while error is not None and len(links) < 5:
        links.append("%s%r" % (type(error).__name__, tuple(map(str, error.args))))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return " <- ".join(links)


async def driven(generator, seed, log):
    choice = random.Random(seed)
    for _ in range(choice.randrange(1, 8)):
        operation = choice.choice(["next", "next", "send", "value", "key", "stop", "exit", "cancel", "close"])
        try:
            if operation == "next":
                log.append(("got", await generator.__anext__()))
            elif operation == "send":
                log.append(("got", await generator.asend(choice.randrange(100))))
            elif operation == "close":
                log.append(("closed", await generator.aclose()))
            else:
                error = {
                    "value": ValueError("in"),
                    "key": KeyError("in"),
                    "stop": StopAsyncIteration("in"),
                    "exit": GeneratorExit("in"),
                    "cancel": asyncio.CancelledError("in"),
                }[operation]
                log.append(("got", await generator.athrow(error)))
        except BaseException as error:
            log.append((operation, described(error)))


def run(decorate, index, seed):
    log = []
    function = decorate(shapes(log)[index])

    async def main():
        generator = function(3)
        await driven(generator, seed, log)
        if seed % 3 == 0 and function.__name__ != "ignores_the_end":
            # Left open: the event loop closes it.
            del generator
            gc.collect()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            log.append("left")
        elif seed % 3 == 1:
            shapes.kept = generator

    loop = asyncio.new_event_loop()
    problems = []
    loop.set_exception_handler(lambda loop, context: problems.append(context["message"].split(" ")[0]))
    try:
        loop.run_until_complete(main())
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
        shapes.kept = None
    return log + [sorted(problems)]


def differences():
    decorators = [vramtrace.phase("part"), vramtrace.limit("1GiB")]
    for index in range(len(shapes([]))):
        for seed in range(SEEDS):
            expected = run(lambda function: function, index, seed)
            for decorate in decorators:
                found = run(decorate, index, seed)
                if found != expected:
                    name = shapes([])[index].__name__
                    yield "%s, seed %d:\n  %s\n  %s" % (name, seed, expected, found)


@contextlib.asynccontextmanager
@vramtrace.phase("x")
async def survives():
    try:
        yield 7
    except ValueError:
        pass


async def around():
    async with survives() as value:
        raise ValueError(value)
    return "survived"


class Class:
    @vramtrace.phase("a")
    @staticmethod
    def on_class(value):
        return value

    @vramtrace.phase("b")
    @classmethod
    def of_class(cls, value):
        return cls, value

    @vramtrace.phase("c")
    async def method(self, *values):
        for value in values:
            yield value


@vramtrace.phase("d")
@types.coroutine
def old_coroutine():
    yield
    return 5


async def awaited():
    return await old_coroutine()


SEEDS = int(sys.argv[1]) if len(sys.argv) > 1 else 60
found = list(differences())
print("\n".join(found[:5]) or "alike")
print(asyncio.new_event_loop().run_until_complete(around()))
print(Class.on_class(1), Class.of_class(2) == (Class, 2), inspect.isasyncgenfunction(Class.method))
print(asyncio.new_event_loop().run_until_complete(awaited()))
try:
    vramtrace.phase("e")(Class)
except TypeError as error:
    print("class" in str(error))
