"""A pytest plugin that measures the GPU memory of each test. It does nothing without ``--vramtrace``.

``pytest --vramtrace``                      prints a summary of the tests by their peak
``@pytest.mark.vram_limit("2GiB")``         fails a test whose peak exceeds this size
``@pytest.mark.vram_no_leaks``              fails a test that leaves memory allocated; ``allow="1MiB"``

The peak of a test is the peak of the live allocations minus what was live when the test started. Run pytest
under the recorder: ``vramtrace run pytest --vramtrace``. Without the recorder nothing is measured, and tests
with these marks fail.
"""

import gc
import sys

import pytest

from . import _size

LISTED = 10


def pytest_addoption(parser):
    group = parser.getgroup("vramtrace")
    group.addoption(
        "--vramtrace",
        action="store_true",
        help="measure the GPU memory of each test; needs `vramtrace run pytest --vramtrace`",
    )
    group.addoption(
        "--vramtrace-top",
        type=int,
        default=LISTED,
        metavar="N",
        help="number of tests that the summary lists, highest peak first (default: %d)" % LISTED,
    )


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "vram_limit(size): with --vramtrace, fail if the test takes more GPU memory than this at once",
    )
    config.addinivalue_line(
        "markers",
        "vram_no_leaks(allow=0): with --vramtrace, fail if the test leaves more GPU memory than this behind",
    )
    if config.getoption("--vramtrace"):
        config.pluginmanager.register(Plugin(config), "vramtrace-plugin")


def _free_what_is_unused():
    """Frees garbage and PyTorch's cache, so that the memory before and after a test can be compared."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _by_site(usage):
    held = {}
    for device in usage.devices:
        for site in device.sites:
            held[(device.ordinal, site.library, site.place)] = site.bytes
    return held


def _size_of(mark, value):
    try:
        return _size.parse(value)
    except (TypeError, ValueError) as error:
        raise pytest.UsageError("@pytest.mark.%s: %s" % (mark, error)) from None


def _limit_of(item):
    mark = item.get_closest_marker("vram_limit")
    if mark is None:
        return None
    values = list(mark.args) + list(mark.kwargs.values())
    if len(values) != 1 or set(mark.kwargs) - {"size"}:
        raise pytest.UsageError('@pytest.mark.vram_limit takes one size, like vram_limit("2GiB")')
    return _size_of("vram_limit", values[0])


def _allowed_of(item):
    mark = item.get_closest_marker("vram_no_leaks")
    if mark is None:
        return None
    if mark.args or set(mark.kwargs) - {"allow"}:
        raise pytest.UsageError('@pytest.mark.vram_no_leaks takes only allow=SIZE, like allow="1MiB"')
    return _size_of("vram_no_leaks", mark.kwargs.get("allow", 0))


class Plugin:
    def __init__(self, config):
        from . import is_active
        from ._recorder import why_not

        self.config = config
        self.active = is_active()
        self.why = "" if self.active else why_not()
        #: By test: the peak and what was left, bytes.
        self.results = {}

    def pytest_collection_modifyitems(self, items):
        # An invalid mark is an error before any test runs.
        for item in items:
            _limit_of(item)
            _allowed_of(item)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item):
        from . import Peak, phase, usage

        limit, allowed = _limit_of(item), _allowed_of(item)
        if not self.active:
            outcome = yield
            if (limit is not None or allowed is not None) and outcome.excinfo is None:
                self._fail(outcome, "the test's GPU memory was not measured: " + self.why)
            return
        _free_what_is_unused()
        before, peak = usage(1 << 16 if allowed is not None else 0), Peak()
        with peak, phase(item.nodeid):
            outcome = yield
        if allowed is not None and outcome.excinfo is None:
            _free_what_is_unused()
        after = usage(1 << 16 if allowed is not None else 0)
        if before is None or after is None:
            # The recorder failed: it printed the reason.
            if (limit is not None or allowed is not None) and outcome.excinfo is None:
                self._fail(outcome, "the test's GPU memory was not measured: the recorder returned no figures")
            return
        left = after.live - before.live
        self.results[item.nodeid] = (peak.grown, left)
        item.user_properties.append(("vram_peak_bytes", peak.grown))
        if outcome.excinfo is not None:
            return
        if limit is not None and peak.grown > limit:
            self._fail(
                outcome,
                "the test took %s of GPU memory at once, more than vram_limit (%s)"
                % (_size.show(peak.grown), _size.show(limit)),
            )
        elif allowed is not None and left > allowed:
            old = _by_site(before)
            grown = [
                (held - old.get(key, 0), key)
                for key, held in _by_site(after).items()
                if held > old.get(key, 0)
            ]
            grown.sort(key=lambda row: -row[0])
            lines = [
                "    %s  cuda:%d  %s"
                % (_size.show(held), key[0], "  ".join(filter(None, key[1:])) or "(not known)")
                for held, key in grown[:5]
            ]
            more = "" if not allowed else ", more than allow= (%s)" % _size.show(allowed)
            self._fail(
                outcome,
                "\n".join(["the test left %s of GPU memory behind%s" % (_size.show(left), more)] + lines),
            )

    def _fail(self, outcome, text):
        try:
            pytest.fail(text, pytrace=False)
        except pytest.fail.Exception as failure:
            if hasattr(outcome, "force_exception"):
                outcome.force_exception(failure)
            else:
                # Before pluggy 1.1.
                outcome._excinfo = (type(failure), failure, failure.__traceback__)

    def pytest_terminal_summary(self, terminalreporter):
        write = terminalreporter.write_line
        terminalreporter.section("GPU memory by test (vramtrace)")
        if not self.active:
            write("nothing was measured: " + self.why)
            return
        used = [(peak, left, name) for name, (peak, left) in self.results.items() if peak or left]
        used.sort(key=lambda row: (-row[0], row[2]))
        top = self.config.getoption("--vramtrace-top")
        if not used:
            write("no test took GPU memory")
            return
        write("%12s  %12s" % ("peak", "left"))
        for peak, left, name in used[:top]:
            write("%12s  %12s  %s" % (_size.show(peak), _size.show(left), name))
        if len(used) > top:
            write("and %d more" % (len(used) - top))
