"""Predict clicks with a wide and a deep part, whose tables live on parameter servers.

After DeepCTR's wide-and-deep Estimator on Criteo's data; script and model have 50 lines without
the data:
https://github.com/shenweichen/DeepCTR/blob/master/examples/estimator/run_classification_criteo_pandas.py

    python examples/ported/wide_and_deep.py
    ropewalk local --workers 2 --ps 2 examples/ported/wide_and_deep.py

It ends with an area under the curve (AUC) of 0.8 or more.
"""

import numpy as np
from common import Dense
from sklearn.metrics import log_loss, roc_auc_score

import ropewalk as rw

FIELDS, VALUES, DENSE = 6, 100, 4  # categorical fields, values of each, numerical features
EMBEDDING, STEPS = 4, 1500


def load_clicks(count: int = 12_000):
    """Ids (n, FIELDS), each field in a range of its own, numbers (n, DENSE) and clicks (n,)."""
    rng = np.random.default_rng(0)
    ids = rng.integers(VALUES, size=(count, FIELDS)) + VALUES * np.arange(FIELDS)
    numbers = rng.random((count, DENSE), np.float32)
    taste = rng.normal(0, 1, FIELDS * VALUES)  # the truth that is to be found
    logits = taste[ids].sum(axis=1) + 2 * (numbers[:, 0] - 0.5)
    return ids, numbers, (rng.random(count) < 1 / (1 + np.exp(-logits))).astype(np.float32)


train, test = zip(*(np.split(column, [10_000]) for column in load_clicks()), strict=True)
strategy = rw.distribute.ParameterServerStrategy()
with strategy.scope():
    weights = rw.Variable(np.zeros((FIELDS * VALUES, 1), np.float32), name="wide/weights")
    table = rw.Variable(
        initializer=rw.Initializer("random_normal", seed=1),
        shape=(FIELDS * VALUES, EMBEDDING),
        name="deep/table",
    )
    deep = Dense([FIELDS * EMBEDDING + DENSE, 32, 16, 1], name="deep")
wide_optimizer = rw.optimizers.Ftrl(0.1)
deep_optimizer = rw.optimizers.Adagrad(0.05)


def probability(logits):
    return 1 / (1 + np.exp(-logits))


def inputs_of(ids, numbers):
    """(logits of the wide part, inputs of the deep part)."""
    wide = weights.sparse_read(ids).sum(axis=1)
    return wide, np.hstack([table.sparse_read(ids).reshape(len(ids), -1), numbers])


def step(batch):
    ids, numbers, clicks = batch
    wide, x = inputs_of(ids, numbers)

    def error(logits):
        return (probability(wide + logits) - clicks[:, None]) / len(ids)

    logits, gradients, d_x = deep.gradients(x, error)
    d_weights = np.repeat(error(logits), FIELDS, axis=0)
    d_rows = d_x[:, : FIELDS * EMBEDDING].reshape(-1, EMBEDDING)
    wide_optimizer.apply_gradients([(rw.IndexedSlices(d_weights, ids.ravel()), weights)])
    deep_optimizer.apply_gradients(
        [
            (rw.IndexedSlices(d_rows, ids.ravel()), table),
            *zip(gradients, deep.variables, strict=True),
        ]
    )


batches = rw.data.from_arrays(train, 128, epochs=None)
for batch in strategy.experimental_distribute_dataset(batches):
    if strategy.global_step >= STEPS:
        break
    strategy.run(step, args=(batch,))

ids, numbers, clicks = test
wide, x = inputs_of(ids, numbers)
predicted = probability(wide + deep(x))[:, 0]
print(f"log loss {log_loss(clicks, predicted):.4f}")
print(f"AUC {roc_auc_score(clicks, predicted):.4f}")
