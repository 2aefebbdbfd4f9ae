"""Train a digits classifier asynchronously on parameter servers.

A small network in NumPy with its own gradient, on scikit-learn's 1,797 scanned digits. Run it on a
cluster of this machine, or alone:

    ropewalk local --chief --workers 2 --ps 2 --evaluator examples/digits/train.py
    python examples/digits/train.py
"""

import argparse
import time
from collections.abc import Mapping

import numpy as np
from sklearn.datasets import load_digits

import ropewalk as rw

STEPS = 3000  # of all workers together
BATCH = 64


def load(seed: int = 7) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """The images as (train, held-out third); pixels in [0, 1]."""
    digits = load_digits()
    images, labels = (digits.data / 16).astype(np.float32), digits.target.astype(np.int64)
    order = np.random.default_rng(seed).permutation(len(labels))
    cut = len(labels) // 3
    held_out, train = order[:cut], order[cut:]
    return (images[train], labels[train]), (images[held_out], labels[held_out])


def forward(x, w1, b1, w2, b2):
    """(hidden, class probabilities) of a batch."""
    hidden = np.maximum(x @ w1 + b1, 0)
    logits = hidden @ w2 + b2
    exp = np.exp(logits - logits.max(axis=1, keepdims=True))
    return hidden, exp / exp.sum(axis=1, keepdims=True)


def loss_and_grads(x, y, w1, b1, w2, b2):
    """Mean cross-entropy of a batch, and its gradient with respect to each variable."""
    hidden, probabilities = forward(x, w1, b1, w2, b2)
    loss = -np.log(probabilities[np.arange(len(y)), y] + 1e-9).mean()
    d_logits = probabilities.copy()
    d_logits[np.arange(len(y)), y] -= 1
    d_logits /= len(y)
    d_hidden = (d_logits @ w2.T) * (hidden > 0)
    return loss, [x.T @ d_hidden, d_hidden.sum(0), hidden.T @ d_logits, d_logits.sum(0)]


def train(steps: int = STEPS, pause_s: float = 0.0) -> None:
    (images, labels), _ = load()
    strategy = rw.distribute.ParameterServerStrategy()
    with strategy.scope():
        rng = np.random.default_rng(0)
        w1 = rw.Variable(rng.normal(0, 0.15, (64, 64)).astype(np.float32), name="w1")
        b1 = rw.Variable(np.zeros(64, np.float32), name="b1")
        w2 = rw.Variable(rng.normal(0, 0.15, (64, 10)).astype(np.float32), name="w2")
        b2 = rw.Variable(np.zeros(10, np.float32), name="b2")
    variables = [w1, b1, w2, b2]
    optimizer = rw.optimizers.Adam(1e-3)

    def step(batch):
        loss, grads = loss_and_grads(*batch, *(v.read_value() for v in variables))
        optimizer.apply_gradients(zip(grads, variables, strict=True))
        return loss

    data = rw.data.from_arrays((images, labels), BATCH, epochs=None)
    for batch in strategy.experimental_distribute_dataset(data):
        if strategy.global_step >= steps:
            break
        loss = strategy.reduce("mean", strategy.run(step, args=(batch,)))
        rw.training.report(loss=loss, total_steps=steps)
        time.sleep(pause_s)

    if strategy.is_chief:
        values = {v.name: v.numpy() for v in variables}
        print(f"accuracy of the chief's last values: {evaluate(values)['accuracy']:.4f}")


def evaluate(values: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Accuracy and loss on the images that were held out."""
    _, (images, labels) = load()
    _, probabilities = forward(images, *(values[name] for name in ("w1", "b1", "w2", "b2")))
    right = probabilities.argmax(axis=1) == labels
    loss = -np.log(probabilities[np.arange(len(labels)), labels] + 1e-9).mean()
    return {"accuracy": float(right.mean()), "loss": float(loss)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=STEPS, help="of all workers together")
    parser.add_argument("--pause-s", type=float, default=0.0, help="after each step of a worker")
    given = parser.parse_args()
    if rw.training.is_evaluator():
        rw.training.SidecarEvaluator(evaluate).start()
    else:
        train(given.steps, given.pause_s)
