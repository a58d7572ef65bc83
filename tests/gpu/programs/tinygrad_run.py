"""Multiplies matrices with tinygrad on the backend that the environment names, prints a sum, and holds the memory."""
import os
import sys

from tinygrad import Tensor

# Random numbers: what tinygrad can fold into a constant never reaches the card.
Tensor.manual_seed(7)
left = Tensor.rand(1024, 1024).realize()
kept = (left @ left.transpose()).contiguous().realize()
print("PID 0", os.getpid(), flush=True)
print("RESULT", f"{kept.sum().item():.6e}", flush=True)
print("HOLD", flush=True)
sys.stdin.readline()
