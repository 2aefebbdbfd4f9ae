"""Train a DLRM: large tables on parameter servers, and dot products between their rows.

After giallo41's DLRM in TensorFlow, whose model and training have 62 lines without the data, and
Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems"
(2019): https://github.com/giallo41/tensorflow_dlrm

    python examples/ported/dlrm.py
    ropewalk local --workers 2 --ps 2 examples/ported/dlrm.py

The largest table has 200,000 rows; a step moves only those of its batch. It ends with an area under
the curve (AUC) of 0.8 or more on new examples.
"""

import numpy as np
from common import Dense
from sklearn.metrics import roc_auc_score

import ropewalk as rw

ROWS = [200_000, 5_000, 300]  # of each table
FEATURES, DIM = 4, 8  # numerical features, numbers per row
STEPS, BATCH = 800, 256


def load_clicks(seed: int, count: int = BATCH):
    """Numbers (n, FEATURES), a row of each table (n, 3), most of them of few popular ones, and
    clicks (n,). Which users like what is the same for every seed.
    """
    rng, truth = np.random.default_rng(seed), np.random.default_rng(0)
    ids = np.stack([rng.zipf(1.6, count) % rows for rows in ROWS], axis=1)
    numbers = rng.normal(size=(count, FEATURES)).astype(np.float32)
    taste = [truth.normal(size=(rows, 2)) for rows in (300, 300, 300)]
    first, second, third = (tastes[ids[:, i] % 300] for i, tastes in enumerate(taste))
    logits = 2 * (first * second).sum(1) + (second * third).sum(1) + numbers[:, 0]
    return numbers, ids, (rng.random(count) < 1 / (1 + np.exp(-logits))).astype(np.float32)


strategy = rw.distribute.ParameterServerStrategy(
    variable_partitioner=rw.distribute.partitioners.MinSizePartitioner(1 << 20, max_shards=4)
)
with strategy.scope():
    bottom = Dense([FEATURES, 16, DIM], name="bottom", seed=1)
    top = Dense([DIM + 6, 32, 1], name="top", seed=2)
    tables = [
        rw.Variable(
            initializer=rw.Initializer("random_normal", seed=i, stddev=0.2),
            shape=(rows, DIM),
            name=f"table/{i}",
        )
        for i, rows in enumerate(ROWS)
    ]
optimizer = rw.optimizers.Adagrad(0.3)
PAIRS = np.triu_indices(1 + len(ROWS), 1)  # of the numerical part and the rows of the tables


def interact(numerical, ids):
    """(the vectors of every example (n, 4, DIM), inputs of the top network)."""
    rows = [table.sparse_read(ids[:, i]) for i, table in enumerate(tables)]
    vectors = np.stack([numerical, *rows], axis=1)
    products = vectors @ vectors.transpose(0, 2, 1)
    return vectors, np.hstack([numerical, products[:, *PAIRS]])


def probability(logits):
    return 1 / (1 + np.exp(-logits))


def step(batch):
    numbers, ids, clicks = batch
    vectors, x = interact(bottom(numbers), ids)
    _, of_top, d_x = top.gradients(
        x, lambda logits: (probability(logits) - clicks[:, None]) / len(clicks)
    )
    d_products = np.zeros((len(ids), 1 + len(ROWS), 1 + len(ROWS)), np.float32)
    d_products[:, *PAIRS] = d_x[:, DIM:]
    d_vectors = (d_products + d_products.transpose(0, 2, 1)) @ vectors
    _, of_bottom, _ = bottom.gradients(numbers, lambda _: d_vectors[:, 0] + d_x[:, :DIM])
    of_tables = [rw.IndexedSlices(d_vectors[:, 1 + i], ids[:, i]) for i in range(len(ROWS))]
    variables = [*top.variables, *bottom.variables, *tables]
    optimizer.apply_gradients(zip([*of_top, *of_bottom, *of_tables], variables, strict=True))


seed = 1_000_000 * (1 + strategy.task_index)  # every worker sees clicks of its own
while strategy.global_step < STEPS:
    seed += 1
    strategy.run(step, args=(load_clicks(seed),))

numbers, ids, clicks = load_clicks(seed=1, count=20_000)
_, x = interact(bottom(numbers), ids)
print(f"AUC {roc_auc_score(clicks, probability(top(x))[:, 0]):.4f}")
