"""Prints, for many code objects, their line table and the line of every instruction.

One JSON object a line: {"minor", "first", "table" (hex), "lines": [[byte offset, line or null], ..]}.
"""
import dis
import json
import os
import sys
import types

SOURCES = [os.__file__, dis.__file__, json.__file__, types.__file__, __file__]

ODD = '''
def loops(n):
    for i in range(n):
        try:
            with open("x") as f:
                pass
        except (ValueError,
                OSError) as error:
            raise RuntimeError(
                "far",

                "away",
            ) from error
        finally:
            n += 1
    return [
        a
        for a in range(3)
        if a
    ]
%s
async def waits(x):
    async with x:
        await x

def after(): return (yield
    1)
''' % ("\n" * 400)


def codes(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


def lines_of(code):
    """Of each instruction, by Python itself."""
    length = len(code.co_code)
    if hasattr(code, "co_lines"):
        out = [None] * length
        for start, end, line in code.co_lines():
            for at in range(start, min(end, length)):
                out[at] = line
        return out
    starts = list(dis.findlinestarts(code))
    out = [code.co_firstlineno] * length
    for index, (start, line) in enumerate(starts):
        end = starts[index + 1][0] if index + 1 < len(starts) else length
        for at in range(start, end):
            out[at] = line
    return out


def main():
    minor = sys.version_info[1]
    texts = [open(path, encoding="utf-8").read() for path in SOURCES] + [ODD]
    for number, text in enumerate(texts):
        for code in codes(compile(text, "file%d.py" % number, "exec")):
            table = code.co_linetable if minor >= 10 else code.co_lnotab
            found = lines_of(code)
            lines = [[at, found[at]] for at in range(0, len(found), 2)]
            print(json.dumps({
                "minor": minor,
                "first": code.co_firstlineno,
                "table": table.hex(),
                "lines": lines,
            }))


main()
