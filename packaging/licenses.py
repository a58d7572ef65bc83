#!/usr/bin/env python3
"""Prints the licences of all crates that are linked into the release, with the texts in the crates. scripts/deny.sh checks them.

Needs only `cargo metadata`.
"""
import json
import os
import re
import subprocess

REPOSITORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
RELEASED = {"vramtrace", "vramtrace-shim", "vramtrace-sim"}
MACHINES = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"]


def linked():
    """The linked crates: ordinary dependencies on any of the released architectures."""
    found = {package["id"]: package for machine in MACHINES for package in linked_on(machine)}
    return sorted(found.values(), key=lambda one: (one["name"], one["version"]))


def linked_on(machine):
    out = subprocess.check_output(
        ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", machine],
        cwd=REPOSITORY,
    )
    metadata = json.loads(out)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    reached, left = set(), [one for one in packages if packages[one]["name"] in RELEASED]
    while left:
        one = left.pop()
        if one in reached:
            continue
        reached.add(one)
        for dependency in nodes[one]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                left.append(dependency["pkg"])
    return [packages[one] for one in reached]


def texts(package):
    directory = os.path.dirname(package["manifest_path"])
    names = [name for name in sorted(os.listdir(directory)) if re.match(r"(?i)(licen[sc]e|copying|copyright|notice|unlicense)", name)]
    for name in names:
        path = os.path.join(directory, name)
        if os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                yield name, file.read().strip()


def main():
    # Each text is printed once, with the crates that contain it.
    bringing = {}
    print("Crates linked into vramtrace, and their licences\n")
    for package in linked():
        name = "%s %s" % (package["name"], package["version"])
        if package["source"] is None:
            continue
        print("%-36s %s" % (name, package["license"]))
        for file, text in texts(package):
            bringing.setdefault(text, []).append("%s (%s)" % (name, file))
    for text, names in sorted(bringing.items(), key=lambda pair: pair[1]):
        print("\n%s\n%s\n\n%s" % ("=" * 100, "\n".join(names), text))


if __name__ == "__main__":
    main()
