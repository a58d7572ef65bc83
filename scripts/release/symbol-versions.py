#!/usr/bin/env python3
"""Fails if a file needs a symbol of a newer C library: symbol-versions.py 2.28 FILE...

A recorder (libvramtrace.so) is loaded into every process, so it may need no other library than the C library.
"""
import re
import subprocess
import sys


def needed(path):
    """Versions of the C library that the file's dynamic symbols need."""
    text = subprocess.run(
        ["readelf", "--version-info", "--wide", path], check=True, capture_output=True, text=True
    ).stdout
    needs = text.partition(".gnu.version_r")[2]
    return {tuple(map(int, v.split("."))) for v in re.findall(r"Name: GLIBC_([0-9.]+)", needs)}


def libraries(path):
    """What the file needs besides the C library and the loader."""
    text = subprocess.run(["readelf", "--dynamic", "--wide", path], check=True, capture_output=True, text=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", text)
    return [name for name in needed if not name.startswith(("libc.so.", "ld-linux"))]


def main():
    most = tuple(map(int, sys.argv[1].split(".")))
    failed = False
    for path in sys.argv[2:]:
        found = needed(path)
        if not found:
            sys.exit(f"{path}: no versions of the C library were found in it")
        text = ".".join(map(str, max(found)))
        print(f"{path}: needs glibc {text}")
        if max(found) > most:
            failed = True
            print(f"{path}: needs glibc {text}, newer than {sys.argv[1]}", file=sys.stderr)
        if path.endswith("libvramtrace.so") and libraries(path):
            failed = True
            print(f"{path}: needs {', '.join(libraries(path))}: shim/src/runtime/late_binding.rs", file=sys.stderr)
    sys.exit(failed)


if __name__ == "__main__":
    main()
