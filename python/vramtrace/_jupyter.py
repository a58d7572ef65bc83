"""``%%vram``: the GPU memory that a notebook cell uses."""

from . import Peak, is_active, usage
from ._recorder import why_not
from ._size import show

USAGE = "usage: %%vram [-n SITES]"
NO_FIGURES = "vram: the recorder returned no figures; its message is on stderr"


def load(ipython):
    ipython.register_magic_function(vram, magic_kind="line_cell", magic_name="vram")


def unload(ipython):
    for kind in ("line", "cell"):
        ipython.magics_manager.magics[kind].pop("vram", None)


def vram(line, cell=None):
    """``%vram``: the memory of this process. ``%%vram``: the peak of a cell, the memory that it left, and
    the call sites that hold memory.

    ``-n SITES``: the number of call sites to list (default 5).
    """
    sites = _sites(line)
    if sites is None:
        print(USAGE)
        return
    if not is_active():
        print("vram: " + why_not())
        if cell is not None:
            _run(cell)
        return
    now = usage(sites if cell is None else 1 << 16)
    if now is None:
        print(NO_FIGURES)
        if cell is not None:
            _run(cell)
        return
    if cell is None:
        print(now)
        return
    before = {(device.ordinal,) + _key(site): site for device in now.devices for site in device.sites}
    live = now.live
    peak = Peak()
    try:
        with peak:
            _run(cell)
    finally:
        _show(peak, live, before, sites)


def _run(cell):
    from IPython import get_ipython

    shell = get_ipython()
    # raise_error() below raises the cell's exception again, and IPython prints it then.
    shell.showtraceback = lambda *arguments, **named: None
    try:
        result = shell.run_cell(cell)
    finally:
        del shell.showtraceback
    result.raise_error()


def _sites(line):
    words = line.split()
    if not words:
        return 5
    if len(words) == 2 and words[0] == "-n" and words[1].isdigit():
        return int(words[1])
    return None


def _key(site):
    return (site.library, site.place)


def _show(peak, live, before, sites):
    after = usage(1 << 16)
    if after is None:
        print(NO_FIGURES)
        return
    left = after.live - live
    print(
        "vram: peak %s (%s more than before the cell), left %s%s"
        % (show(peak.bytes), show(peak.grown), "+" if left > 0 else "", show(left))
    )
    rows = []
    for device in after.devices:
        for site in device.sites:
            known = before.get((device.ordinal,) + _key(site))
            grown = site.bytes - (known.bytes if known else 0)
            rows.append((site.bytes, grown, device.ordinal, site))
    rows.sort(key=lambda row: (-row[1], -row[0]))
    if rows and sites:
        print("    %12s  %12s  %s" % ("holds", "of the cell", "who"))
    for held, grown, ordinal, site in rows[:sites]:
        who = "  ".join(filter(None, [site.library, site.place or "(not known)"]))
        print("    %12s  %12s  cuda:%d  %s" % (show(held), show(grown), ordinal, who))
