#!/usr/bin/env python3
"""Fails if a file needs a newer C library than VERSION: symbol-versions.py VERSION FILE...

The recorder (libvramtrace.so) is loaded into every process, so it may need no library but the C library.
Needs readelf. Exit status: 0 all files pass, 1 one does not, 2 wrong usage.
"""
import re
import subprocess
import sys


def needed(path):
    """The glibc versions that the file's dynamic symbols need."""
    text = subprocess.run(
        ["readelf", "--version-info", "--wide", path], check=True, capture_output=True, text=True
    ).stdout
    needs = text.partition(".gnu.version_r")[2]
    return {tuple(map(int, v.split("."))) for v in re.findall(r"Name: GLIBC_([0-9.]+)", needs)}


def libraries(path):
    """The libraries that the file needs besides the C library and the loader."""
    text = subprocess.run(["readelf", "--dynamic", "--wide", path], check=True, capture_output=True, text=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", text)
    return [name for name in needed if not name.startswith(("libc.so.", "ld-linux"))]


def main():
    if len(sys.argv) < 3:
        print("usage: symbol-versions.py VERSION FILE..., like symbol-versions.py 2.28 libvramtrace.so", file=sys.stderr)
        sys.exit(2)
    most = tuple(map(int, sys.argv[1].split(".")))
    failed = False
    for path in sys.argv[2:]:
        found = needed(path)
        if not found:
            sys.exit(f"{path}: readelf shows no glibc version: is it a dynamic library or program?")
        text = ".".join(map(str, max(found)))
        print(f"{path}: needs glibc {text}")
        if max(found) > most:
            failed = True
            print(f"{path}: needs glibc {text}, newer than {sys.argv[1]}", file=sys.stderr)
        if path.endswith("libvramtrace.so") and libraries(path):
            failed = True
            print(f"{path}: needs {', '.join(libraries(path))}; bind its functions late: shim/src/runtime/late_binding.rs", file=sys.stderr)
    sys.exit(failed)


if __name__ == "__main__":
    main()
