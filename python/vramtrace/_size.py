"""Sizes as text, as the command reads and writes them."""

_BINARY = {"k": 10, "m": 20, "g": 30, "t": 40}
_DECIMAL = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


def parse(text):
    """``8GiB``, ``8g``, ``13.5GiB`` (binary), ``8000MB`` (decimal), or an int of bytes."""
    if isinstance(text, bool) or not isinstance(text, (str, int)):
        raise TypeError("a size is a str like \"8GiB\" or an int of bytes, not %s" % type(text).__name__)
    if isinstance(text, int):
        if text < 0:
            raise ValueError("%d: a size is not negative" % text)
        return text
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
        raise ValueError("%r is no size: write a number with a unit, like 8GiB, 512MiB or 8000MB" % text)
    if "." not in number and "e" not in number:
        return int(number) * factor
    return int(value * factor)


def show(count):
    """``1.50 GiB``"""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if abs(count) >= 1 << shift:
            return "%.2f %s" % (count / (1 << shift), unit)
    return "%d B" % count
