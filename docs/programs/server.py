"""A server that answers requests, and keeps one tensor of every tenth in its log."""

import os
import time

from gpu import MIB, Tensor

log = []


def answer(request):
    scores = Tensor(32 * MIB)
    time.sleep(0.001)
    if request % 10 == 0:
        log.append(Tensor(2 * MIB))
    return scores.size


for request in range(600):
    answer(request)
os._exit(0)  # stopped, as servers are: nothing is freed in order
