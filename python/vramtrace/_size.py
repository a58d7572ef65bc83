"""Sizes as text, in the format of the ``vramtrace`` command."""

_BINARY = {"k": 10, "m": 20, "g": 30, "t": 40}
_DECIMAL = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


def parse(text):
    """The number of bytes of ``8GiB``, ``8g``, ``13.5GiB`` (binary), ``8000MB`` (decimal), or an int."""
    if isinstance(text, bool) or not isinstance(text, (str, int)):
        raise TypeError("a size must be a str like \"8GiB\" or an int (bytes), not %s" % type(text).__name__)
    if isinstance(text, int):
        return _in_range(text, text)
    plain = text.strip().lower()
    at = len(plain.rstrip("abcdefghijklmnopqrstuvwxyz "))
    number, unit = plain[:at], plain[at:].strip()
    short = unit[:-2] if unit.endswith("ib") else unit
    factor = 1 << _BINARY[short] if short in _BINARY else _DECIMAL.get(unit)
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if factor is None or not 0 <= value < float("inf"):
        raise ValueError("%r is not a size: write a number with a unit, like 8GiB, 512MiB or 8000MB" % text)
    whole = "." not in number and "e" not in number
    return int(_in_range(int(number) * factor if whole else value * factor, text))


def _in_range(size, written):
    """``size``, which must fit in the recorder's 64-bit words: ctypes would drop the bits above them."""
    if not 0 <= size < 1 << 64:
        raise ValueError("%r: a size must be 0 or more and less than 16 EiB (2**64 bytes)" % (written,))
    return size


def show(count):
    """A size as text, like ``1.50 GiB``."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if abs(count) >= 1 << shift:
            return "%.2f %s" % (count / (1 << shift), unit)
    return "%d B" % count
