"""Shared by the programs of the GPU check: print a result, and wait while the check measures."""
import sys


def result(**facts):
    """Prints a line that must be the same with and without the preload."""
    print("RESULT " + " ".join(f"{k}={v}" for k, v in sorted(facts.items())), flush=True)


def hold(**notes):
    """Prints HOLD, and waits for a line on stdin: the memory is in its steady state."""
    print("HOLD " + " ".join(f"{k}={v}" for k, v in sorted(notes.items())), flush=True)
    sys.stdin.readline()
