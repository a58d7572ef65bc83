"""What every program of the GPU check shares: say a result, hold still while it is measured."""
import sys


def result(**facts):
    """One line that must be the same with and without the preload."""
    print("RESULT " + " ".join(f"{k}={v}" for k, v in sorted(facts.items())), flush=True)


def hold(**notes):
    """Print HOLD and wait for a line on stdin: memory is at its steady state."""
    print("HOLD " + " ".join(f"{k}={v}" for k, v in sorted(notes.items())), flush=True)
    sys.stdin.readline()
