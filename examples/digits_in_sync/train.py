"""Train a digits classifier in sync: on several devices of this machine, or on several workers.

Every replica gets its part of each batch; gradients are added up over all of them and every copy of
the variables takes the same step, so that the result is the one of a single device but for
rounding.

    python examples/digits_in_sync/train.py --devices 4
    ropewalk local --ps 0 --no-chief --workers 3 examples/digits_in_sync/train.py
"""

import argparse

import numpy as np
from sklearn.datasets import load_digits

import ropewalk as rw

GLOBAL_BATCH = 96  # of all replicas together
EPOCHS = 12


def load(seed: int = 7):
    """The images as (train, held-out third); pixels in [0, 1]."""
    digits = load_digits()
    images, labels = (digits.data / 16).astype(np.float32), digits.target.astype(np.int64)
    order = np.random.default_rng(seed).permutation(len(labels))
    cut = len(labels) // 3
    held_out, train = order[:cut], order[cut:]
    return (images[train], labels[train]), (images[held_out], labels[held_out])


def forward(x, w1, b1, w2, b2):
    """(hidden, class probabilities) of a batch, which may be empty."""
    hidden = np.maximum(x @ w1 + b1, 0)
    logits = hidden @ w2 + b2
    exp = np.exp(logits - logits.max(axis=1, keepdims=True))
    return hidden, exp / exp.sum(axis=1, keepdims=True)


def make_strategy(devices: int):
    """Workers in sync if this process is one of several, else the devices of this machine."""
    resolver = rw.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.cluster_spec().jobs:
        return rw.distribute.MultiWorkerMirroredStrategy(
            communication_options=rw.distribute.CommunicationOptions(timeout_seconds=60)
        )
    return rw.distribute.MirroredStrategy([f"CPU:{i}" for i in range(devices)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--devices", type=int, default=1, help="logical CPU devices, a replica on each"
    )
    parser.add_argument("--save", default="", help="write the trained weights to this .npz file")
    arguments = parser.parse_args()
    rw.config.set_logical_cpu_devices(arguments.devices)
    strategy = make_strategy(arguments.devices)

    with strategy.scope():
        rng = np.random.default_rng(0)
        variables = [
            rw.Variable(rng.normal(0, 0.15, (64, 64)).astype(np.float32), name="w1"),
            rw.Variable(np.zeros(64, np.float32), name="b1"),
            rw.Variable(rng.normal(0, 0.15, (64, 10)).astype(np.float32), name="w2"),
            rw.Variable(np.zeros(10, np.float32), name="b2"),
        ]
    optimizer = rw.optimizers.Adam(3e-3)

    def step(batch):
        x, y = batch
        w1, b1, w2, b2 = (variable.read_value() for variable in variables)
        hidden, probabilities = forward(x, w1, b1, w2, b2)
        losses = -np.log(probabilities[np.arange(len(y)), y] + 1e-9)
        d_logits = probabilities
        d_logits[np.arange(len(y)), y] -= 1
        d_logits /= GLOBAL_BATCH  # the sum over the replicas is then the mean over the batch
        d_hidden = (d_logits @ w2.T) * (hidden > 0)
        grads = [x.T @ d_hidden, d_hidden.sum(0), hidden.T @ d_logits, d_logits.sum(0)]
        optimizer.apply_gradients(zip(grads, variables, strict=True))
        return losses

    train, (images, labels) = load()
    batches = rw.data.from_arrays(train, GLOBAL_BATCH, epochs=EPOCHS, seed=3)
    first_worker = strategy.extended.should_checkpoint
    for number, batch in enumerate(strategy.experimental_distribute_dataset(batches), start=1):
        losses = strategy.run(step, args=(batch,))
        if number % 30 == 0:
            loss = strategy.reduce("MEAN", losses, axis=0)  # every worker takes part
            if first_worker:
                print(f"step {number:3d}  loss {loss:.4f}", flush=True)

    weights = [variable.numpy() for variable in variables]
    accuracy = float((forward(images, *weights)[1].argmax(1) == labels).mean())
    if first_worker:
        replicas = strategy.num_replicas_in_sync
        print(f"{replicas} replicas: {accuracy:.1%} of the held-out digits")
    if arguments.save and first_worker:
        np.savez(arguments.save, *weights)


if __name__ == "__main__":
    main()
