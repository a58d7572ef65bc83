#!/usr/bin/env python3
"""Replaces the paths of the build in a wheel's bill of materials: wheel-paths.py WHEEL DIRECTORY

maturin names the crates of the project by the path of DIRECTORY, so that two directories give two wheels. All entries are
compressed again by zlib, in their order and with their times. Exit status: 0 replaced, 1 no such path, 2 wrong usage.
"""
import base64
import hashlib
import os
import sys
import zipfile


def record_line(line, name, data):
    """The line of RECORD for a file with this content."""
    if not line.startswith(name + ","):
        return line
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return "%s,sha256=%s,%d" % (name, digest, len(data))


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: wheel-paths.py WHEEL DIRECTORY")
    wheel, directory = sys.argv[1], os.path.abspath(sys.argv[2])
    with zipfile.ZipFile(wheel) as old:
        entries = [(info, old.read(info)) for info in old.infolist()]
    bills = {}
    for info, data in entries:
        if ".dist-info/sboms/" in info.filename:
            bills[info.filename] = data.replace(b"file://" + directory.encode(), b"file:///vramtrace")
    if not any(bills[info.filename] != data for info, data in entries if info.filename in bills):
        print("%s: the bill of materials does not name %s" % (wheel, directory), file=sys.stderr)
        return 1
    made = wheel + ".new"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as new:
        for info, data in entries:
            data = bills.get(info.filename, data)
            if info.filename.endswith(".dist-info/RECORD"):
                lines = data.decode().splitlines()
                for name, bill in bills.items():
                    lines = [record_line(line, name, bill) for line in lines]
                data = ("\n".join(lines) + "\n").encode()
            fresh = zipfile.ZipInfo(info.filename, info.date_time)
            fresh.external_attr = info.external_attr
            fresh.create_system = info.create_system
            new.writestr(fresh, data, zipfile.ZIP_DEFLATED, 9)
    os.replace(made, wheel)
    return 0


if __name__ == "__main__":
    sys.exit(main())
