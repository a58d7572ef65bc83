"""Multiplies matrices with tinygrad on the backend that the environment names, prints a sum, and holds the memory."""
import os
import sys

from tinygrad import Tensor

left = Tensor.arange(1024 * 1024).reshape(1024, 1024).float() / 1e6
kept = (left @ left.transpose()).realize()
print("PID 0", os.getpid(), flush=True)
print("RESULT", f"{kept.sum().item():.6e}", flush=True)
print("HOLD", flush=True)
sys.stdin.readline()
