"""jax_run.py [prealloc]: a small computation; with prealloc JAX preallocates its share of the card's memory."""
import os
import sys

if "prealloc" not in sys.argv:
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
import jax
import jax.numpy as jnp
from hold import hold, result

x = jnp.ones((2048, 2048))
y = (x @ x).sum()
y.block_until_ready()
result(y=float(y))
hold(limit=jax.devices()[0].memory_stats().get("bytes_limit", 0))
