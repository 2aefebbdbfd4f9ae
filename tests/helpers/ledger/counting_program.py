"""The program of :mod:`.counting_run`: every step counts its examples, on the ps.

Arguments: ``--examples N``, ``--batch N``, ``--epochs N``, ``--pause-s N`` in each step,
``--keyed``: examples are counted in rows of a growing table, too.

Each task writes how many steps it has made to ``steps-<role>-<index>``. The chief prints all counts
when its epochs are over.
"""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np

import ropewalk as rw


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--pause-s", type=float, default=0.0)
    parser.add_argument("--keyed", action="store_true")
    options = parser.parse_args()
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    made, steps = Path(f"steps-{task['type']}-{task['index']}"), 0
    partitioner = rw.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    strategy = rw.distribute.ParameterServerStrategy(variable_partitioner=partitioner)
    with strategy.scope():
        counts = rw.Variable(np.zeros(options.examples, np.int64), name="counts")
        sums = rw.Variable(np.zeros(70_000, np.float32), name="sums")
        keyed = growing_table(options.examples) if options.keyed else None
    optimizer = rw.optimizers.SGD(1.0)

    def step(numbers: np.ndarray) -> None:
        ones = np.ones(len(numbers), np.int64)
        counts.scatter_add(rw.IndexedSlices(ones, numbers, counts.shape))
        gradient = np.full(sums.shape, -float(len(numbers)), np.float32)
        optimizer.apply_gradients([(gradient, sums)])
        if keyed is not None:
            rows = keyed.lookup({"example": numbers})
            rows.apply_gradients({"example": -np.ones((len(numbers), 1), np.float32)})
        time.sleep(options.pause_s)

    data = rw.data.from_arrays(np.arange(options.examples), options.batch, seed=7)
    batches = strategy.experimental_distribute_dataset(data, ledger="train")
    for epoch in range(options.epochs):
        for numbers in batches:
            strategy.run(step, args=(numbers,))
            steps += 1
            made.with_suffix(".new").write_text(f"{steps} {epoch}")
            made.with_suffix(".new").replace(made)
    if strategy.is_chief:
        found = {
            "counts": np.unique(counts.numpy(), return_counts=True),
            "sums": np.unique(sums.numpy(), return_counts=True),
        }
        if keyed is not None:
            values = keyed.lookup({"example": np.arange(options.examples)})["example"]
            found["keyed"] = np.unique(values, return_counts=True)
        print(json.dumps({k: [a.tolist() for a in pair] for k, pair in found.items()}), flush=True)


def growing_table(examples: int) -> "rw.embedding.Embeddings":
    """One in which a gradient of -1 counts one."""
    config = rw.embedding.TableConfig(
        "keyed", dim=1, initializer=rw.Initializer("zeros"), max_rows=2 * examples
    )
    features = [rw.embedding.FeatureConfig("example", config)]
    return rw.embedding.Embeddings(features, rw.optimizers.SGD(1.0))


if __name__ == "__main__":
    main()
