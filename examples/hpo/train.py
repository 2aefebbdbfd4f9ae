"""A program whose hyperparameters are searched: see search.py."""

import argparse

import numpy as np

import ropewalk as rw

STEPS = 150  # of all workers together
EVERY = 25

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, default=0.01)
parser.add_argument("--momentum", type=float, default=0.0)
options = parser.parse_args()

strategy = rw.distribute.ParameterServerStrategy()
rng = np.random.default_rng(strategy.task_index)


def examples(rng, count):
    x = rng.normal(size=(count, 3)).astype(np.float32)
    noise = rng.normal(scale=0.1, size=count).astype(np.float32)
    return x, x @ np.array([1.0, -2.0, 0.5], np.float32) + noise


held_out = examples(np.random.default_rng(99), 256)

with strategy.scope():
    w = rw.Variable(np.zeros(3, np.float32), name="w")
optimizer = rw.optimizers.SGD(options.rate, momentum=options.momentum)


def step():
    x, y = examples(rng, 32)
    error = x @ w.read_value() - y
    optimizer.apply_gradients([(2 * x.T @ error / len(x), w)])


def report():
    x, y = held_out
    loss = float(np.mean((x @ w.numpy() - y) ** 2))
    print(f"step {strategy.global_step} validation loss {loss:.5f}", flush=True)


shown = 0
while strategy.global_step < STEPS:
    strategy.run(step)
    if strategy.should_save and strategy.global_step >= shown + EVERY:
        shown = strategy.global_step
        report()
if strategy.should_save:
    report()
