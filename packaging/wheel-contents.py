#!/usr/bin/env python3
"""Checks the files in a wheel: wheel-contents.py WHEEL. Exit status: 0 as expected, 1 not."""
import json
import sys
import zipfile


def bill_of_materials(wheel):
    """What is wrong with the wheel's list of components (CycloneDX, at the place that PEP 770 names)."""
    found = [name for name in wheel.namelist() if ".dist-info/sboms/" in name]
    if not found:
        return ["no bill of materials in .dist-info/sboms/"]
    wrong = []
    for name in found:
        content = json.loads(wheel.read(name))
        components = {component["name"] for component in content.get("components", [])}
        if content.get("bomFormat") != "CycloneDX":
            wrong.append("%s is no CycloneDX file" % name)
        if not {"libc", "serde_json"} <= components:
            wrong.append("%s does not name the crates libc and serde_json" % name)
    return wrong


def main():
    path = sys.argv[1]
    wheel = zipfile.ZipFile(path)
    names = wheel.namelist()
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
    wrong = bill_of_materials(wheel)
    if wrong:
        sys.exit("%s: %s" % (path, "; ".join(wrong)))
    if "py3-none-manylinux_2_28_" not in path:
        sys.exit("%s: its tag is not py3-none-manylinux_2_28" % path)
    if missing or hooks or strange:
        sys.exit("%s: missing files %s, start hooks %s, unexpected files %s" % (path, missing, hooks, strange))


if __name__ == "__main__":
    main()
