#!/usr/bin/env python3
"""Checks the files in a wheel: wheel-contents.py WHEEL. Exit status: 0 as expected, 1 not."""
import sys
import zipfile


def main():
    path = sys.argv[1]
    names = zipfile.ZipFile(path).namelist()
    wanted = {
        "vramtrace/__init__.py", "vramtrace/__init__.pyi", "vramtrace/py.typed",
        "vramtrace/libvramtrace.so", "vramtrace/libvramtrace_sim.so", "vramtrace/pytest_plugin.py",
    }
    missing = sorted(wanted - set(names))
    if not any(name.endswith(".data/scripts/vramtrace") for name in names):
        missing.append("the command")
    # A start hook (.pth) would run in every Python process of the environment.
    hooks = [name for name in names if name.endswith((".pth", ".start"))]
    strange = [
        name for name in names
        if not name.startswith("vramtrace/") and ".dist-info/" not in name and ".data/scripts/" not in name
    ]
    if "py3-none-manylinux_2_28_" not in path:
        sys.exit("%s: its tag is not py3-none-manylinux_2_28" % path)
    if missing or hooks or strange:
        sys.exit("%s: missing files %s, start hooks %s, unexpected files %s" % (path, missing, hooks, strange))


if __name__ == "__main__":
    main()
