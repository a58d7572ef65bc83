# The first call of the driver, and an allocation twice, are made below more Python frames than a walk visits; another allocation
# is not so deep. Prints what frames_situations.py prints, of the frames that are kept. Python 3.11 to 3.13: there a call takes no
# C stack.
import json, sys

DEEP, KEPT = 70_000, 1000


def down(depth, lines):
    if depth:
        return down(depth - 1, lines)
    from taking import take, use_context

    use_context()
    take(512 * (1 + len(lines)), lines)


sys.setrecursionlimit(2 * DEEP)
lines = []
for depth in [DEEP, DEEP, 10]:
    down(depth, lines)
for one in map(json.loads, lines):
    print(json.dumps({**one, "frames": one["frames"][:KEPT]}))
