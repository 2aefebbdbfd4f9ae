"""Train a DLRM in JAX: 26 tables on parameter servers, two networks, dot products between them.

After Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation
Systems" (2019): a bottom network makes a vector of the numbers, each feature's ids make one by its
table, and a top network sees the dot products of all pairs. Ids are hashes, so the tables grow: a
row is made when its id is first trained. One request brings the rows of all tables.

    python examples/dlrm_jax.py
    ropewalk local --workers 2 --ps 2 examples/dlrm_jax.py

It ends with an area under the curve (AUC) of 0.69 or more on new visits. The probabilities that the
clicks were drawn with reach 0.84, the best of the numbers alone 0.60. Visits are made up, by
``criteo_like.py``.
"""

import argparse
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from criteo_like import NUMBERS, SIZES, load_clicks
from sklearn.metrics import roc_auc_score

import ropewalk as rw

DIM, BATCH = 8, 512  # numbers of a row; examples
PAIRS = np.triu_indices(1 + len(SIZES), 1)  # of the vectors of the numbers and the features

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=400, help="of all workers together")
STEPS = parser.parse_args().steps


def init(key, *widths):
    """Weights of a network."""
    keys = jax.random.split(key, len(widths) - 1)
    shapes = itertools.pairwise(widths)
    return [
        {"w": jax.random.normal(key, shape) * (2 / shape[0]) ** 0.5, "b": jnp.zeros(shape[1])}
        for key, shape in zip(keys, shapes, strict=True)
    ]


def network(layers, x):
    for layer in layers[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ layers[-1]["w"] + layers[-1]["b"]


@jax.jit
def logits_of(params, rows, numbers):
    """Logits (n,) of rows that were looked up, each (n, DIM), and numbers (n, NUMBERS)."""
    bottom = network(params["bottom"], numbers)
    vectors = jnp.stack([bottom, *(rows[name] for name in SIZES)], axis=1)
    products = jnp.einsum("nid,njd->nij", vectors, vectors)[:, *PAIRS]
    return network(params["top"], jnp.concatenate([bottom, products], axis=1))[:, 0]


def loss_of(params, rows, numbers, clicks):
    return optax.sigmoid_binary_cross_entropy(logits_of(params, rows, numbers), clicks).mean()


strategy = rw.distribute.ParameterServerStrategy()
with strategy.scope():
    initializer = rw.Initializer("random_normal", stddev=0.2)
    tables = [rw.embedding.TableConfig(name, DIM, initializer=initializer) for name in SIZES]
    embeddings = rw.embedding.Embeddings(
        [rw.embedding.FeatureConfig(table.name, table) for table in tables],
        rw.optimizers.Adagrad(0.1),
    )
loss_and_gradients = rw.training.jax.value_and_grad(loss_of, embeddings)
keys = jax.random.split(jax.random.key(0))
params = {
    "bottom": init(keys[0], NUMBERS, 32, DIM),
    "top": init(keys[1], DIM + len(PAIRS[0]), 64, 1),
}
state = rw.training.jax.TrainState(params, optax.adam(3e-3), strategy)


def step(numbers, ids, clicks):
    loss, (of_params, of_rows) = loss_and_gradients(state.params, ids, numbers, clicks)
    state.apply_gradients(of_params, rows=of_rows)  # one push
    return loss


seed = 1_000_000 * (1 + strategy.task_index)  # every worker sees visits of its own
while strategy.global_step < STEPS:
    seed += 1
    loss = strategy.run(step, args=load_clicks(seed, BATCH)[:3])
    rw.training.report(loss=loss, total_steps=STEPS)

if strategy.is_chief:
    numbers, ids, clicks, probability = load_clicks(seed=1, count=20_000)
    rows = rw.training.jax.embedding_lookup(embeddings, ids)
    logits = np.asarray(logits_of(state.refresh(), rows, numbers))
    best = roc_auc_score(clicks, probability)
    print(f"loss {loss:.3f}, best {best:.3f}, AUC {roc_auc_score(clicks, logits):.4f}")
