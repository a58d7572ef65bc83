# Run by embedded.c: allocates and prints what Python says of its stack, as frames_situations.py does.
import sys


def show(size, frame):
    frames = []
    while frame is not None:
        code = frame.f_code
        frames.append([getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno])
        frame = frame.f_back
    print('{"size": %d, "frames": %s}' % (size, repr(frames).replace("'", '"')))


def one():
    show(take(), sys._getframe())  # noqa


def two():
    one()
    again(one)  # noqa


def three():
    again(two)  # noqa


def deep(depth):
    if depth:
        deep(depth - 1)
    else:
        three()


class Thing:
    def method(self):
        again(lambda: deep(3))  # noqa


one()
two()
three()
deep(50)
Thing().method()
