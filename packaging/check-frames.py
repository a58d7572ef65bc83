#!/usr/bin/env python3
"""Compares the frames of a recorded run with the frames of Python's own `traceback`.

    check-frames.py VRAMTRACE PYTHON SCRIPT OUT [COMMAND...]

Runs SCRIPT (tests/python/frames_situations.py) under the recorder on the simulated driver, with `vramtrace run`
or, if it is given, with COMMAND and the script as its last argument. Each stack must have exactly the frames
of `traceback`, and native frames too. If the recorder says that it does not support this Python, no stack may
have a Python frame. Exit status: 0 equal, 1 different.
"""
import json
import os
import pickle
import subprocess
import sys


def main():
    vramtrace, python, script, out, *command = sys.argv[1:]
    run = subprocess.run(
        (command or [vramtrace, "run", "--simulate", "--out", out, "--", python]) + [script],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True,
        env=dict(os.environ, VRAMTRACE_STACK_DEPTH="1000"),
    )
    if run.returncode != 0:
        sys.exit("%s: exit status %d\n%s" % (python, run.returncode, run.stderr))
    printed = {}
    for line in run.stdout.splitlines():
        one = json.loads(line)
        printed[one["size"]] = [tuple(frame) for frame in one["frames"]]
    off = [line for line in run.stderr.splitlines() if "stacks are off" in line]
    pickled = out + "/snapshot.pickle"
    subprocess.run(
        [vramtrace, "export", "--format", "torch-snapshot", "-o", pickled, out],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    with open(pickled, "rb") as file:
        segments = pickle.load(file)["segments"]
    checked = native = 0
    for segment in segments:
        frames = [(f["name"], f["filename"], f["line"]) for f in segment["frames"]]
        ours = [f for f in frames if f[1].endswith(".py") or f[1].startswith("<")]
        native += len(frames) > len(ours)
        theirs = printed.pop(segment["total_size"], None)
        if theirs is None:
            sys.exit("%s: the trace has an allocation of %d bytes, and the program made none" % (python, segment["total_size"]))
        if any("Python stacks" in line for line in off):
            theirs = []
        if ours != theirs:
            at = next((n for n, pair in enumerate(zip(ours, theirs)) if pair[0] != pair[1]), 0)
            sys.exit(
                "%s: the allocation of %d bytes: frames differ from number %d on\n  recorded  %s\n  traceback %s"
                % (python, segment["total_size"], at, ours[at : at + 8], theirs[at : at + 8])
            )
        checked += 1
    version = subprocess.check_output([python, "--version"], universal_newlines=True).strip()
    if checked < 180 or printed:
        sys.exit("%s: %d stacks were compared (at least 180 must be), %d are missing" % (version, checked, len(printed)))
    if native != checked:
        sys.exit("%s: %d of %d stacks have no native frames\n%s" % (version, checked - native, checked, off))
    print("%s: %d stacks equal to traceback, all with native frames %s" % (version, checked, off or ""))


if __name__ == "__main__":
    main()
