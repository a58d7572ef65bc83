"""The Python package, the pytest plugin and the Jupyter magic, as installed from the wheel, under the
recorder on the simulated driver. Run by packaging/test-wheel.sh."""

import os
import subprocess
import sys
import sysconfig
import textwrap

import pytest

#: A program's way to the driver.
DRIVER = '''
import ctypes

lib = ctypes.CDLL("libcuda.so.1")


def must(result):
    if result:
        raise MemoryError("driver: %d" % result)


def init():
    device, context = ctypes.c_int(), ctypes.c_void_p()
    must(lib.cuInit(0))
    must(lib.cuDeviceGet(ctypes.byref(device), 0))
    must(lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    must(lib.cuCtxSetCurrent(context))


def alloc(mib):
    address = ctypes.c_uint64()
    must(lib.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(mib << 20)))
    return address


def free(address):
    must(lib.cuMemFree_v2(address))


def fails(kind, words, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError((arguments, named))
'''


class Recorded:
    """Programs in a directory, under the recorder."""

    def __init__(self, directory):
        self.directory = directory
        self.command = os.path.join(sysconfig.get_path("scripts"), "vramtrace")
        (directory / "driver.py").write_text(DRIVER)

    def write(self, name, text):
        (self.directory / name).write_text(textwrap.dedent(text))

    def line(self, name, text):
        """`driver.py:22` of the line that has this text."""
        lines = (self.directory / name).read_text().splitlines()
        [number] = [number for number, line in enumerate(lines, 1) if text in line]
        return "%s:%d" % (name, number)

    def vramtrace(self, *arguments):
        return self._run([self.command, *arguments])

    def run(self, *command):
        return self.vramtrace("run", "--simulate", "--out", "out", "--", sys.executable, *command)

    def python(self, text):
        """Runs a program; its standard output, if it ended well and nothing was on stderr but ours."""
        self.write("program.py", text)
        run = self.run("program.py")
        assert run.returncode == 0, run.stderr
        return run.stdout

    def bare(self, *command):
        """Without the recorder."""
        return self._run([sys.executable, *command])

    def _run(self, command):
        return subprocess.run(
            command, cwd=str(self.directory), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            universal_newlines=True, timeout=120, env=dict(os.environ, COLUMNS="160"),
        )


@pytest.fixture
def recorded(tmp_path):
    return Recorded(tmp_path)
