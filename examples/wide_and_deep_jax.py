"""Predict clicks with a wide and a deep part in JAX; the tables live on parameter servers.

After Cheng et al., "Wide & Deep Learning for Recommender Systems" (2016). The clicks are made up,
by a fixed seed, to look like those of a shop: most of them are of few popular users and items, what
a user likes has a hidden reason, and some pairs of a page and an hour sell for none. So nothing is
downloaded. A step looks rows up, differentiates by these rows, and only they travel.

    python examples/wide_and_deep_jax.py
    ropewalk local --workers 2 --ps 2 examples/wide_and_deep_jax.py

It ends with an area under the curve (AUC) of 0.72 or more on new visits; the probabilities that
the clicks were drawn with reach 0.87. With ``-- --logdir DIR`` it writes its curves for
TensorBoard.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.metrics import roc_auc_score

import ropewalk as rw

STEPS = 1500  # of all workers together
BATCH = 256
FIELDS = {"user": 200_000, "item": 50_000, "page": 40, "hour": 24}  # and the rows of each
PAIRS = 40 * 24  # rows of the wide part: a page and an hour
DIM = 8  # numbers per row

parser = argparse.ArgumentParser()
parser.add_argument("--logdir")
LOGDIR = parser.parse_args().logdir


def load_visits(seed, count=BATCH):
    """A row of each field (n, 4), the row of the pair (n,), clicks (n,), and their probability."""
    rng, truth = np.random.default_rng(seed), np.random.default_rng(0)
    popular = [rng.zipf(1.3, count) % rows for rows in (FIELDS["user"], FIELDS["item"])]
    seldom = [rng.integers(rows, size=count) for rows in (FIELDS["page"], FIELDS["hour"])]
    ids = np.stack([*popular, *seldom], axis=1)
    users, items = (truth.normal(0, 1.2, (rows, 2)) for rows in (1000, 1000))
    sells = truth.normal(0, 1.2, PAIRS)
    pair = ids[:, 2] * 24 + ids[:, 3]
    logits = (users[ids[:, 0] % 1000] * items[ids[:, 1] % 1000]).sum(1) + sells[pair] - 0.5
    probability = 1 / (1 + np.exp(-logits))
    return ids, pair, (rng.random(count) < probability).astype(np.float32), probability


def init(key):
    keys = jax.random.split(key)
    inputs = DIM * (len(FIELDS) + 1)
    return [
        {"w": jax.random.normal(keys[0], (inputs, 32)) / inputs**0.5, "b": jnp.zeros(32)},
        {"w": jax.random.normal(keys[1], (32, 1)) / 32**0.5, "b": jnp.zeros(1)},
    ]


@jax.jit
def logits_of(params, deep, wide):
    """Of rows that were looked up: ``deep`` (n, fields, DIM), ``wide`` (n, 1)."""
    liked = deep[:, 0] * deep[:, 1]  # of a user and an item
    x = jnp.concatenate([deep.reshape(len(deep), -1), liked], axis=1)
    hidden = jax.nn.relu(x @ params[0]["w"] + params[0]["b"])
    return (hidden @ params[1]["w"] + params[1]["b"] + liked.sum(1, keepdims=True) + wide)[:, 0]


@jax.jit
def loss_and_gradients(params, deep, wide, clicks):
    def loss_of(*given):
        return optax.sigmoid_binary_cross_entropy(logits_of(*given), clicks).mean()

    return jax.value_and_grad(loss_of, argnums=(0, 1, 2))(params, deep, wide)


strategy = rw.distribute.ParameterServerStrategy(
    variable_partitioner=rw.distribute.partitioners.MinSizePartitioner(1 << 20, max_shards=4)
)
with strategy.scope():
    # Made on the servers: no worker ever holds a table.
    tables = [
        rw.Variable(
            initializer=rw.Initializer("random_normal", seed=i, stddev=0.3),
            shape=(rows, DIM),
            name=f"deep/{field}",
        )
        for i, (field, rows) in enumerate(FIELDS.items())
    ]
    pairs = rw.Variable(initializer="zeros", shape=(PAIRS, 1), name="wide/pairs")
state = rw.training.jax.TrainState(init(jax.random.key(0)), optax.adam(3e-3), strategy)
of_tables = rw.optimizers.Adagrad(0.2)
of_pairs = rw.optimizers.Ftrl(0.3)


def look_up(ids, pair):
    deep = np.stack([table.sparse_read(ids[:, i]) for i, table in enumerate(tables)], axis=1)
    return deep, pairs.sparse_read(pair)


def step(batch):
    ids, pair, clicks = batch
    loss, (of_params, of_deep, of_wide) = loss_and_gradients(
        state.params, *look_up(ids, pair), clicks
    )
    state.apply_gradients(of_params)
    of_deep = np.asarray(of_deep)
    of_tables.apply_gradients(
        (rw.IndexedSlices(of_deep[:, i], ids[:, i]), table) for i, table in enumerate(tables)
    )
    of_pairs.apply_gradients([(rw.IndexedSlices(np.asarray(of_wide), pair), pairs)])
    return loss


def auc(count):
    ids, pair, clicks, _ = load_visits(seed=1, count=count)
    logits = logits_of(state.refresh(), *look_up(ids, pair))
    return roc_auc_score(clicks, np.asarray(logits))


writer = rw.summary.create_file_writer(LOGDIR) if LOGDIR else rw.summary.create_noop_writer()
seed = 1_000_000 * (1 + strategy.task_index)  # every worker sees visits of its own
with writer.as_default(step=strategy):
    while strategy.global_step < STEPS:
        seed += 1
        loss = strategy.run(step, args=(load_visits(seed)[:3],))
        rw.training.report(loss=loss, total_steps=STEPS)
        rw.summary.scalar("loss", loss)
        if LOGDIR and strategy.is_chief and seed % 25 == 0:
            rw.summary.scalar("auc", auc(4000))

if strategy.is_chief:
    print(f"AUC {auc(20_000):.4f}")
