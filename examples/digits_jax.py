"""Train a JAX model on parameter servers: six lines differ from a program without them.

A small network on scikit-learn's 1,797 scanned digits. Alone, or on a cluster of this machine:

    python examples/digits_jax.py
    ropewalk local --workers 2 --ps 2 examples/digits_jax.py

It ends with 90 % of the test digits or more, which others wrote than the training digits.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import ropewalk as rw

BATCH = 60


def init(key):
    keys = jax.random.split(key)
    return [
        {"w": jax.random.normal(keys[0], (64, 64)) / 8, "b": jnp.zeros(64)},
        {"w": jax.random.normal(keys[1], (64, 10)) / 8, "b": jnp.zeros(10)},
    ]


def logits_of(params, images):
    hidden = jax.nn.relu(images @ params[0]["w"] + params[0]["b"])
    return hidden @ params[1]["w"] + params[1]["b"]


@jax.jit
@jax.value_and_grad
def loss_and_gradients(params, images, labels):
    logits = logits_of(params, images)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


digits = load_digits()
images, labels = (digits.data / 16).astype(np.float32), digits.target
params = init(jax.random.key(0))
optimizer = optax.adam(3e-3)
rng = np.random.default_rng(0)

strategy = rw.distribute.ParameterServerStrategy()
state = rw.training.jax.TrainState(params, optimizer, strategy)
params = state.params  # the chief's
for _ in range(40):  # epochs, of which each worker does its part
    order = rw.training.jax.worker_part(rng.permutation(1200), strategy)
    for first in range(0, len(order), BATCH):
        chosen = order[first : first + BATCH]
        loss, gradients = loss_and_gradients(params, images[chosen], labels[chosen])
        params = state.apply_gradients(gradients)

found = logits_of(params, images[1200:]).argmax(1)
print(f"test accuracy {float((found == labels[1200:]).mean()):.4f}")
