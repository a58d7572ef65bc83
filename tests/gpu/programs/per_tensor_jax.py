"""Some training steps of a JAX network: --per-tensor must show its tensors one by one."""
import jax
import jax.numpy as jnp


def layers(key, sizes):
    return [jax.random.normal(key, pair) * 0.01 for pair in zip(sizes, sizes[1:])]


@jax.jit
def step(weights, batch):
    def loss(weights):
        x = batch
        for w in weights:
            x = jax.nn.relu(x @ w)
        return (x**2).mean()

    gradients = jax.grad(loss)(weights)
    return [w - 0.01 * g for w, g in zip(weights, gradients)]


weights = layers(jax.random.PRNGKey(0), [4096] * 9)
for _ in range(5):
    batch = jnp.ones((8192, 4096))
    weights = step(weights, batch)
jax.block_until_ready(weights)
