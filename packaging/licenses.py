#!/usr/bin/env python3
"""Checks and prints the licences of all crates that are linked into the release.

licenses.py --check     checks that deny.toml allows each licence, and that each crate is from crates.io
licenses.py             the same, and prints all licences with the texts in the crates

Needs only `cargo metadata`. Exit status: 0 all allowed, 1 one is not, 2 wrong usage.
"""
import json
import os
import re
import subprocess
import sys

REPOSITORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
REGISTRY = "registry+https://github.com/rust-lang/crates.io-index"
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


def allowed():
    """The licences that deny.toml allows."""
    with open(os.path.join(REPOSITORY, "deny.toml")) as file:
        found = re.search(r"^allow = \[(.*?)\]", file.read(), re.S | re.M)
    return set(re.findall(r'"([^"]+)"', found.group(1)))


def permits(expression, allow):
    """Whether the allowed licences satisfy an SPDX expression."""
    words = re.findall(r"\(|\)|[^\s()/]+|/", expression)
    words = ["OR" if word == "/" else word for word in words]

    def either():
        result = both()
        while words and words[0] == "OR":
            words.pop(0)
            result = both() or result
        return result

    def both():
        result = one()
        while words and words[0] == "AND":
            words.pop(0)
            result = one() and result
        return result

    def one():
        word = words.pop(0)
        if word == "(":
            result = either()
            if not words or words.pop(0) != ")":
                raise ValueError(expression)
            return result
        if words and words[0] == "WITH":
            words.pop(0)
            word += " WITH " + words.pop(0)
        return word in allow

    result = either()
    if words:
        raise ValueError(expression)
    return result


def texts(package):
    directory = os.path.dirname(package["manifest_path"])
    names = [name for name in sorted(os.listdir(directory)) if re.match(r"(?i)(licen[sc]e|copying|copyright|notice|unlicense)", name)]
    for name in names:
        path = os.path.join(directory, name)
        if os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                yield name, file.read().strip()


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        print("usage: licenses.py [--check], not: %s" % " ".join(sys.argv[1:]), file=sys.stderr)
        sys.exit(2)
    allow, wrong = allowed(), 0
    # Each text is printed once, with the crates that contain it.
    bringing, crates = {}, []
    for package in linked():
        name = "%s %s" % (package["name"], package["version"])
        if package["source"] is None:
            continue
        if package["source"] != REGISTRY:
            print("licenses: %s comes from %s, not from crates.io" % (name, package["source"]), file=sys.stderr)
            wrong = 1
        licence = package["license"] or "no licence is named"
        if not permits(licence, allow):
            print("licenses: %s: %s is not allowed by deny.toml" % (name, licence), file=sys.stderr)
            wrong = 1
        crates.append((name, licence))
        for file, text in texts(package):
            bringing.setdefault(text, []).append("%s (%s)" % (name, file))
    if sys.argv[1:]:
        print("licenses: %d crates, %s" % (len(crates), "not all allowed" if wrong else "all allowed"))
        sys.exit(wrong)
    print("Crates linked into vramtrace, and their licences\n")
    for name, licence in crates:
        print("%-36s %s" % (name, licence))
    for text, names in sorted(bringing.items(), key=lambda pair: pair[1]):
        print("\n%s\n%s\n\n%s" % ("=" * 100, "\n".join(names), text))
    sys.exit(wrong)


if __name__ == "__main__":
    main()
