"""Multiplies matrices with tinygrad on the backend that the environment names, prints a sum, and holds the memory."""
from hold import hold, result
from tinygrad import Tensor

# Random numbers: what tinygrad can fold into a constant never reaches the card.
Tensor.manual_seed(7)
left = Tensor.rand(1024, 1024).realize()
kept = (left @ left.transpose()).contiguous().realize()
result(sum=f"{kept.sum().item():.6e}")
hold()
