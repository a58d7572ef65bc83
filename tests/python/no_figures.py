"""The notebook's magic and the pytest plugin where the recorder returns no figures: cell and test run all the same."""

import sys
import types


class Failed(Exception):
    pass


def fail(text, pytrace):
    raise Failed(text)


fail.Exception = Failed
# The parts of pytest that the plugin uses.
sys.modules["pytest"] = types.SimpleNamespace(
    hookimpl=lambda **options: lambda function: function, fail=fail, UsageError=ValueError
)

import vramtrace
from vramtrace import _jupyter, pytest_plugin

ran = []
_jupyter.is_active = lambda: True
_jupyter.usage = lambda sites: None
_jupyter._run = ran.append
_jupyter.vram("")
_jupyter.vram("", "cell")
print(ran)

vramtrace.is_active = lambda: True
vramtrace.usage = lambda sites=10: None


class Item:
    nodeid = "a test"
    user_properties = []

    def __init__(self, **marks):
        self.marks = marks

    def get_closest_marker(self, name):
        return self.marks.get(name)


class Outcome:
    excinfo = None

    def force_exception(self, error):
        print("failed: %s" % error)


plugin = pytest_plugin.Plugin(None)
for marks in {}, {"vram_limit": types.SimpleNamespace(args=["1GiB"], kwargs={})}:
    call = plugin.pytest_runtest_call(Item(**marks))
    next(call)
    try:
        call.send(Outcome())
    except StopIteration:
        print("ended", plugin.results)
